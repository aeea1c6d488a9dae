"""Edge attention: the score of each edge (Eq. 1), from products per node and per relation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from magna.graph import Graph, as_graph
from magna.nn.init import attention_gain, fill_linear, fill_matrix, fill_vector
from magna.nn.linear import Linear
from magna.nn.norm import make_norm
from magna.nn.plain import is_plain
from magna.nn.sparse import SparseRows
from magna.ops import edge_scores, head_scores, linears
from magna.ops.reference import joined
from magna.typing import Backend, Init, Norm, Projection, one_of


def graph_at_door(
    x: Tensor | SparseRows,
    edges: Tensor | Graph,
    edge_type: Tensor | None,
    in_channels: int,
    num_relations: int | None,
) -> Graph:
    """What every module asks of its input, checked once; edges in PyG's words become a `Graph`."""
    if not isinstance(x, Tensor | SparseRows):
        hint = " (every hop starts where the last one ended: try data.to_homogeneous())" if type(x) is tuple else ""
        raise ValueError(f"x is a {type(x).__name__}; allowed: a torch.Tensor of all nodes{hint}")
    if x.dim() != 2 or x.size(1) != in_channels:
        raise ValueError(f"x has shape {list(x.shape)}; allowed: [num_nodes, {in_channels}] (in_channels)")
    if not x.is_floating_point():
        raise ValueError(f"x has dtype {x.dtype}; allowed: a floating type (try .float())")
    if isinstance(edges, Tensor | Graph) and edges.device != x.device:
        raise ValueError(f"x is on {x.device}, the edges on {edges.device}; move one with .to(device)")
    typed = edge_type is not None or (isinstance(edges, Graph) and edges.edge_type is not None)
    if typed and num_relations is None:
        raise ValueError("edge_type is given; allowed: only with num_relations at construction")
    if num_relations is not None and not typed:
        raise ValueError(f"edge_type is missing; allowed: one of 0 to {num_relations - 1} for each edge")
    graph = as_graph(edges, x.size(0), edge_type, num_relations)
    if num_relations is not None and graph.num_relations != num_relations:
        raise ValueError(
            f"the graph has num_relations={graph.num_relations}; allowed: {num_relations}, as the module was built "
            f"(try Graph.from_edge_index(…, num_relations={num_relations}))"
        )
    return graph


