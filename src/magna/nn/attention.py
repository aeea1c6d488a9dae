"""`EdgeAttention`: the score of each edge (Eq. 1), from products per node and per relation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from magna.config.layers import AttentionOptions
from magna.config.options import HUGE
from magna.errors import ArgumentError
from magna.graph import Graph, as_graph
from magna.nn.linear import LAZY, attention_gain, fill_linear, fill_matrix, fill_vector, make_linear
from magna.nn.norm import make_norm
from magna.nn.sparse import SparseRows
from magna.ops import checks, edge_scores, head_scores

_ONE_SET = "every hop starts where the last one ended, so source and target are one set of nodes"


def graph_at_door(
    x: Tensor | SparseRows,
    edges: Tensor | Graph,
    edge_type: Tensor | None,
    in_channels: int,
    num_relations: int | None,
    size: tuple[int, int] | None = None,
) -> Graph:
    """The graph of a module's input, after its checks."""
    if not isinstance(x, Tensor | SparseRows):
        hint = f" ({_ONE_SET}; try data.to_homogeneous())" if isinstance(x, tuple) else ""
        raise ArgumentError("x", type(x), f"a torch.Tensor of all nodes{hint}")
    if x.dim() != 2 or x.size(1) != in_channels != LAZY:
        width = "in_channels" if in_channels == LAZY else f"{in_channels}"
        raise ArgumentError("x", x, f"[num_nodes, {width}] (in_channels)")
    if not x.is_floating_point():
        raise ArgumentError("x", x, "a floating type", ".float()")
    if size is not None and tuple(size) != (x.size(0), x.size(0)):
        raise ArgumentError("size", tuple(size), f"({x.size(0)}, {x.size(0)}), as {_ONE_SET}")
    if isinstance(edges, Tensor | Graph) and edges.device != x.device:
        raise ArgumentError("x", x, f"a tensor on {edges.device}, as the edges", ".to(device)")
    typed = edge_type is not None or (isinstance(edges, Graph) and edges.edge_type is not None)
    if typed and num_relations is None:
        raise ArgumentError("edge_type", edge_type, "only with num_relations at construction")
    if num_relations is not None and not typed:
        raise ArgumentError("edge_type", edge_type, f"one of 0 to {num_relations - 1} for each edge")
    graph = as_graph(edges, x.size(0), edge_type, num_relations)
    if num_relations is not None and graph.num_relations != num_relations:
        hint = f"Graph.from_edge_index(…, num_relations={num_relations})"
        allowed = f"{num_relations}, as the module was built"
        raise ArgumentError("num_relations of the graph", graph.num_relations, allowed, hint)
    return graph


def check_size(name: str, value: Any, most: int = HUGE) -> None:
    """Refuse a size that is no count, or one that nobody can mean."""
    if isinstance(value, tuple):
        raise ArgumentError(name, value, f"one width, as {_ONE_SET}")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ArgumentError(name, value, f"a whole number from 1 to {most}")


