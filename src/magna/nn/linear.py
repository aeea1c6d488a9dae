"""Linear layers."""

from __future__ import annotations

from torch import Tensor, nn

from magna import ops
from magna.nn.sparse import SparseRows, sparse_linear
from magna.typing import Backend


class Linear(nn.Linear):
    """`torch.nn.Linear`, with `relu` the ReLU of it; quicker on a GPU where there are many rows.

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