def check_size(name: str, value: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; allowed: an int, 1 and above")


class EdgeAttention(nn.Module):
    r"""Attention scores of edges with relation types (Eq. 1).

    .. math:: s_{i,k,j} = \mathrm{LeakyReLU}\left(v_a \tanh(W_h h_i \,\Vert\, W_t h_j \,\Vert\, W_r r_k)\right)

    The product with a concatenation is a sum of three products, so each is computed once per node or per relation and
    only the sums are formed per edge.

    Args:
        in_channels: width of the node features.
        head_channels: width of a head's projection.
        heads: number of heads, each with its own parameters.
        num_relations: number of edge types; None for a graph without types.
        relation_channels: width d_r of a relation's embedding; None: `in_channels`.
        relation_embedding: own an embedding per relation. False: it comes with each call as `relation`.
        relation_norm: norm on the relation embedding before W_r.
        projection: "separate": W_h and W_t as in the paper; "shared": one matrix for both.
        tanh: False leaves the tanh out, as GAT does.
        negative_slope: slope of LeakyReLU below zero.
        score_scale: factor on the scores. Below 1 the attention starts nearer to even weights and, where Adam moves all
            weights at one rate, learns that much more slowly than the rest.
        init: starting values, "glorot" or "official".

    Shapes: x [N, in_channels], relation [R, relation_channels] → [E, H], in the caller's edge order.

    >>> score = EdgeAttention(4, head_channels=8, heads=2)
    >>> score(torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([2, 2])
    """

    PER_TRIAL = ("negative_slope", "score_scale")

    def __init__(
        self,
        in_channels: int,
        head_channels: int,
        heads: int = 1,
        *,
        num_relations: int | None = None,
        relation_channels: int | None = None,
        relation_embedding: bool = True,
        relation_norm: Norm = "none",
        projection: Projection = "separate",
        tanh: bool = True,
        negative_slope: float = 0.2,
        score_scale: float = 1.0,
        init: Init = "glorot",
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        for name, size in (("in_channels", in_channels), ("head_channels", head_channels), ("heads", heads)):
            check_size(name, size)
        one_of("projection", projection, Projection)
        one_of("relation_norm", relation_norm, Norm)
        one_of("init", init, Init)
        one_of("backend", backend, Backend)
        if not negative_slope >= 0:
            raise ValueError(f"negative_slope is {negative_slope}; allowed: 0 and above")
        if not score_scale > 0:
            raise ValueError(f"score_scale is {score_scale}; allowed: above 0")
        self.in_channels, self.head_channels, self.heads = in_channels, head_channels, heads
        self.num_relations = num_relations
        self.projection: Projection = projection
        self.tanh = tanh
        self.negative_slope: float | Tensor = negative_slope
        self.score_scale: float | Tensor = score_scale
        self.init: Init = init
        self.backend: Backend = backend

        width = heads * head_channels
        self.source = Linear(in_channels, width, bias=False, backend=backend)
        self.target = None
        if projection == "separate":
            self.target = Linear(in_channels, width, bias=False, backend=backend)
        self.source_vector = nn.Parameter(torch.empty(heads, head_channels))
        self.target_vector = nn.Parameter(torch.empty(heads, head_channels))
        self.relation_table: nn.Parameter | None = None
        if num_relations is not None:
            check_size("num_relations", num_relations)
            self.relation_channels = in_channels if relation_channels is None else relation_channels
            check_size("relation_channels", self.relation_channels)
            if relation_embedding:
                self.relation_table = nn.Parameter(torch.empty(num_relations, self.relation_channels))
            self.relation_norm = make_norm(relation_norm, self.relation_channels, backend=backend)
            self.relation = Linear(self.relation_channels, width, bias=False, backend=backend)
            self.relation_vector = nn.Parameter(torch.empty(heads, head_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        gain = attention_gain(self.num_relations is not None)
        fill_linear(self.source, self.init, gain)
        if self.target is not None:
            fill_linear(self.target, self.init, gain)
        fill_vector(self.source_vector, self.init, gain)
        fill_vector(self.target_vector, self.init, gain)
        if self.num_relations is not None:
            fill_linear(self.relation, self.init, gain)
            fill_vector(self.relation_vector, self.init, gain)
        if self.relation_table is not None:
            fill_matrix(self.relation_table, self.init)

    def forward(
        self,
        x: Tensor | SparseRows,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None = None,
        relation: Tensor | None = None,
    ) -> Tensor:
        graph = graph_at_door(x, edge_index, edge_type, self.in_channels, self.num_relations)
        (ends,) = self.project(x)
        return self.scores(ends, graph, relation)

    def project(self, x: Tensor | SparseRows, *further: Linear) -> list[Tensor]:
        """W_h x and W_t x side by side, [N, 2H, head_channels], or [N, H, head_channels] where they share one matrix;
        and V x [N, H, ...] of further layers. All share one gradient of x.
        """
        ends = [self.source] if self.target is None else [self.source, self.target]
        groups = [ends, *([layer] for layer in further)]
        if isinstance(x, Tensor) and all(is_plain(layer, Linear) for group in groups for layer in group):
            outs = linears(x, [[layer.weight for layer in group] for group in groups], backend=self.backend)
        else:
            outs = [joined([layer(x) for layer in group], -1) for group in groups]
        heads = [self.heads * len(group) for group in groups]
        return [out.unflatten(-1, (number, -1)) for out, number in zip(outs, heads, strict=True)]

    def scores(self, ends: Tensor, graph: Graph, relation: Tensor | None = None) -> Tensor:
        """The scores of the edges from the nodes as `project` gives them."""
        vectors = self.source_vector, self.target_vector
        if self.target is None:
            source, target = (self._dot(ends, vector) for vector in vectors)
        else:
            source, target = self._dot(ends, torch.cat(vectors)).split(self.heads, 1)
        return edge_scores(
            source,
            target,
            graph,
            self._relation_scores(relation),
            negative_slope=self.negative_slope,
            backend=self.backend,
        )

    def _relation_scores(self, relation: Tensor | None) -> Tensor | None:
        if self.num_relations is None:
            if relation is not None:
                raise ValueError("relation is given; allowed: only with num_relations at construction")
            return None
        if relation is None:
            relation = self.relation_table
        if relation is None:
            raise ValueError("relation is missing; allowed: [R, relation_channels], as relation_embedding is False")
        if relation.shape != (self.num_relations, self.relation_channels):
            raise ValueError(
                f"relation has shape {list(relation.shape)}; allowed: {[self.num_relations, self.relation_channels]}"
            )
        if relation.device != self.relation_vector.device:
            here = self.relation_vector.device
            raise ValueError(f"relation is on {relation.device}, the layer on {here}; move one with .to(device)")
        projected = self.relation(self.relation_norm(relation)).unflatten(-1, (self.heads, -1))
        return self._dot(projected, self.relation_vector)

    def _dot(self, projected: Tensor, vector: Tensor) -> Tensor:
        # LeakyReLU behind the sum takes a positive factor through, so it may stand here, on the fewest numbers.
        if isinstance(self.score_scale, Tensor) or self.score_scale != 1:
            vector = vector * self.score_scale
        return head_scores(projected, vector, tanh=self.tanh, backend=self.backend)

    def extra_repr(self) -> str:
        typed = "" if self.num_relations is None else f", num_relations={self.num_relations}"
        return f"{self.in_channels}, {self.head_channels}, heads={self.heads}{typed}"
