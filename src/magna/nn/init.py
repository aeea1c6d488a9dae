"""Starting values: plain Glorot, or those of the authors' code (docs/explanation/switches.md, point 10)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from magna.typing import Init

FEED_FORWARD_GAIN = math.sqrt(2)


def attention_gain(typed: bool) -> float:
    """The authors' gain for projections and attention vectors; their code for typed edges has another one."""
    return math.sqrt(2) if typed else 5 / 3


def fill_matrix(weight: Tensor, init: Init, gain: float = 1.0) -> None:
    """Fill a matrix unless its shape is not known yet; `gain` belongs to the authors' values."""
    if is_lazy(weight):
        return
    if init == "official":
        nn.init.xavier_normal_(weight, gain)
    else:
        nn.init.xavier_uniform_(weight)


def fill_linear(linear: nn.Linear, init: Init, gain: float = 1.0) -> None:
    fill_matrix(linear.weight, init, gain)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


@torch.no_grad()
def fill_vector(vector: Tensor, init: Init, gain: float) -> None:
    """An attention vector [H, D]. The authors' has shape (1, H, D), which makes its fan-in H * D and fan-out D."""
    fill_matrix(vector[None] if init == "official" else vector, init, gain)
