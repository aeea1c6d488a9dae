"""One schedule for a run alone and for the rows of a batch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from magna.config.tables import TrainOptions
from magna.errors import Diverged
from magna.training.schedule import BestEpochs, Schedule, check_loss

TRAIN = TrainOptions(epochs=10, lr=0.7, min_lr=0.1)


def test_the_rate_falls_along_half_a_cosine() -> None:
    schedule = Schedule([TRAIN, replace(TRAIN, lr=1.0, min_lr=0.0)])
    assert schedule.rates(0).tolist() == [0.7, 1.0]
    assert schedule.rates(5).tolist() == pytest.approx([0.4, 0.5])
    assert schedule.rates(10).tolist() == pytest.approx([0.1, 0.0])
    assert float(schedule.rates(2.5)[0]) == 0.1 + (0.7 - 0.1) * (1 + math.cos(math.pi * 2.5 / 10)) / 2


@pytest.mark.parametrize("limit", [0.0, 0.01, 1.0, 50.0])
def test_clipping_is_that_of_torch_bit_for_bit(limit: float) -> None:
    weight = nn.Parameter(torch.zeros(30))
    weight.grad = torch.randn(30)
    factor = Schedule([replace(TRAIN, clip=limit)]).factors(torch.stack([nn.utils.get_total_norm([weight.grad])]))
    clipped = weight.grad * factor
    if limit:
        nn.utils.clip_grad_norm_([weight], limit)
    assert torch.equal(weight.grad, clipped)


def test_the_rows_of_a_batch_have_their_own_bounds() -> None:
    schedule = Schedule([replace(TRAIN, clip=limit) for limit in (0.0, 1.0, 8.0)])
    assert schedule.factors(torch.full((3,), 4.0)).tolist() == pytest.approx([1.0, 0.25, 1.0])


def test_every_row_keeps_its_best_epoch() -> None:
    best = BestEpochs([replace(TRAIN, patience=patience) for patience in (1, 5)])
    assert best.trained(1).tolist() == [1, 1]
    scores = [(0.5, -1.0), (0.5, -2.0), (0.5, -0.5), (0.4, 0.0), (math.nan, 0.0)]
    better = [best.update(torch.tensor([score] * 2, dtype=torch.float64), epoch) for epoch, score in enumerate(scores)]
    # The second score decides between equal first ones; the first row has no patience left by then.
    assert [each.tolist() for each in better] == [[True, True], [False, False], [False, True], [False] * 2, [False] * 2]
    assert best.epoch.tolist() == [0, 2] and best.score.tolist() == [[0.5, -1.0], [0.5, -0.5]]
    assert best.patient(4).tolist() == [False, True]
    assert best.trained(5).tolist() == [2, 5]
    assert best.rows(torch.tensor([1])).trained(20).tolist() == [8]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_an_error(loss: float) -> None:
    check_loss(3.0, 1)
    with pytest.raises(Diverged, match=r"after epoch 4; try a smaller train\.lr"):
        check_loss(loss, 4)


def test_rates_reach_an_optimiser_whose_state_was_loaded() -> None:
    schedule = Schedule([TRAIN])
    schedule._on_gpu = True  # there a captured step reads the rate from a tensor
    adam = schedule.adam([{"params": [nn.Parameter(torch.zeros(2))], "row": 0}])
    adam.load_state_dict(adam.state_dict())
    schedule.link(adam)
    schedule.set_rates(adam, 5)
    assert float(adam.param_groups[0]["lr"]) == pytest.approx(0.4)
