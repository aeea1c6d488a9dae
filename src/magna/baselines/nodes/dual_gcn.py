"""`DualGCN`: GCN on the adjacency, held near GCN on PPMI (Zhuang & Ma 2018, WWW, doi 10.1145/3178876.3186116)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.nodes.base import NodeBaseline, NodeBaselineOptions
from magna.baselines.nodes.propagation import once_per_graph, one_hop, symmetric_weights
from magna.config.options import HUGE, Needs, option
from magna.config.registry import node_model
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn.dropout import Dropout, is_zero
from magna.nn.sparse import SparseRows

WALK_SEED = 0  # the walks are part of the data: all runs on a graph share them
RAMP = 5.0  # exponent of the weight at the first epoch

_DISTANCE = Needs("distance_weight above 0", lambda options: options.distance_weight > 0)


@dataclass(frozen=True, kw_only=True)
class DualGCNOptions(NodeBaselineOptions):
    """Options of :class:`DualGCN`."""

    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)
    distance_weight: float = option(
        1.0, "Weight of the distance between the outputs on both graphs.", low=0, per_trial=True
    )
    distance_ramp: int = option(
        120, "Epochs until the distance has its full weight.", low=1, high=HUGE, needs=_DISTANCE
    )
    walks: int = option(100, "Random walks from each node.", low=1, high=HUGE, needs=_DISTANCE)
    walk_length: int = option(2, "Steps of a random walk.", low=1, high=HUGE, needs=_DISTANCE)
    window: int = option(2, "Largest number of steps between the nodes of a pair.", low=1, high=HUGE, needs=_DISTANCE)

    def check(self) -> None:
        if self.window > self.walk_length:
            raise ArgumentError("window", self.window, f"at most walk_length, {self.walk_length}")


@node_model("dualgcn", DualGCNOptions)
class DualGCN(NodeBaseline):
    r"""Dual graph convolution: the same weights on the adjacency, which predicts, and on PPMI, which regularises.

    .. math:: Z_A^{(l+1)} = \mathrm{ReLU}\left(D^{-1/2} A D^{-1/2} Z_A^{(l)} W + b\right), \quad
              Z_P^{(l+1)} = \mathrm{ReLU}\left(D_P^{-1/2} P D_P^{-1/2} Z_P^{(l)} W + b\right)

    .. math:: L = L_0(Z_A) + \lambda(t) \frac{1}{N} \sum_i \lVert \mathrm{softmax}(Z_{P,i}) -
              \mathrm{softmax}(Z_{A,i}) \rVert^2

    P are the entries of :func:`ppmi_graph`, the weight λ(t) rises from λ e⁻⁵ to λ. The graph is taken as it is; DualGCN
    wants self-loops.

    It takes every option of :class:`DualGCNOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = DualGCN(16, 3, hidden_channels=32)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: DualGCNOptions

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = DualGCNOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        self.distance_weight: float | Tensor = chosen.distance_weight
        self.embed_dropout = Dropout(chosen.embed_dropout, backend=chosen.backend)
        self.layers = self.linears(bias=False)
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(size)) for size in self.widths[1:])
        self.reset_parameters()

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor | Graph) -> Tensor:
        graph = self.graph(x, edge_index)
        return self._convolved(x, graph, symmetric_weights(graph, x.dtype))

    def auxiliary_loss(
        self, scores: Tensor, epoch: int | Tensor, x: Tensor | SparseRows, edge_index: Tensor | Graph
    ) -> Tensor:
        """λ(t) times the squared distance of the probabilities from those on the PPMI graph."""
        options = self.options
        if is_zero(self.distance_weight):
            return scores.new_zeros(())
        graph, weight = ppmi_graph(self.graph(x, edge_index), options.walks, options.walk_length, options.window)
        global_scores = self._convolved(x, graph, weight.to(scores.dtype))
        distance = (global_scores.softmax(-1) - scores.softmax(-1)).square().sum(-1).mean()
        left = 1 - (torch.as_tensor(epoch, device=scores.device) / options.distance_ramp).clamp(max=1)
        return self.distance_weight * torch.exp(-RAMP * left.square()) * distance

    def _convolved(self, x: Tensor | SparseRows, graph: Graph, weight: Tensor) -> Tensor:
        h: Any = self.embed_dropout(x)
        for number, (layer, bias) in enumerate(zip(self.layers, self.biases, strict=True)):
            h = self.input_dropout(F.relu(h)) if number > 0 else h
            h = one_hop(layer(h), weight, graph, self.options.backend) + bias
        out: Tensor = h
        return out


@once_per_graph
def ppmi_graph(graph: Graph, walks: int, walk_length: int, window: int) -> tuple[Graph, Tensor]:
    r"""Positive pointwise mutual information of the nodes of random walks, normalised; built once per graph.

    .. math:: P_{ij} = \max\left(0, \log \frac{p_{ij}}{p_{i*} p_{*j}}\right), \quad D_P^{-1/2} P D_P^{-1/2}

    Each node starts `walks` walks of `walk_length` steps to a random in-neighbour; a node without one stays. Every two
    nodes of a walk that are at most `window` steps apart are a pair (i, j) and a pair (j, i), and p are their shares.

    Shapes: → graph with E' edges, weights [E', 1].

    >>> pair = Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 0, 2]]), num_nodes=3)
    >>> ppmi, weight = ppmi_graph(pair, walks=5, walk_length=1, window=1)
    >>> ppmi.edge_index.tolist(), [round(entry, 2) for entry in weight.flatten().tolist()]
    ([[1, 0, 2], [0, 1, 2]], [1.0, 1.0, 1.0])
    """
    size, steps = graph.num_nodes, _walk(graph, walks, walk_length)
    pairs = [
        steps[near] * size + steps[far]
        for near in range(walk_length)
        for far in range(near + 1, min(near + window, walk_length) + 1)
    ]
    places, counts = torch.cat(pairs).unique(return_counts=True)
    target, source = places // size, places % size
    # Both orders of each pair.
    places = torch.cat([places, source * size + target])
    places, order = places.unique(return_inverse=True)
    count = torch.zeros(len(places), dtype=torch.float64).index_add(0, order, counts.double().repeat(2))
    target, source = places // size, places % size
    share = torch.zeros(size, dtype=torch.float64).index_add(0, target, count)
    value = (count * count.sum() / (share[target] * share[source])).log()
    target, source, value = target[value > 0], source[value > 0], value[value > 0]
    scale = torch.zeros(size, dtype=torch.float64).index_add(0, target, value).rsqrt()
    weight = (scale[target] * value * scale[source]).float()[:, None]
    edges = torch.stack([source, target]).to(graph.device)
    return Graph.from_edge_index(edges, size, validate=False), weight.to(graph.device)


def _walk(graph: Graph, walks: int, walk_length: int) -> list[Tensor]:
    """The nodes of all walks at each step, [walk_length + 1] times [N * walks], on the CPU."""
    generator = torch.Generator().manual_seed(WALK_SEED)
    first, col = graph.rowptr.long().cpu(), graph.col.long().cpu()
    degree = first.diff()
    steps = [torch.arange(graph.num_nodes).repeat(walks)]
    for _ in range(walk_length):
        node = steps[-1]
        drawn = torch.rand(len(node), generator=generator, dtype=torch.float64)
        edge = first[node] + (drawn * degree[node]).long()
        alone = degree[node] == 0
        # A graph without edges has no column to read.
        steps.append(torch.where(alone, node, col[edge.masked_fill(alone, 0)]) if len(col) else node)
    return steps
