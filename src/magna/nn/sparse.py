"""Mostly-zero features, such as bags of words: dropout and products read the nonzero entries alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.graph import Graph
from magna.ops import attention_diffusion
from magna.typing import Backend

_FEW = 1 / 20  # share of nonzero entries; above it the dense product is as fast


@dataclass(frozen=True, eq=False)
class SparseRows:
    r"""The nonzero entries of a matrix [N, C]; every model of this package takes it as features.

    Dropout draws for these entries alone, and a linear layer multiplies them alone.

    >>> rows = SparseRows.of(torch.tensor([[0.0, 2.0, 0.0]]))
    >>> sparse_linear(rows, torch.tensor([[1.0, 3.0, 5.0]])).tolist()
    [[6.0]]
    """

    values: Tensor  # [E], row by row
    graph: Graph  # an edge from the column to the row of each entry, on max(N, C) nodes
    shape: torch.Size  # N, C

    @staticmethod
    def of(x: Tensor) -> SparseRows:
        """The entries of a dense matrix that are not zero."""
        row, column = x.nonzero(as_tuple=True)
        graph = Graph.from_edge_index(torch.stack([column, row]), max(x.shape), validate=False)
        return SparseRows(x[row, column], graph, x.shape)

    def dense(self) -> Tensor:
        places = self.graph.target * self.shape[1] + self.graph.source
        return self.values.new_zeros(self.shape.numel()).index_put((places,), self.values).view(self.shape)

    def scaled(self, factor: Tensor) -> SparseRows:
        """Each row times a number, [N]."""
        return self.with_values(self.values * factor.index_select(0, self.graph.target))

    def with_values(self, values: Tensor) -> SparseRows:
        return replace(self, values=values)

    def to(self, device: torch.device) -> SparseRows:
        return SparseRows(self.values.to(device), self.graph.to(device), self.shape)

    def size(self, axis: int) -> int:
        return self.shape[axis]

    def dim(self) -> int:
        return len(self.shape)

    def is_floating_point(self) -> bool:
        return self.values.is_floating_point()

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + 4 * self.graph.edge_index.nbytes


def as_dense(x: Tensor | SparseRows) -> Tensor:
    return x.dense() if isinstance(x, SparseRows) else x


class Dense(nn.Module):
    """Features as a dense matrix, for a model without input projection."""

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        return as_dense(x)


def has_few_entries(x: Tensor) -> bool:
    return x.dim() == 2 and int(x.count_nonzero()) < _FEW * x.numel()


def sparse_linear(x: SparseRows, weight: Tensor, bias: Tensor | None = None, *, backend: Backend = "auto") -> Tensor:
    """X W' + b, as one hop from the columns to the rows.

    Shapes: x [N, C], weight [out, C], bias [out] → [N, out].
    """
    columns = F.pad(weight.t(), (0, 0, 0, x.graph.num_nodes - x.size(1)))[:, None]
    entries = x.values[:, None]
    out = attention_diffusion(columns, entries, x.graph, K=1, alpha=0.0, backend=backend, validate=False)
    out = out[: x.size(0), 0]
    return out if bias is None else out + bias
