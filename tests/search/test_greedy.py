"""Weights of an ensemble."""

import pytest
import torch

from magna.search.greedy import chosen_weights
from magna.search.judging import Judge

JUDGE = Judge("classes", "accuracy")


def _sure(labels: torch.Tensor, classes: int = 3) -> torch.Tensor:
    return torch.nn.functional.one_hot(labels, classes).double() * 0.9 + 0.1 / classes


def test_members_that_cannot_be_told_apart_share_the_weight() -> None:
    truth = torch.arange(60) % 3
    members = [_sure(torch.where(torch.arange(60) == wrong, 0 * truth + (truth + 1) % 3, truth)) for wrong in (3, 30)]
    assert all(weight > 0 for weight in chosen_weights(members, truth, JUDGE))


def test_a_member_that_is_clearly_worse_gets_no_weight() -> None:
    truth = torch.arange(300) % 3
    assert chosen_weights([_sure((truth + 1) % 3), _sure(truth)], truth, JUDGE) == [0.0, 1.0]


def test_members_that_correct_one_another_beat_the_best_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.randint(3, (600,), generator=draw)
    noisy = [_sure(truth).double() + torch.randn(600, 3, generator=draw).double() * 0.6 for _ in range(4)]
    members = [each.softmax(1) for each in noisy]
    weights = chosen_weights(members, truth, JUDGE)
    mean = sum(weight * member for weight, member in zip(weights, members, strict=True))
    assert isinstance(mean, torch.Tensor)
    assert JUDGE.rank(mean, truth) > max(JUDGE.rank(member, truth) for member in members)
    assert sum(weights) == pytest.approx(1)


def test_of_equal_accuracies_the_smaller_loss_wins() -> None:
    truth = torch.tensor([0, 1])
    sure, unsure = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.6, 0.4], [0.4, 0.6]])
    assert JUDGE.rank(sure, truth) > JUDGE.rank(unsure, truth)
