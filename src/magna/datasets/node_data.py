"""`NodeData`: one graph with labels on its nodes and a split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class NodeData:
    """A graph for node classification.

    Shapes: edge_index [2, E], row 0 the source; x [N, C]; y [N], -1 where a node has no label; the three splits hold
    node indices.
    """

    name: str
    edge_index: Tensor
    y: Tensor
    num_classes: int
    train: Tensor
    valid: Tensor
    test: Tensor
    x: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return self.y.numel()

    def split(self, name: str) -> Tensor:
        """The node indices of `train`, `valid` or `test`."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    def with_row_normalised_features(self) -> NodeData:
        """Each feature row divided by its sum; rows of zeros stay."""
        assert self.x is not None
        total = self.x.sum(1, keepdim=True)
        return replace(self, x=torch.where(total == 0, self.x, self.x / total))

    def with_self_loops(self) -> NodeData:
        """One loop added to every node (the loops that are there go first)."""
        edges = self.edge_index[:, self.edge_index[0] != self.edge_index[1]]
        loop = torch.arange(self.num_nodes)
        return replace(self, edge_index=_by_target(torch.cat([edges, torch.stack([loop, loop])], dim=1)))


def undirected(source: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """Both directions of every edge, each once, without self-loops, sorted by target.

    >>> undirected(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0, 2, 1]), 3).tolist()
    [[1, 0, 2, 1], [0, 1, 1, 2]]
    """
    proper = source != target
    source, target = source[proper], target[proper]
    code = torch.unique(torch.cat([target * num_nodes + source, source * num_nodes + target]))
    return torch.stack([code % num_nodes, code // num_nodes])


def _by_target(edge_index: Tensor) -> Tensor:
    # Sorted by target, the edges need no permutation on their way into the operators.
    source_order = torch.argsort(edge_index[0], stable=True)
    edge_index = edge_index[:, source_order]
    return edge_index[:, torch.argsort(edge_index[1], stable=True)]
