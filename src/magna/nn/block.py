"""`MAGNABlock`: attention diffusion and feed-forward, each behind a norm and beside a residual (Eq. 6 and 7)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import elu

from magna.graph import Graph
from magna.nn.attention import check_size, graph_at_door
from magna.nn.conv import MAGNAConv
from magna.nn.dropout import Dropout, Held, hold
from magna.nn.init import FEED_FORWARD_GAIN, attention_gain, fill_linear
from magna.nn.linear import Linear
from magna.nn.norm import NormLayer, add, add_norm, make_norm
from magna.nn.options import complete
from magna.nn.plain import is_plain
from magna.ops import feed_forward
from magna.typing import Norm

NO_DIFFUSION = {"K": 1, "alpha": 0.0, "hop_weights": "fixed", "mode": "truncated"}


class MAGNABlock(nn.Module):
    r"""A block of MAGNA (Eq. 6 and 7).

    .. math:: \hat H &= \mathrm{MultiHead}(G, \mathrm{LN}(H)) + H \\
              H' &= W_2\,\mathrm{ReLU}(W_1\,\mathrm{LN}(\hat H)) + \hat H

    Args:
        in_channels: width of the node features.
        out_channels: width of the output; where it differs, a matrix takes the residual there.
        heads: number of attention heads.
        norm: "layer", "unbiased" (the authors'), "batch" (each channel over all nodes) or "none" (the ablation).
        norm_eps: eps of the norms; None: 1e-6 for "unbiased", else 1e-5.
        residual: False: the output of the attention alone, without H beside it.
        feed_forward: False: elu in its place (the ablation).
        ffn_multiplier: inner width of the feed-forward network over `out_channels`.
        diffusion: False: one hop of attention alone (the ablation).
        input_dropout: on the normed features, before the attention.
        output_dropout: on the output of the attention, before the residual is added.
        residual_dropout: on the residual, before its matrix.
        ffn_dropout: between the two layers of the feed-forward network.
        ffn_output_dropout: on the output of the feed-forward network, before the residual is added.
        conv_options: every keyword option of :class:`MAGNAConv`.

    Shapes: x [N, in_channels], edge_index [2, E], edge_type [E] → [N, out_channels].

    >>> import torch
    >>> block = MAGNABlock(16, 32, heads=4, K=3, alpha=0.2, output_dropout=0.5)
    >>> block(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 8,
        *,
        norm: Norm = "layer",
        norm_eps: float | None = None,
        residual: bool = True,
        feed_forward: bool = True,
        ffn_multiplier: int = 4,
        diffusion: bool = True,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
        residual_dropout: float = 0.0,
        ffn_dropout: float = 0.0,
        ffn_output_dropout: float = 0.0,
        **conv_options: Any,
    ) -> None:
        super().__init__()
        options = complete(conv_options, MAGNAConv)
        if not diffusion:
            options |= NO_DIFFUSION
        self.conv = MAGNAConv(in_channels, out_channels, heads, **options)

        def dropout(name: str, p: float) -> Dropout:
            return Dropout(p, name=name, backend=self.conv.backend)

        backend = self.conv.backend
        self.norm: NormLayer = make_norm(norm, in_channels, norm_eps, backend)
        self.input_dropout = dropout("input_dropout", input_dropout)
        self.output_dropout = dropout("output_dropout", output_dropout)
        self.residual_dropout = dropout("residual_dropout", residual_dropout)
        self.residual: nn.Module | None = None
        if not residual and residual_dropout > 0:
            raise ValueError(f"residual_dropout is {residual_dropout}; allowed: 0 for a block without residual")
        if residual:
            same = in_channels == out_channels
            self.residual = nn.Identity() if same else Linear(in_channels, out_channels, bias=False, backend=backend)
        self.ffn_norm: NormLayer | None = None
        self.ffn: nn.Sequential | None = None
        if feed_forward:
            check_size("ffn_multiplier", ffn_multiplier)
            self.ffn_norm = make_norm(norm, out_channels, norm_eps, backend)
            self.ffn = nn.Sequential(
                Linear(out_channels, ffn_multiplier * out_channels, relu=True, backend=backend),
                nn.Identity(),  # keeps the numbers that saved models have
                dropout("ffn_dropout", ffn_dropout),
                Linear(ffn_multiplier * out_channels, out_channels, backend=backend),
                dropout("ffn_output_dropout", ffn_output_dropout),
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init = self.conv.init
        self.conv.reset_parameters()
        for norm in (self.norm, self.ffn_norm):
            if norm is not None and not isinstance(norm, nn.Identity):
                norm.reset_parameters()
        if isinstance(self.residual, nn.Linear):
            fill_linear(self.residual, init, attention_gain(self.conv.num_relations is not None))
        for layer in self.ffn or ():
            if isinstance(layer, nn.Linear):
                fill_linear(layer, init, FEED_FORWARD_GAIN)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None = None,
        relation: Tensor | None = None,
        *,
        edge_mask: Tensor | None = None,
        edge_seed: Tensor | None = None,
    ) -> Tensor:
        """The block's output; the arguments are those of :meth:`MAGNAConv.forward`."""
        graph = graph_at_door(x, edge_index, edge_type, self.conv.in_channels, self.conv.num_relations)
        return add(*self.step(x, None, graph, relation=relation, edge_mask=edge_mask, edge_seed=edge_seed))

    def step(
        self, x: Tensor | Held, beside: Tensor | None, graph: Graph, **call: Any
    ) -> tuple[Tensor | Held, Tensor | None]:
        """The block on x + beside; its own last addition, and dropout, are left to whoever is next, as two such."""
        x, normed = add_norm(x, beside, self.norm, self.input_dropout)
        attended = hold(self.conv(normed, graph, **call), self.output_dropout)
        kept = None if self.residual is None else self.residual(self.residual_dropout(x))
        if self.ffn is None or self.ffn_norm is None:
            return elu(add(attended, kept)), None
        h, normed = add_norm(attended, kept, self.ffn_norm)
        return self._feed_forward(normed), h

    def _feed_forward(self, x: Tensor) -> Tensor | Held:
        assert self.ffn is not None
        if not is_plain(self.ffn, nn.Sequential):
            return self.ffn(x)
        first, same, between, second, last = self.ffn
        drops = not is_plain(between, Dropout) or between.drops
        if is_plain(first, Linear) and is_plain(second, Linear) and not drops:
            x = feed_forward(x, first.weight, first.bias, second.weight, second.bias, backend=first.backend)
        else:
            x = second(between(same(first(x))))
        return hold(x, last)
