"""`DiffGCN`: GCN on the graph of personalised PageRank (GDC, Klicpera et al. 2019, arXiv 1911.05485)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from magna.baselines.nodes.stack import Stack, StackOptions
from magna.config.options import HUGE, option
from magna.config.registry import node_model
from magna.data.node_data import undirected
from magna.graph import Graph
from magna.ops import attention_diffusion

# Nodes that are solved for at a time: 19,717 nodes then need three blocks of 40 MB.
BLOCK = 512
# Bound on the error of a column; that of an entry is far smaller, and the chosen entries are far larger.
TOLERANCE = 1e-5

_DIFFUSED: WeakKeyDictionary[Graph, dict[tuple[float, int], tuple[Graph, Tensor]]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class DiffGCNOptions(StackOptions):
    """Options of :class:`DiffGCN`."""

    alpha: float = option(0.1, "Teleport probability of PageRank.", above=0, high=1)
    top_k: int = option(64, "Entries of PageRank for each node.", low=1, high=HUGE)


@node_model("diff-gcn", DiffGCNOptions)
class DiffGCN(Stack):
    r"""Graph convolutions with the fixed weights S of :func:`diffused_graph`.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(S H^{(l)} W + b\right)

    S is computed once for each graph, in seconds for some thousand nodes; the graph is taken as undirected.

    It takes every option of :class:`DiffGCNOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = DiffGCN(16, 32, num_layers=2, out_channels=3, alpha=0.1, top_k=2)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: DiffGCNOptions

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, **options: Any
    ) -> None:
        chosen = DiffGCNOptions.from_flat({"hidden_channels": hidden_channels, "num_layers": num_layers, **options})
        super().__init__(in_channels, out_channels, chosen)
        self.reset_parameters()

    def weights(self, graph: Graph, dtype: torch.dtype) -> tuple[Graph, Tensor]:
        diffused, weight = diffused_graph(graph, self.options.alpha, self.options.top_k)
        return diffused, weight.to(dtype)


def diffused_graph(graph: Graph, alpha: float, top_k: int) -> tuple[Graph, Tensor]:
    r"""The edges with the `top_k` largest weights of each node and those weights, built once per graph.

    .. math:: S = \alpha \left(I - (1 - \alpha) T\right)^{-1}, \quad
              T = \tilde D^{-1/2} \tilde A \tilde D^{-1/2}, \quad \tilde A = A + I

    The weights of a node's in-edges are divided by their sum. The graph is taken as undirected and unweighted; the
    loops are replaced by one for each node.

    Shapes: → graph with E' edges, weights [E', 1].

    >>> pair = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    >>> diffused, weight = diffused_graph(pair, alpha=0.2, top_k=2)
    >>> diffused.edge_index.tolist(), [round(w, 2) for w in weight.flatten().tolist()]
    ([[0, 1, 0, 1], [0, 0, 1, 1]], [0.6, 0.4, 0.4, 0.6])
    """
    known = _DIFFUSED.setdefault(graph, {})
    if (alpha, top_k) not in known:
        # It serves later calls: tensors born in inference mode could not be saved for a backward pass.
        with torch.inference_mode(False), torch.no_grad():
            known[alpha, top_k] = _diffuse(graph, alpha, top_k)
    return known[alpha, top_k]


def _diffuse(graph: Graph, alpha: float, top_k: int) -> tuple[Graph, Tensor]:
    transition, weight = _transition(graph)
    targets, sources, values = [], [], []
    for nodes in torch.split(torch.arange(graph.num_nodes, device=graph.device), BLOCK):
        # S is symmetric, so that the column of a node is its row: the weights of its in-edges.
        value, source = _pagerank(transition, weight, nodes, alpha).topk(min(top_k, graph.num_nodes), dim=0)
        source, order = source.t().sort(dim=1)
        value = value.t().gather(1, order)
        reached = value > 0
        targets.append(nodes[:, None].expand_as(source)[reached])
        sources.append(source[reached])
        values.append((value / value.sum(1, keepdim=True))[reached])
    edge_index = torch.stack([torch.cat(sources), torch.cat(targets)])
    return Graph.from_edge_index(edge_index, graph.num_nodes, validate=False), torch.cat(values)[:, None]


def _transition(graph: Graph) -> tuple[Graph, Tensor]:
    """T: the graph with its loops, and the weight [E, 1] of each edge."""
    loop = torch.arange(graph.num_nodes, device=graph.device)
    edges = undirected(graph.source, graph.target, graph.num_nodes)
    looped = Graph.from_edge_index(torch.cat([edges, loop.expand(2, -1)], dim=1), graph.num_nodes, validate=False)
    scale = torch.bincount(looped.target, minlength=graph.num_nodes).float().rsqrt()
    return looped, (scale[looped.source] * scale[looped.target])[:, None]


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