class EdgeAttention(nn.Module):
    r"""Attention scores of edges with relation types (Eq. 1).

    .. math:: s_{i,k,j} = \mathrm{LeakyReLU}\left(v_a \tanh(W_h h_i \,\Vert\, W_t h_j \,\Vert\, W_r r_k)\right)

    The product with a concatenation is a sum of three products. Each is computed once per node or per relation; only
    the sums are formed per edge.

    Args:
        in_channels: width of the node features.
        head_channels: width of a head's projection.
        heads: number of heads, each with separate parameters.
        num_relations: number of edge types; None for a graph without types.
        edge_dim: width of the features of an edge, a further part of the concatenation; None: edges have none.
        options: the options of the scores, see :class:`magna.config.layers.AttentionOptions`.
        flat: single options as keywords, such as `tanh=False`.

    Shapes: source and target [N, H, head_channels], relation [R, relation_channels], edge_attr [E, edge_dim] → [E, H],
    in the caller's order.

    >>> attention = EdgeAttention(4, head_channels=8, heads=2, tanh=False)
    >>> source, target = attention.project(torch.randn(3, 4))
    >>> attention(source, target, Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        in_channels: int,
        head_channels: int,
        heads: int = 1,
        *,
        num_relations: int | None = None,
        edge_dim: int | None = None,
        options: AttentionOptions | None = None,
        **flat: Any,
    ) -> None:
        super().__init__()
        options = AttentionOptions.of(options, flat)
        if in_channels != LAZY:
            check_size("in_channels", in_channels)
        check_size("head_channels", head_channels)
        check_size("heads", heads, 4096)
        self.options, self.heads, self.head_channels = options, heads, head_channels
        self.num_relations, self.edge_dim = num_relations, edge_dim
        self.negative_slope: float | Tensor = options.negative_slope
        self.score_scale: float | Tensor = options.score_scale

        width, backend = heads * head_channels, options.backend
        self.source = make_linear(in_channels, width, backend)
        self.target = make_linear(in_channels, width, backend) if options.projection == "separate" else None
        self.source_vector = nn.Parameter(torch.empty(heads, head_channels))
        self.target_vector = nn.Parameter(torch.empty(heads, head_channels))
        self.relation_table: nn.Parameter | None = None
        if num_relations is not None:
            self._add_relations(num_relations, options.relation_channels or in_channels, width)
        if edge_dim is not None:
            check_size("edge_dim", edge_dim)
            self.edge = make_linear(edge_dim, width, backend)
            self.edge_vector = nn.Parameter(torch.empty(heads, head_channels))
        self.reset_parameters()

    def _add_relations(self, num_relations: int, channels: int, width: int) -> None:
        check_size("num_relations", num_relations, 1 << 40)
        check_size("relation_channels", channels)
        self.relation_channels = channels
        if self.options.relation_embedding:
            self.relation_table = nn.Parameter(torch.empty(num_relations, channels))
        self.relation_norm = make_norm(self.options.relation_norm, channels, backend=self.options.backend)
        self.relation = make_linear(channels, width, self.options.backend)
        self.relation_vector = nn.Parameter(torch.empty(self.source_vector.shape))

    def reset_parameters(self) -> None:
        init, gain = self.options.init, attention_gain(self.num_relations is not None)
        fill_linear(self.source, init, gain)
        if self.target is not None:
            fill_linear(self.target, init, gain)
        fill_vector(self.source_vector, init, gain)
        fill_vector(self.target_vector, init, gain)
        if self.num_relations is not None:
            fill_linear(self.relation, init, gain)
            fill_vector(self.relation_vector, init, gain)
        if self.relation_table is not None:
            fill_matrix(self.relation_table, init)
        if self.edge_dim is not None:
            fill_linear(self.edge, init, gain)
            fill_vector(self.edge_vector, init, gain)

    def project(self, x: Tensor | SparseRows) -> tuple[Tensor, Tensor]:
        """W_h x and W_t x, [N, H, head_channels] each."""
        source: Tensor = self.source(x).unflatten(-1, (self.heads, -1))
        return source, source if self.target is None else self.target(x).unflatten(-1, (self.heads, -1))

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        graph: Graph,
        relation: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Scores of the edges; see :meth:`project`."""
        ends = source if self.target is None else torch.cat([source, target], 1)
        return self.scores(ends, graph, relation, edge_attr)

    def scores(
        self, ends: Tensor, graph: Graph, relation: Tensor | None = None, edge_attr: Tensor | None = None
    ) -> Tensor:
        """Scores of the edges from W_h x and W_t x joined, [N, 2H, head_channels], or from one matrix, [N, H, …]."""
        vectors = self.source_vector, self.target_vector
        if self.target is None:
            source, target = (self._dot(ends, vector) for vector in vectors)
        else:
            source, target = self._dot(ends, torch.cat(vectors)).chunk(2, 1)
        further = self._relation_scores(relation), self._edge_scores(edge_attr, graph)
        slope, backend = self.negative_slope, self.options.backend
        return edge_scores(source, target, graph, *further, negative_slope=slope, backend=backend)

    def _edge_scores(self, edge_attr: Tensor | None, graph: Graph) -> Tensor | None:
        if self.edge_dim is None:
            if edge_attr is not None:
                raise ArgumentError("edge_attr", edge_attr, "only with edge_dim at construction")
            return None
        checks.alike("edge_attr", edge_attr, None, [graph.num_edges, self.edge_dim], graph.device, "a row per edge")
        return self._dot(self.edge(edge_attr).unflatten(-1, (self.heads, -1)), self.edge_vector)

    def _relation_scores(self, relation: Tensor | None) -> Tensor | None:
        if self.num_relations is None:
            if relation is not None:
                raise ArgumentError("relation", relation, "only with num_relations at construction")
            return None
        if relation is None:
            relation = self.relation_table
        if relation is None:
            raise ArgumentError("relation", None, "[R, relation_channels], as relation_embedding is False")
        if relation.shape != (self.num_relations, self.relation_channels):
            raise ArgumentError("relation", relation, f"{[self.num_relations, self.relation_channels]}")
        if relation.device != (device := self.relation_vector.device):
            raise ArgumentError("relation", relation, f"a tensor on {device}, as the layer", ".to(device)")
        projected = self.relation(self.relation_norm(relation)).unflatten(-1, (self.heads, -1))
        return self._dot(projected, self.relation_vector)

    def _dot(self, projected: Tensor, vector: Tensor) -> Tensor:
        # LeakyReLU after the sum passes a positive factor through, so it multiplies the smallest tensor.
        if isinstance(self.score_scale, Tensor) or self.score_scale != 1:
            vector = vector * self.score_scale
        return head_scores(projected, vector, tanh=self.options.tanh, backend=self.options.backend)

    def extra_repr(self) -> str:
        typed = "" if self.num_relations is None else f", num_relations={self.num_relations}"
        return f"{self.source.in_features}, {self.head_channels}, heads={self.heads}{typed}"
