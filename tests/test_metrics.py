from __future__ import annotations

import math

import torch

from magna.metrics import accuracy


def test_accuracy_counts_the_largest_score() -> None:
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    assert accuracy(scores, torch.tensor([1, 0, 0, 1])) == 0.5


def test_nan_loses() -> None:
    scores = torch.tensor([[float("nan"), 0.0], [1.0, 0.0]])
    assert accuracy(scores, torch.tensor([0, 0])) == 0.5


def test_of_nothing_is_nan() -> None:
    assert math.isnan(accuracy(torch.empty(0, 3), torch.empty(0, dtype=torch.long)))
