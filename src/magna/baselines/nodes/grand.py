"""`GRAND` (Feng et al. 2020, arXiv 2005.11079)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from magna.baselines.nodes.base import NodeBaseline
from magna.baselines.nodes.mlp import MLP, MLPOptions
from magna.baselines.nodes.propagation import several_hops, symmetric_weights
from magna.config.options import option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.dropout import Dropout
from magna.nn.sparse import SparseRows


@dataclass(frozen=True, kw_only=True)
class GRANDOptions(MLPOptions):
    """Options of :class:`GRAND`."""

    K: int = option(8, "Highest order of the propagation.", low=0, high=4096)
    node_dropout: float = option(
        0.0, "DropNode: probability of dropping all features of a node.", low=0, below=1, per_trial=True
    )


@node_model("grand", GRANDOptions)
class GRAND(NodeBaseline):
    r"""Graph random neural network: drop nodes, take the mean over the orders of propagation, predict.

    .. math:: \mathrm{out} = \mathrm{MLP}(\bar X), \quad
              \bar X = \frac{1}{K + 1} \sum_{k=0}^K \hat A^k \tilde X, \quad
              \hat A = D^{-1/2} A D^{-1/2}

    X̃ are the features in which DropNode sets whole rows to zero and divides the others by 1 − rate. The consistency
    of several such draws is a part of the task: `task.consistency`, `task.passes` and `task.temperature`. The graph is
    taken as it is; GRAND wants self-loops.

    It takes every option of :class:`GRANDOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> import torch
    >>> model = GRAND(16, 3, hidden_channels=32, K=4)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: GRANDOptions
    TAKES_EDGE_WEIGHT = True

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = GRANDOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        self.node_dropout = Dropout(chosen.node_dropout, rows=True, backend=chosen.backend)
        self.mlp = MLP(self.linears(bias=False), chosen)
        self.reset_parameters()

    def forward(
        self, x: Tensor | SparseRows, edge_index: Tensor | Graph, *, edge_weight: Tensor | None = None
    ) -> Tensor:
        graph, orders, backend = self.graph(x, edge_index, edge_weight), self.options.K + 1, self.options.backend
        weight = symmetric_weights(graph, x.dtype, edge_weight)
        theta = weight.new_full((orders,), 1 / orders)
        out: Tensor = self.mlp(self.node_dropout(x), lambda h: several_hops(h, weight, graph, backend, theta=theta))
        return out
