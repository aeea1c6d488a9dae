"""`GraphUNet`: Graph U-Nets (Gao & Ji 2019, arXiv 1905.05178)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from magna.baselines.nodes.base import NodeBaseline, NodeBaselineOptions
from magna.baselines.nodes.propagation import once_per_graph, several_hops
from magna.config.options import HUGE, option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.dropout import Dropout, draw_seed
from magna.nn.linear import Linear
from magna.nn.sparse import SparseRows

SELF_WEIGHT = 2.0  # of the loops: the paper's Â = A + 2 I


@dataclass(frozen=True, kw_only=True)
class GraphUNetOptions(NodeBaselineOptions):
    """Options of :class:`GraphUNet`."""

    num_layers: int = option(4, "Number of poolings, and of unpoolings.", low=1, high=4096)
    pool_nodes: int = option(2000, "Nodes after the first pooling, at most all.", low=1, high=HUGE)
    pool_ratio: float = option(0.5, "Share of the nodes that each further pooling keeps.", above=0, high=1)
    activation: Literal["relu", "none"] = option("none", "Function after each hidden convolution.")
    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)
    input_dropout: float = option(0.0, "Dropout on the input of the output layer.", low=0, below=1, per_trial=True)
    edge_dropout: float = option(
        0.0, "Dropout on the edges of the whole graph, drawn anew in each convolution.", low=0, below=1
    )


class Looped(NamedTuple):
    """A graph with one loop of weight 2 on each node, normalised, and A² of the graph with loops of weight 1."""

    graph: Graph
    weight: Tensor  # [E', 1]
    source: Tensor  # [E2], of the entries of A² outside its diagonal
    target: Tensor  # [E2]
    paths: Tensor  # [E2], their values


@node_model("g-u-nets", GraphUNetOptions)
class GraphUNet(NodeBaseline):
    r"""Graph U-Net: convolve and pool to ever fewer nodes, then unpool and convolve back, with sums over the gap.

    .. math:: X^{(l)} = \mathrm{GCN}(X' \odot \sigma(y_I) 1^\top, A^{(l)}), \quad
              A^{(l)} = \left(A^{(l-1)} A^{(l-1)}\right)_{I, I}, \quad
              y = X^{(l-1)} p / \lVert p \rVert, \quad I = \mathrm{top}_k(y), \quad X' = X^{(l-1)}_I

    On the way back :math:`\mathrm{GCN}(X^{(l-1)} + \mathrm{distribute}(X, I), A^{(l-1)})`, where nodes outside of I get
    zeros. GCN is :math:`D^{-1/2} (A + 2 I) D^{-1/2} X W + b`. The squares are those of A + I, without their diagonal.
    The model makes its loops: those of the data do nothing. The sizes of the pooled graphs do not depend on the
    features, and their adjacency is dense, so that trials train in one batch: `pool_nodes` ² numbers each.

    It takes every option of :class:`GraphUNetOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = GraphUNet(16, 3, hidden_channels=32, num_layers=2, pool_nodes=2)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: GraphUNetOptions

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = GraphUNetOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        hidden, depth = chosen.hidden_channels, chosen.num_layers
        self.embed_dropout = Dropout(chosen.embed_dropout, backend=chosen.backend)
        sizes = [(in_channels, hidden)] + [(hidden, hidden)] * (2 * depth) + [(hidden, out_channels)]
        # The embedding, the way down, the way up, the output.
        self.layers = nn.ModuleList(Linear(*size, bias=False, backend=chosen.backend) for size in sizes)
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(size)) for _, size in sizes)
        self.projections = nn.Parameter(torch.empty(depth, hidden))
        self.act: nn.Module = nn.ReLU() if chosen.activation == "relu" else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.xavier_uniform_(self.projections)

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor | Graph) -> Tensor:
        whole, depth = looped(self.graph(x, edge_index)), self.options.num_layers
        h = self.act(self._convolved(0, self.embed_dropout(x), whole))
        levels: list[tuple[Tensor, Looped | Tensor, Tensor]] = []
        adjacency: Looped | Tensor = whole
        for number in range(1, depth + 1):
            gate, chosen = _pooled(h, self.projections[number - 1], self._size(number, whole.graph.num_nodes))
            levels.append((h, adjacency, chosen))
            adjacency = _squared(adjacency, chosen, h)
            h = self.act(self._convolved(number, h.index_select(0, chosen) * gate, adjacency))
        for number in range(depth + 1, 2 * depth + 1):
            skipped, adjacency, chosen = levels.pop()
            h = self.act(self._convolved(number, skipped.index_add(0, chosen, h), adjacency))
        return self._convolved(2 * depth + 1, self.input_dropout(h), whole)

    def _size(self, number: int, num_nodes: int) -> int:
        """Nodes after a pooling."""
        size = min(self.options.pool_nodes, num_nodes)
        for _ in range(number - 1):
            size = math.ceil(self.options.pool_ratio * size)
        return size

    def _convolved(self, number: int, x: Tensor | SparseRows, adjacency: Looped | Tensor) -> Tensor:
        h: Tensor = self.layers[number](x)
        bias: Tensor = self.biases[number]
        if isinstance(adjacency, Looped):
            rate = self.options.edge_dropout if self.training else 0.0
            hops: dict[str, Any] = {"K": 1, "alpha": 0.0, "dropout": rate}
            hops["seed"] = draw_seed(h.device) if rate > 0 else None
            weight = adjacency.weight.to(h.dtype)
            out = several_hops(h, weight, adjacency.graph, self.options.backend, **hops)
        else:
            scale = (adjacency.sum(1) + SELF_WEIGHT).rsqrt()[:, None]
            scaled = scale * h
            out = scale * (adjacency @ scaled + SELF_WEIGHT * scaled)
        return out + bias


@once_per_graph
def looped(graph: Graph) -> Looped:
    """The parts of a graph that do not depend on features; its own loops are left out, as each node gets one."""
    size, node = graph.num_nodes, torch.arange(graph.num_nodes, device=graph.device)
    edges = graph.edge_index[:, graph.source != graph.target]
    made = Graph.from_edge_index(torch.cat([edges, node.expand(2, -1)], dim=1), size, validate=False)
    # Every edge is followed by each in-edge of its source: the entries of A² count these paths.
    first, degree = made.rowptr.long()[:-1], made.rowptr.long().diff()
    edge = torch.repeat_interleave(degree[made.source])
    step = torch.arange(len(edge), device=graph.device) - (degree[made.source].cumsum(0) - degree[made.source])[edge]
    before = made.col.long()[first[made.source][edge] + step]
    place, paths = (made.target[edge] * size + before).unique(return_counts=True)
    target, source = place // size, place % size
    outside = target != source
    weight = torch.where(made.source == made.target, SELF_WEIGHT, 1.0)
    scale = torch.zeros(size, device=graph.device).index_add(0, made.target, weight).rsqrt()
    weight = (scale[made.target] * weight * scale[made.source])[:, None]
    return Looped(made, weight, source[outside], target[outside], paths[outside])


def _pooled(h: Tensor, projection: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Gates [size, 1] and numbers [size] of the nodes with the largest scores."""
    best = (h @ (projection / projection.norm())).topk(size)
    return best.values.sigmoid()[:, None], best.indices


@torch.no_grad()
def _squared(adjacency: Looped | Tensor, chosen: Tensor, like: Tensor) -> Tensor:
    """A² among the chosen nodes without its diagonal, A with loops, [size, size]."""
    size = len(chosen)
    if isinstance(adjacency, Tensor):
        # (A + I)² = A² + 2 A + I, and the diagonal is left out.
        rows = adjacency.index_select(0, chosen)
        square = rows @ adjacency.index_select(1, chosen) + 2 * rows.index_select(1, chosen)
    else:
        # Place of each node among the chosen ones; the others share one more row and column.
        place = chosen.new_full((adjacency.graph.num_nodes,), size)
        place = place.index_put((chosen,), torch.arange(size, device=chosen.device))
        entry = place[adjacency.target] * (size + 1) + place[adjacency.source]
        square = like.new_zeros((size + 1) ** 2).index_put((entry,), adjacency.paths.to(like.dtype))
        square = square.unflatten(0, (size + 1, size + 1))[:size, :size]
    return square * (1 - torch.eye(size, dtype=square.dtype, device=square.device))
