"""`DiffGCN`: GCN on the graph of PageRank or of the heat kernel (GDC, Klicpera et al. 2019, arXiv 1911.05485)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from magna.baselines.nodes.propagation import once_per_graph, symmetric_weights
from magna.baselines.nodes.stack import Stack, StackOptions
from magna.config.options import HUGE, Needs, option
from magna.config.registry import node_model
from magna.data.node_data import undirected
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.graph.torch_internals import version
from magna.ops import attention_diffusion

# Nodes that are solved for at a time: 19,717 nodes then need three blocks of 40 MB.
BLOCK = 512
# Bound on the error of a column; that of an entry is far smaller, and the chosen entries are far larger.
TOLERANCE = 1e-5

_PPR = Needs("kernel 'ppr'", lambda options: options.kernel == "ppr")
_HEAT = Needs("kernel 'heat'", lambda options: options.kernel == "heat")


class Diffusion(NamedTuple):
    """The kernel S of a diffused graph, and the entries of S that are its edges."""

    alpha: float | None  # teleport probability of PageRank, None for the heat kernel
    t: float | None  # time of the heat kernel
    top_k: int
    threshold: float


@dataclass(frozen=True, kw_only=True)
class DiffGCNOptions(StackOptions):
    """Options of :class:`DiffGCN`."""

    kernel: Literal["ppr", "heat"] = option("ppr", "ppr: personalised PageRank; heat: the heat kernel.")
    alpha: float = option(0.1, "Teleport probability of PageRank.", above=0, high=1, needs=_PPR)
    t: float = option(5.0, "Time of the heat kernel.", above=0, high=100, needs=_HEAT)
    top_k: int = option(64, "Largest entries of the kernel that stay, for each node.", low=1, high=HUGE)
    threshold: float = option(0.0, "Least entry of the kernel that stays.", low=0, below=1)


@node_model("diff-gcn", DiffGCNOptions)
class DiffGCN(Stack):
    r"""Graph convolutions with the fixed weights S of :func:`diffused_graph`.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(S H^{(l)} W + b\right)

    S is that of PageRank or of the heat kernel. It is computed once for each graph, in seconds for some thousand nodes;
    the graph is taken as undirected.

    It takes every option of :class:`DiffGCNOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = DiffGCN(16, 32, num_layers=2, out_channels=3, alpha=0.1, top_k=2)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: DiffGCNOptions
    TAKES_EDGE_WEIGHT = True

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, **options: Any
    ) -> None:
        chosen = DiffGCNOptions.from_flat({"hidden_channels": hidden_channels, "num_layers": num_layers, **options})
        super().__init__(in_channels, out_channels, chosen)
        self.reset_parameters()

    def weights(self, graph: Graph, dtype: torch.dtype, edge_weight: Tensor | None = None) -> tuple[Graph, Tensor]:
        options = self.options
        kernel: Any = {"alpha": options.alpha} if options.kernel == "ppr" else {"t": options.t}
        kernel["edge_weight"] = edge_weight
        diffused, weight = diffused_graph(graph, top_k=options.top_k, threshold=options.threshold, **kernel)
        return diffused, weight.to(dtype)


def diffused_graph(
    graph: Graph,
    alpha: float | None = None,
    top_k: int = DiffGCNOptions.top_k,
    *,
    t: float | None = None,
    threshold: float = DiffGCNOptions.threshold,
    edge_weight: Tensor | None = None,
) -> tuple[Graph, Tensor]:
    r"""The edges with the largest entries of a kernel S and their weights, built once per graph.

    .. math:: S = \alpha \left(I - (1 - \alpha) T\right)^{-1} \text{ with alpha, or } S = e^{-t (I - T)} \text{ with t},
              \quad T = \tilde D^{-1/2} \tilde A \tilde D^{-1/2}, \quad \tilde A = A + I

    The weights of a node's in-edges are divided by their sum. The graph is taken as undirected; the loops are
    replaced by one for each node.

    Args:
        graph: the edges.
        alpha: teleport probability of PageRank.
        top_k: largest entries that stay, for each node.
        t: time of the heat kernel, in place of alpha.
        threshold: least entry that stays.
        edge_weight: entries of A; edges between the same two nodes have their mean.

    Shapes: edge_weight [E] → graph with E' edges, weights [E', 1].

    >>> pair = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    >>> diffused, weight = diffused_graph(pair, alpha=0.2, top_k=2)
    >>> diffused.edge_index.tolist(), [round(w, 2) for w in weight.flatten().tolist()]
    ([[0, 1, 0, 1], [0, 0, 1, 1]], [0.6, 0.4, 0.4, 0.6])
    """
    if (alpha is None) == (t is None):
        raise ArgumentError("alpha", alpha, "a number with t None, or None with a number as t")
    changes = None if edge_weight is None else version(edge_weight)
    return _diffuse(graph, Diffusion(alpha, t, top_k, threshold), edge_weight, changes)


@once_per_graph
def _diffuse(graph: Graph, diffusion: Diffusion, edge_weight: Tensor | None, _: int | None) -> tuple[Graph, Tensor]:
    """The diffused graph; the last argument tells states of the weights apart."""
    transition, weight = _transition(graph, edge_weight)
    targets, sources, values = [], [], []
    for nodes in torch.split(torch.arange(graph.num_nodes, device=graph.device), BLOCK):
        # S is symmetric, so that the column of a node is its row: the weights of its in-edges.
        columns = _columns(transition, weight, nodes, diffusion)
        value, source = columns.topk(min(diffusion.top_k, graph.num_nodes), dim=0)
        source, order = source.t().sort(dim=1)
        value = value.t().gather(1, order)
        stays = (value > 0) & (value >= diffusion.threshold)
        value = value * stays
        targets.append(nodes[:, None].expand_as(source)[stays])
        sources.append(source[stays])
        values.append((value / value.sum(1, keepdim=True))[stays])
    edge_index = torch.stack([torch.cat(sources), torch.cat(targets)])
    return Graph.from_edge_index(edge_index, graph.num_nodes, validate=False), torch.cat(values)[:, None]


def _transition(graph: Graph, edge_weight: Tensor | None) -> tuple[Graph, Tensor]:
    """T: the graph with its loops, and the weight [E, 1] of each edge."""
    loop = torch.arange(graph.num_nodes, device=graph.device)
    edges = undirected(graph.source, graph.target, graph.num_nodes)
    looped = Graph.from_edge_index(torch.cat([edges, loop.expand(2, -1)], dim=1), graph.num_nodes, validate=False)
    if edge_weight is None:
        return looped, symmetric_weights(looped, torch.float32)
    # The edges are sorted by these numbers.
    place, size = edges[1] * graph.num_nodes + edges[0], edges.size(1)
    ends = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    proper = ends[0] != ends[1]
    rank = torch.searchsorted(place, (ends[1] * graph.num_nodes + ends[0])[proper])
    weights = edge_weight.float().repeat(2)[proper]
    total, count = (weights.new_zeros(size).index_add(0, rank, part) for part in (weights, torch.ones_like(weights)))
    return looped, symmetric_weights(looped, torch.float32, torch.cat([total / count, weights.new_ones(len(loop))]))


def _columns(transition: Graph, weight: Tensor, nodes: Tensor, diffusion: Diffusion) -> Tensor:
    """Columns of S, [N, nodes]."""
    if diffusion.alpha is not None:
        return _pagerank(transition, weight, nodes, diffusion.alpha)
    assert diffusion.t is not None
    return _heat(transition, weight, nodes, diffusion.t)


def _heat(transition: Graph, weight: Tensor, nodes: Tensor, t: float) -> Tensor:
    """Columns of S, [N, nodes], by the series Σ_k e⁻ᵗ tᵏ / k! Tᵏ, whose weights are positive and sum to 1."""
    theta = [math.exp(-t)]
    while 1 - math.fsum(theta) > TOLERANCE:
        theta.append(theta[-1] * t / len(theta))
    start = torch.zeros(transition.num_nodes, 1, nodes.numel(), device=nodes.device)
    start[nodes, 0, torch.arange(nodes.numel(), device=nodes.device)] = 1
    weights = torch.tensor(theta, device=nodes.device)
    return attention_diffusion(start, weight, transition, theta=weights, validate=False).squeeze(1)


def _pagerank(transition: Graph, weight: Tensor, nodes: Tensor, alpha: float) -> Tensor:
    """Columns of S, [N, nodes], by Chebyshev's iteration.

    The eigenvalues of T lie between -1 and 1, so k steps leave 2 qᵏ of the error: 38 steps where plain iteration
    needs 225 (alpha = 0.05).
    """
    decay = 1 - alpha
    q = decay / (1 + math.sqrt(1 - decay**2))
    steps = math.ceil(math.log(TOLERANCE / 2) / math.log(q)) if q > 0 else 1
    column = torch.arange(nodes.numel(), device=nodes.device)
    hop = torch.tensor([0.0, 1.0], device=nodes.device)
    before = torch.zeros(transition.num_nodes, 1, nodes.numel(), device=nodes.device)
    current = before.clone()
    current[nodes, 0, column] = alpha
    omega = 2.0
    for _ in range(steps):
        omega = 1 / (1 - decay**2 * omega / 4)
        after = attention_diffusion(current, weight, transition, theta=omega * decay * hop, validate=False)
        after.add_(before, alpha=1 - omega)
        after[nodes, 0, column] += omega * alpha
        before, current = current, after
    return current.squeeze(1)
