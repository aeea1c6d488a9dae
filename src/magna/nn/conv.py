"""`MAGNAConv`: attention, diffusion over several hops, heads, output projection (Eqs. 1 to 6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from magna.config.layers import AttentionOptions, ConvOptions, ConvSettings, NamedOptions
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn.attention import EdgeAttention, check_size, graph_at_door
from magna.nn.dropout import draw_seed, is_zero
from magna.nn.edges import Edges, edges_with_loops
from magna.nn.hops import Hops
from magna.nn.linear import LAZY, LazyLinear, Linear, attention_gain, fill_linear, make_linear
from magna.nn.pyg import mask_holder, masked
from magna.nn.sparse import SparseRows, as_dense
from magna.ops import attention_diffusion, checks, edge_softmax
from magna.ops.checks import Rate
from magna.ops.gpu.linear import as_multiplied


class MAGNAConv(nn.Module):
    r"""Multi-hop attention layer (Eqs. 1 to 6), a drop-in for `GATConv`.

    .. math::
        \mathrm{out} = \Vert_m \sum_{k=0}^{K} \theta_k A_m^k H W_v^{(m)} + b

        \theta_k = \alpha (1 - \alpha)^k, \quad \theta_K = (1 - \alpha)^K

    :math:`A_m` is the softmax of the edge scores (:class:`EdgeAttention`) over the in-edges of each node. The defaults
    are those of a layer by itself: self-loops, a bias and few hops, as in `GATConv`'s place; :class:`MAGNABlock` has
    the paper's, with :math:`W_o` (`out_projection`). With `K=1, alpha=0, tanh=False, projection="shared"` the layer is
    `GATConv`.

    Every hop starts where the last one ended, so source and target are one set of nodes. In PyG's `HeteroConv` the
    layer serves edges between nodes of one type; for several types, use `data.to_homogeneous()` and `num_relations`.

    Args:
        in_channels: width of the node features; -1 takes that of the first features.
        out_channels: width of the output, all heads together.
        heads: number of attention heads.
        K, alpha, dropout, add_self_loops, bias: see :class:`magna.config.layers.NamedOptions`.
        num_relations: number of edge types; None for a graph without types.
        edge_dim: width of the features of an edge, which the score reads; None: edges have none.
        options: all other options, see :class:`magna.config.layers.ConvOptions`.
        flat: single options as keywords, such as `top_k=8`.

    Shapes: x [N, in_channels], edge_index [2, E], edge_type [E] → [N, out_channels].

    >>> conv = MAGNAConv(16, 32, heads=4, K=6, alpha=0.1, top_k=8)
    >>> conv
    MAGNAConv(16, 32, heads=4)
    >>> conv(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        *,
        K: int = NamedOptions.K,
        alpha: float = NamedOptions.alpha,
        dropout: float = NamedOptions.dropout,
        add_self_loops: bool = NamedOptions.add_self_loops,
        num_relations: int | None = None,
        edge_dim: int | None = None,
        bias: bool = NamedOptions.bias,
        options: ConvOptions | None = None,
        **flat: Any,
    ) -> None:
        super().__init__()
        named = {"K": K, "alpha": alpha, "dropout": dropout, "add_self_loops": add_self_loops, "bias": bias}
        flat |= {name: value for name, value in named.items() if value != getattr(NamedOptions, name)}
        if "concat" in flat:
            raise ArgumentError("concat", flat["concat"], "no such option: W_o joins the heads", "out_projection")
        settings = ConvSettings.of(options, flat)
        _check_sizes(in_channels, out_channels, heads, num_relations, settings)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.num_relations, self.options = num_relations, settings
        self.dropout: Rate = settings.dropout
        self.edge_dropout: Rate = settings.edge_dropout
        self.hops = Hops(heads, settings)
        self._edge_mask: tuple[nn.Module, ...] = ()  # of PyG's explainers; in a tuple, so that it is no submodule

        # Drawn in the order of these parts, then in that of `reset_parameters` (docs/explanation/determinism.md).
        split, backend = settings.head_form == "split", settings.backend
        width = out_channels // heads if split else in_channels
        relations = None if num_relations is None else num_relations + settings.add_self_loops
        scores = settings.part(AttentionOptions)
        self.attention = EdgeAttention(
            in_channels, width, heads, num_relations=relations, edge_dim=edge_dim, options=scores
        )
        self.value: Linear | None = None
        if split and settings.projection == "separate":
            self.value = make_linear(in_channels, out_channels, backend)
        self.out = make_linear(heads * width, out_channels, backend) if settings.out_projection else nn.Identity()
        self.bias = nn.Parameter(torch.empty(out_channels)) if settings.bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init, gain = self.options.init, attention_gain(self.num_relations is not None)
        self.attention.reset_parameters()
        if self.value is not None:
            fill_linear(self.value, init, gain)
        if isinstance(self.out, Linear):
            if init == "official" and self.options.projection == "shared":
                self.out.reset_parameters()  # the authors' code leaves this one at torch's values
            else:
                fill_linear(self.out, init, gain)
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
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_mask: Tensor | None = None,
        edge_seed: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool = False,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """The new features of each node.

        Args:
            x: node features.
            edge_index: int64 [2, E], row 0 the source; or a PyG `EdgeIndex`; or a `Graph`; or `adj_t`, a sparse matrix
                [N, N] with the targets as rows, whose values are not read. The same tensor is sorted once, and again
                after a change in place.
            edge_type: int64 [E], with `num_relations`.
            relation: relation embeddings in place of the layer's; `add_self_loops` adds a row for the loops.
            edge_weight: [E], a prior of 0 or more inside the attention: log w is added to the score, so that 1 changes
                nothing, 2 is the edge twice, and 0 is no edge. Loops that the layer adds have weight 1.
            edge_attr: [E, edge_dim], with `edge_dim`. Loops that the layer adds have zeros.
            edge_mask: bool [E] or [E, H], False where an edge is absent in this call.
            edge_seed: int64 [1], the seed of edge dropout; layers with the same seed leave out the same edges.
            size: (N, N), as PyG passes it.
            return_attention_weights: also return (edge_index, attention [E, H]), in the caller's order; the loops that
                the layer adds come last.
        """
        edges = self.door(x, edge_index, edge_type, edge_mask, edge_weight, edge_attr, size)
        graph, features = edges.graph, () if edges.attr is None else (edges.attr,)
        hops, seed = self.schedule(x.device)
        source, target, value = self.project(x)  # W_s h, W_t h, W_v h                       [N, H, D]
        scores = self.attention(source, target, graph, relation, *features)  # Eq. 1         [E, H]
        attention = self.softmax(scores, edges, seed if edge_seed is None else edge_seed)  # Eq. 2
        heads = self.diffuse(value, attention, graph, hops, seed)  # Eqs. 3 to 5             [N, H, D]
        out = self.out(heads.flatten(1))  # Eq. 6                                            [N, out_channels]
        out = out if self.bias is None else out + self.bias
        return (out, (graph.edge_index, attention)) if return_attention_weights else out

    def door(
        self,
        x: Tensor | SparseRows,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None,
        edge_mask: Tensor | None = None,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
    ) -> Edges:
        """The checked edges, with the loops that the layer adds."""
        graph = graph_at_door(x, edge_index, edge_type, self.in_channels, self.num_relations, size)
        if self.in_channels == LAZY:
            self._take_width(x)
        if edge_mask is not None:
            checks.mask("edge_mask", edge_mask, graph, self.heads)
        if edge_weight is not None:
            # On a GPU the values are not read, as the step would wait for them.
            checks.edge_weight(edge_weight, graph, validate=edge_weight.device.type == "cpu")
        edges = Edges(graph, edge_mask, edge_weight, edge_attr)
        return edges_with_loops(edges) if self.options.add_self_loops else edges

    def schedule(self, device: torch.device) -> tuple[dict[str, Any], Tensor | None]:
        """The arguments of the hops, and a seed if anything is dropped."""
        hops = self.hops()
        rates = self.dropout, self.edge_dropout, hops.get("feature_dropout", 0.0)
        return hops, draw_seed(device) if self.training and not all(map(is_zero, rates)) else None

    def project(self, x: Tensor | SparseRows) -> tuple[Tensor, Tensor, Tensor]:
        """W_s x, W_t x and W_v x by head, [N, H, D]; in head_form "full" the values are x itself."""
        source, target = self.attention.project(x)
        if self.options.head_form == "full":
            return source, target, as_multiplied(as_dense(x))[:, None].expand(-1, self.heads, -1)
        return source, target, source if self.value is None else self.value(x).unflatten(-1, (self.heads, -1))

    def softmax(self, scores: Tensor, edges: Edges, seed: Tensor | None) -> Tensor:
        """The attention of each edge among the in-edges of its target (Eq. 2)."""
        attention = edge_softmax(
            scores,
            edges.graph,
            edge_weight=edges.weight,
            mask=edges.mask,
            edge_dropout=self.edge_dropout if self.training else 0.0,
            edge_pairs=self.options.edge_pairs,
            top_k=self.options.top_k,
            top_k_shared=self.options.top_k_shared,
            seed=seed,
            backend=self.options.backend,
            validate=False,
        )
        return masked(attention, *self._edge_mask) if self._edge_mask else attention

    def diffuse(
        self, value: Tensor, attention: Tensor, graph: Graph, hops: dict[str, Any], seed: Tensor | None
    ) -> Tensor:
        """The values after all hops (Eqs. 3 to 5)."""
        dropout, backend = self.dropout if self.training else 0.0, self.options.backend
        options: dict[str, Any] = hops | {"dropout": dropout, "seed": seed, "backend": backend, "validate": False}
        return attention_diffusion(value, attention, graph, **options)

    def _take_width(self, x: Tensor | SparseRows) -> None:
        """Give the matrices of a lazy layer the width of x, unless loaded weights gave them one."""
        layers = [part for part in (*self.attention.modules(), self.value) if isinstance(part, LazyLinear)]
        new = any(layer.has_uninitialized_params() for layer in layers)
        for layer in layers:
            layer.initialize_parameters(x)
        self.in_channels = x.size(1)
        if new:
            self.reset_parameters()

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The layer and its parts; for PyG's explainers also a holder of masks for each hop, as they count these."""
        yield from super().named_modules(memo, prefix, remove_duplicate)
        if not self._edge_mask and (holder := mask_holder()) is not None:
            self._edge_mask = (holder,)
        for holder in self._edge_mask:
            yield from ((f"{prefix}._edge_mask.{hop}", holder) for hop in range(max(1, self.options.K)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_edge_mask": ()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _check_sizes(
    in_channels: int, out_channels: int, heads: int, num_relations: int | None, options: ConvSettings
) -> None:
    for name, value, most in (("out_channels", out_channels, 1 << 24), ("heads", heads, 4096)):
        check_size(name, value, most)
    if num_relations is not None:
        check_size("num_relations", num_relations, 1 << 40)
    if options.head_form == "split" and out_channels % heads:
        raise ArgumentError("out_channels", out_channels, f"a multiple of heads, {heads}")
    if in_channels == LAZY:
        if options.head_form == "full":
            raise ArgumentError("in_channels", in_channels, "a width with head_form 'full', as each head has it")
        if num_relations is not None and options.relation_channels is None:
            raise ArgumentError("in_channels", in_channels, "a width, unless relation_channels is set")
        return
    check_size("in_channels", in_channels)
    if options.head_form == "full" and not options.out_projection and out_channels != heads * in_channels:
        allowed = f"{heads * in_channels} (heads * in_channels), with head_form 'full' and out_projection False"
        raise ArgumentError("out_channels", out_channels, allowed, "out_projection=True")
