"""Linear layers and their starting values: plain Glorot, or the authors' (docs/explanation/switches.md, point 10)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter, is_lazy

from magna import ops
from magna.nn.sparse import SparseRows, sparse_linear
from magna.typing import Backend, Init

LAZY = -1  # in place of `in_channels`: the width of the first features
FEED_FORWARD_GAIN = math.sqrt(2)


class Linear(nn.Linear):
    """`torch.nn.Linear`, followed by ReLU with `relu`; faster on a GPU with many rows.

    Shapes: [N, in_channels] → [N, out_channels].
    """

    def __init__(
        self, in_channels: int, out_channels: int, bias: bool = True, *, relu: bool = False, backend: Backend = "auto"
    ) -> None:
        super().__init__(in_channels, out_channels, bias)
        self.relu = relu
        self.backend: Backend = backend

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        if isinstance(x, SparseRows):
            out = sparse_linear(x, self.weight, self.bias, backend=self.backend)
            return out.relu() if self.relu else out
        return ops.linear(x, self.weight, self.bias, relu=self.relu, backend=self.backend)


def make_linear(in_channels: int, out_channels: int, backend: Backend) -> Linear:
    """A linear layer without bias; lazy if `in_channels` is -1."""
    return (LazyLinear if in_channels == LAZY else Linear)(in_channels, out_channels, bias=False, backend=backend)


class LazyLinear(LazyModuleMixin, Linear):
    """A `Linear` without bias that takes its width from its first input, or from the weights that it loads."""

    cls_to_become = Linear
    weight: UninitializedParameter

    def __init__(self, _: int, out_channels: int, bias: bool = False, *, backend: Backend = "auto") -> None:
        super().__init__(0, 0, bias=bias, backend=backend)
        self.weight = UninitializedParameter()
        self.out_features = out_channels

    def reset_parameters(self) -> None:
        """Do nothing: the layer around fills the values once their shape is known."""

    def initialize_parameters(self, x: Tensor | SparseRows) -> None:
        if self.has_uninitialized_params():
            self.weight.materialize((self.out_features, x.size(1)))
        self.in_features = self.weight.size(1)


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
