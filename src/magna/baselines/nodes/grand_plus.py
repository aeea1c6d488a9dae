"""`GRANDPlus`: GRAND+ (Feng et al. 2022, arXiv 2203.06389)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from magna.baselines.nodes.base import NodeBaseline
from magna.baselines.nodes.mlp import MLP, MLPOptions
from magna.baselines.nodes.propagation import mean_weights, once_per_graph, one_hop
from magna.config.options import HUGE, Needs, option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.dropout import Dropout
from magna.nn.sparse import SparseRows
from magna.ops import attention_diffusion, edge_softmax

# Rows that are computed at a time: 19,717 nodes then need 40 MB.
ROWS = 512

Propagation = Literal["ppr", "avg", "single"]


@dataclass(frozen=True, kw_only=True)
class GRANDPlusOptions(MLPOptions):
    """Options of :class:`GRANDPlus`."""

    propagation: Propagation = option(
        "ppr", "Weights of the orders: ppr: those of PageRank; avg: equal; single: the highest order alone."
    )
    K: int = option(10, "Highest order of the propagation.", low=0, high=4096)
    alpha: float = option(
        0.2,
        "Teleport probability of PageRank.",
        above=0,
        below=1,
        needs=Needs("propagation 'ppr'", lambda options: options.propagation == "ppr"),
    )
    top_k: int = option(32, "Entries of the propagation matrix for each node.", low=1, high=HUGE)
    entry_dropout: float = option(
        0.0, "Dropout on these entries; those that are left are divided by their sum.", low=0, below=1, per_trial=True
    )
    row_norm: bool = option(False, "Divide the input of each layer by its length, node by node.")


@node_model("grand-plus", GRANDPlusOptions)
class GRANDPlus(NodeBaseline):
    r"""GRAND+: mix the features of the nearest nodes, some of them dropped, and predict.

    .. math:: \mathrm{out}_i = \mathrm{MLP}(\bar x_i), \quad
              \bar x_i = \frac{\sum_j z_{ij} \Pi_{ij} x_j}{\sum_j z_{ij} \Pi_{ij}}

    Π are the entries of :func:`propagation_matrix`; in training each z is 0 with probability `entry_dropout`, else 1.
    The consistency of several such draws is a part of the task: `task.consistency`, `task.confidence` and
    `task.consistency_nodes`. The graph is taken as it is; GRAND+ wants self-loops.

    It takes every option of :class:`GRANDPlusOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = GRANDPlus(16, 3, hidden_channels=32, propagation="avg", K=4, top_k=2)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: GRANDPlusOptions

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = GRANDPlusOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        self.entry_dropout = Dropout(chosen.entry_dropout, backend=chosen.backend)
        self.mlp = MLP(self.linears(bias=False), chosen, row_norm=chosen.row_norm)
        self.reset_parameters()

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor | Graph) -> Tensor:
        options = self.options
        graph, weight = propagation_matrix(
            self.graph(x, edge_index), options.propagation, options.K, options.alpha, options.top_k
        )
        left = self.entry_dropout(torch.ones_like(weight)) > 0
        # The softmax of a logarithm: the entries divided by the sum of those that are left.
        scores = torch.where(left, weight.log(), -torch.inf).to(x.dtype)
        mixed = edge_softmax(scores, graph, backend=options.backend, validate=False)
        out: Tensor = self.mlp(x, lambda h: one_hop(h, mixed, graph, options.backend))
        return out


@once_per_graph
def propagation_matrix(
    graph: Graph, propagation: Propagation, K: int, alpha: float, top_k: int
) -> tuple[Graph, Tensor]:
    r"""The `top_k` largest entries in each row of Π, as edges from column to row; computed once per graph.

    .. math:: \Pi = \sum_{k=0}^K w_k (D^{-1} A)^k, \quad w_k = \alpha (1 - \alpha)^k, \ \tfrac{1}{K + 1}
              \ \text{or} \ [k = K]

    The authors approximate these entries by pushing along edges; here they are computed exactly.

    Shapes: → graph with E' edges, entries [E', 1].

    >>> pair = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    >>> matrix, entry = propagation_matrix(pair, "avg", 2, 0.1, 1)
    >>> matrix.edge_index.tolist(), [round(value, 2) for value in entry.flatten().tolist()]
    ([[0, 1], [0, 1]], [0.67, 0.67])
    """
    order = torch.arange(K + 1, device=graph.device)
    shares = {
        "ppr": alpha * (1 - alpha) ** order,
        "avg": torch.full((K + 1,), 1 / (K + 1), device=graph.device),
        "single": (order == K).float(),
    }
    # A row of Π is a column of its transpose, which walks the edges backwards.
    backwards = Graph.from_edge_index(graph.edge_index.flip(0), graph.num_nodes, validate=False)
    weight = mean_weights(graph, torch.float32)
    targets, sources, entries = [], [], []
    for nodes in torch.split(torch.arange(graph.num_nodes, device=graph.device), ROWS):
        start = torch.zeros(graph.num_nodes, 1, len(nodes), device=graph.device)
        start[nodes, 0, torch.arange(len(nodes), device=graph.device)] = 1
        rows = attention_diffusion(start, weight, backwards, theta=shares[propagation], validate=False).squeeze(1)
        entry, source = rows.topk(min(top_k, graph.num_nodes), dim=0)
        reached = entry.t() > 0
        targets.append(nodes[:, None].expand_as(reached)[reached])
        sources.append(source.t()[reached])
        entries.append(entry.t()[reached])
    edges = torch.stack([torch.cat(sources), torch.cat(targets)])
    return Graph.from_edge_index(edges, graph.num_nodes, validate=False), torch.cat(entries)[:, None]
