"""`MAGNAConv`: attention, diffusion over several hops, heads, output projection (Eq. 1 to 6)."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from magna.graph import Graph, durable
from magna.nn.attention import EdgeAttention, check_size, graph_at_door
from magna.nn.dropout import draw_seed, is_zero
from magna.nn.hops import Hops
from magna.nn.init import attention_gain, fill_linear
from magna.nn.linear import Linear
from magna.nn.plain import is_plain
from magna.nn.sparse import SparseRows, as_dense
from magna.ops import attention_diffusion, checks, edge_softmax
from magna.ops.checks import Rate
from magna.ops.gpu.linear import as_multiplied
from magna.typing import Backend, HeadForm, HopWeights, Init, Memory, Mode, Norm, Projection, one_of

_LOOPED: WeakKeyDictionary[Graph, Graph] = WeakKeyDictionary()


def add_self_loops(graph: Graph) -> Graph:
    """The graph with one loop for each node that has none, after the caller's edges; built once per graph.

    Where edges are typed the loops are a relation of their own, the last one.

    >>> add_self_loops(Graph.from_edge_index(torch.tensor([[0, 1], [1, 1]]), num_nodes=2)).edge_index.tolist()
    [[0, 1, 0], [1, 1, 0]]
    """
    if torch.compiler.is_compiling():
        raise ValueError("add_self_loops is True under torch.compile; allowed: False, on edges that have their loops")
    if graph not in _LOOPED:
        with durable():
            _LOOPED[graph] = _with_loops(graph)
    return _LOOPED[graph]


def _with_loops(graph: Graph) -> Graph:
    missing = (~graph.has_self_loop()).nonzero().squeeze(1)
    edge_index = torch.cat([graph.edge_index, missing.expand(2, -1)], dim=1)
    if graph.edge_type is None:
        return Graph.from_edge_index(edge_index, graph.num_nodes, validate=False)
    types = torch.cat([graph.edge_type, torch.full_like(missing, graph.num_relations)])
    return Graph.from_edge_index(edge_index, graph.num_nodes, types, graph.num_relations + 1, validate=False)


class MAGNAConv(nn.Module):
    r"""The multi-head graph attention diffusion layer (Eq. 1 to 6).

    .. math:: \mathrm{head}_m = \mathcal{A}_m V_m, \quad \mathcal{A}_m = \sum_{k=0}^{K} \theta_k A_m^k, \quad
              \mathrm{out} = \left(\Vert_m \mathrm{head}_m\right) W_o

    with A the softmax of the edge scores (:class:`EdgeAttention`) over the in-edges of each node. The graph is taken as
    it is. With K=1, alpha=0, tanh=False, projection="shared" and out_projection=False it is `GATConv`.

    Every hop starts where the last one ended, so that all nodes are of one kind: PyG's `HeteroConv` takes the layer for
    edges between nodes of one type, `to_hetero` does not know it; types that meet are `data.to_homogeneous()` with
    `num_relations`.

    Args:
        in_channels: width of the node features.
        out_channels: width of the output, all heads together.
        heads: number of attention heads.
        K: number of hops of truncated mode; 0 passes the values through.
        alpha: teleport probability; where it is learnt, the value it starts from.
        num_relations: number of edge types; None for a graph without types.
        relation_channels: width of a relation's embedding; None: `in_channels`.
        relation_embedding: own an embedding per relation. False: it comes with each call as `relation`.
        relation_norm: norm on the relation embedding, "none", "layer", "unbiased" or "batch".
        head_form: "split": heads of width out_channels / heads on a value projection; "full": the paper's heads, each
            the whole input without a value matrix.
        projection: "separate" matrices for source, target and value, or one "shared" by all.
        tanh: tanh inside the score (Eq. 1); GAT has none.
        negative_slope: slope of LeakyReLU below zero.
        score_scale: factor on the scores. Below 1 the attention starts nearer to even weights and, where Adam moves all
            weights at one rate, learns that much more slowly than the rest.
        hop_weights: "fixed": geometric with `alpha`; "alpha": geometric with a learnt alpha per head; "theta": free
            weights per head (Eq. 3), a softmax that starts from the geometric ones.
        mode: "truncated" (Eq. 5) or "exact", the whole series: another model, see `truncation_error`.
        tolerance: of the exact mode.
        memory: "save", "recompute" or "auto": what the backward pass keeps of the hops.
        dropout: on the attention, drawn anew for each hop.
        feature_dropout: on the features after each hop.
        edge_dropout: probability of leaving an edge out of the softmax; self-loops stay.
        edge_pairs: edges between the same two nodes are left out together.
        top_k: only the k best in-edges of each node get attention; None: all.
        top_k_shared: choose them by the mean score of all heads.
        add_self_loops: add a loop to each node that has none, as an extra relation where edges are typed.
        out_projection: W_o. False: the heads as they are.
        bias: add a bias to the output.
        init: starting values, "glorot" or "official".
        backend: "auto", "reference", "cpu" or "triton".

    Shapes: x [N, in_channels], edge_index [2, E], edge_type [E] → [N, out_channels].

    >>> conv = MAGNAConv(16, 32, heads=4, K=6, alpha=0.1)
    >>> conv(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 32])
    """

    PER_TRIAL = ("dropout", "edge_dropout")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        *,
        K: int = 6,
        alpha: float = 0.1,
        num_relations: int | None = None,
        relation_channels: int | None = None,
        relation_embedding: bool = True,
        relation_norm: Norm = "none",
        head_form: HeadForm = "split",
        projection: Projection = "separate",
        tanh: bool = True,
        negative_slope: float = 0.2,
        score_scale: float = 1.0,
        hop_weights: HopWeights = "fixed",
        mode: Mode = "truncated",
        tolerance: float = 1e-6,
        memory: Memory = "auto",
        dropout: float = 0.0,
        feature_dropout: float = 0.0,
        edge_dropout: float = 0.0,
        edge_pairs: bool = True,
        top_k: int | None = None,
        top_k_shared: bool = False,
        add_self_loops: bool = False,
        out_projection: bool = True,
        bias: bool = False,
        init: Init = "glorot",
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        for name, size in (("in_channels", in_channels), ("out_channels", out_channels), ("heads", heads)):
            check_size(name, size)
        one_of("head_form", head_form, HeadForm)
        one_of("memory", memory, Memory)
        if head_form == "split" and out_channels % heads:
            raise ValueError(
                f"out_channels is {out_channels}, heads is {heads}; allowed: heads that divide out_channels"
            )
        if head_form == "full" and not out_projection and out_channels != heads * in_channels:
            raise ValueError(
                f"out_channels is {out_channels}; allowed: {heads * in_channels} (heads * in_channels), as head_form "
                "is 'full' and out_projection False"
            )
        for name, rate in (
            ("dropout", dropout),
            ("feature_dropout", feature_dropout),
            ("edge_dropout", edge_dropout),
        ):
            checks.active(name, rate, 1)
        if top_k is not None:
            checks.top_k(top_k)
        checks.hops(K)
        checks.tolerance(tolerance)
        if num_relations is not None:
            check_size("num_relations", num_relations)
        _check_hop_weights(hop_weights, mode, alpha, dropout, feature_dropout)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.num_relations = num_relations
        self.head_form: HeadForm = head_form
        self.memory: Memory = memory
        self.dropout: Rate = dropout
        self.edge_dropout: Rate = edge_dropout
        self.edge_pairs = edge_pairs
        self.top_k, self.top_k_shared = top_k, top_k_shared
        self.add_self_loops = add_self_loops
        self.init: Init = init
        self.backend: Backend = backend

        width = out_channels // heads if head_form == "split" else in_channels
        self.hops = Hops(heads, K, alpha, hop_weights, mode, tolerance, feature_dropout)
        self.attention = EdgeAttention(
            in_channels,
            width,
            heads,
            num_relations=None if num_relations is None else num_relations + add_self_loops,
            relation_channels=relation_channels,
            relation_embedding=relation_embedding,
            relation_norm=relation_norm,
            projection=projection,
            tanh=tanh,
            negative_slope=negative_slope,
            score_scale=score_scale,
            init=init,
            backend=backend,
        )
        separate_value = head_form == "split" and projection == "separate"
        self.value = Linear(in_channels, out_channels, bias=False, backend=backend) if separate_value else None
        self.out = Linear(heads * width, out_channels, bias=False, backend=backend) if out_projection else None
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        gain = attention_gain(self.num_relations is not None)
        self.attention.reset_parameters()
        if self.value is not None:
            fill_linear(self.value, self.init, gain)
        if self.out is not None:
            if self.init == "official" and self.attention.projection == "shared":
                self.out.reset_parameters()  # the authors' code leaves this one at torch's own values
            else:
                fill_linear(self.out, self.init, gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.hops.reset_parameters()

    def forward(
        self,
        x: Tensor | SparseRows,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None = None,
        relation: Tensor | None = None,
        *,
        edge_mask: Tensor | None = None,
        edge_seed: Tensor | None = None,
        return_attention_weights: bool = False,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """The new features of each node.

        Args:
            x: node features.
            edge_index: int64 [2, E], row 0 the source; a PyG `EdgeIndex`; or a `Graph`, which is sorted already. The
                same tensor is sorted once, and anew where torch changed it in place.
            edge_type: int64 [E], with `num_relations`.
            relation: relation embeddings in place of the layer's own, a row more than `num_relations` with
                `add_self_loops`.
            edge_mask: bool [E] or [E, H], False where an edge is absent in this call.
            edge_seed: int64 [1], the seed of edge dropout, for layers that are to leave out the same edges.
            return_attention_weights: also give (edge_index, attention [E, H]), in the caller's order.
        """
        graph = graph_at_door(x, edge_index, edge_type, self.in_channels, self.num_relations)
        if edge_mask is not None:
            checks.mask("edge_mask", edge_mask, graph, self.heads)
        if self.add_self_loops:
            num_edges, graph = graph.num_edges, add_self_loops(graph)
            if edge_mask is not None:
                loops = edge_mask.new_ones(graph.num_edges - num_edges, *edge_mask.shape[1:])
                edge_mask = torch.cat([edge_mask, loops])
        hops = self.hops()
        rates = self.dropout, self.edge_dropout, hops.get("feature_dropout", 0.0)
        seed = draw_seed(x.device) if self.training and not all(map(is_zero, rates)) else None
        if is_plain(self.attention, EdgeAttention):
            ends, values = self._project(x)
            scores = self.attention.scores(ends, graph, relation)
        else:
            scores, values = self.attention(x, graph, relation=relation), self._values(x)
        attention = edge_softmax(
            scores,
            graph,
            mask=edge_mask,
            edge_dropout=self.edge_dropout if self.training else 0.0,
            edge_pairs=self.edge_pairs,
            top_k=self.top_k,
            top_k_shared=self.top_k_shared,
            seed=seed if edge_seed is None else edge_seed,
            backend=self.backend,
            validate=False,
        )
        z = attention_diffusion(
            values,
            attention,
            graph,
            **hops,
            memory=self.memory,
            dropout=self.dropout if self.training else 0.0,
            seed=seed,
            backend=self.backend,
            validate=False,
        ).flatten(1)
        out = z if self.out is None else self.out(z)
        if self.bias is not None:
            out = out + self.bias
        return (out, (graph.edge_index, attention)) if return_attention_weights else out

    def _project(self, x: Tensor | SparseRows) -> tuple[Tensor, Tensor]:
        """What edges are scored by at both of their ends, and the values [N, H, ...]."""
        further = [] if self.value is None else [self.value]
        ends, *values = self.attention.project(x, *further)
        return ends, self._values(x, values[0] if values else ends)

    def _values(self, x: Tensor | SparseRows, projected: Tensor | None = None) -> Tensor:
        """The values [N, H, ...]; `projected` where their matrix was applied already."""
        if self.head_form == "full":
            return as_multiplied(as_dense(x))[:, None].expand(-1, self.heads, -1)
        if projected is not None:
            return projected
        layer = self.attention.source if self.value is None else self.value
        return layer(x).unflatten(-1, (self.heads, -1))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}, {self.hops.extra_repr()}"


def _check_hop_weights(
    hop_weights: HopWeights, mode: Mode, alpha: float, dropout: float, feature_dropout: float
) -> None:
    one_of("hop_weights", hop_weights, HopWeights)
    one_of("mode", mode, Mode)
    checks.alpha(alpha, 1, True, above_zero=mode == "exact")
    if hop_weights != "fixed" and not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; allowed with hop_weights={hop_weights!r}: between 0 and 1, both excluded")
    if mode == "exact":
        if hop_weights == "theta":
            raise ValueError("hop_weights is 'theta'; allowed with mode='exact': 'fixed' or 'alpha'")
        if dropout or feature_dropout:
            raise ValueError(
                f"dropout is {dropout} and feature_dropout {feature_dropout}; allowed with mode='exact': 0"
            )
