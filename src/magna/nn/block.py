"""`MAGNABlock`: attention diffusion and feed-forward, each after a norm and with a residual (Eqs. 6 and 7)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from magna.config.layers import BlockOptions, ConvOptions, MAGNAOptions, NamedOptions
from magna.graph import Graph
from magna.nn.attention import graph_at_door
from magna.nn.conv import MAGNAConv
from magna.nn.dropout import Dropout
from magna.nn.linear import FEED_FORWARD_GAIN, Linear, attention_gain, fill_linear
from magna.nn.norm import make_norm, reset_norm
from magna.typing import Init


class MAGNABlock(nn.Module):
    r"""A block of MAGNA (Eqs. 6 and 7).

    .. math:: \hat H &= \mathrm{MultiHead}(G, \mathrm{LN}(H)) + H \\
              H' &= W_2\,\mathrm{ReLU}(W_1\,\mathrm{LN}(\hat H)) + \hat H

    Args:
        in_channels: width of the node features.
        out_channels: width of the output; if it differs, a matrix maps the residual to it.
        heads: number of attention heads.
        num_relations: number of edge types; None for a graph without types.
        edge_dim: width of the features of an edge; None: edges have none.
        options: all other options, see :class:`magna.config.layers.BlockOptions`.
        flat: single options as keywords, such as `output_dropout=0.5`.

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
        heads: int = MAGNAOptions.heads,
        *,
        num_relations: int | None = None,
        edge_dim: int | None = None,
        options: BlockOptions | None = None,
        **flat: Any,
    ) -> None:
        super().__init__()
        self.options = options = BlockOptions.of(options, flat)
        backend, applied = options.backend, options.applied()
        named: dict[str, Any] = {name: getattr(options, name) for name in NamedOptions.options() if name in applied}
        if not options.diffusion:
            named |= {"K": 1, "alpha": 0.0}
        named |= {"num_relations": num_relations, "edge_dim": edge_dim}
        self.conv = MAGNAConv(in_channels, out_channels, heads, options=options.part(ConvOptions), **named)
        self.norm = make_norm(options.norm, in_channels, options.norm_eps, backend)
        self.input_dropout = Dropout(options.input_dropout, backend=backend)
        self.output_dropout = Dropout(options.output_dropout, backend=backend)
        self.residual_dropout = Dropout(options.residual_dropout, backend=backend)
        self.residual: nn.Module = nn.Identity()
        if not options.residual:
            self.residual = Zero()
        elif in_channels != out_channels:
            self.residual = Linear(in_channels, out_channels, bias=False, backend=backend)
        self.feed_forward = FeedForward(out_channels, options) if options.feed_forward else nn.ELU()
        # Drawn in the order of these parts, then in that of `reset_parameters` (docs/explanation/determinism.md).
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.conv.reset_parameters()
        reset_norm(self.norm)
        if isinstance(self.residual, Linear):
            fill_linear(self.residual, self.options.init, attention_gain(self.conv.num_relations is not None))
        if isinstance(self.feed_forward, FeedForward):
            self.feed_forward.reset_parameters()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None = None,
        relation: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_mask: Tensor | None = None,
        edge_seed: Tensor | None = None,
    ) -> Tensor:
        """The output of the block; the arguments are those of :meth:`MAGNAConv.forward`."""
        graph = graph_at_door(x, edge_index, edge_type, self.conv.in_channels, self.conv.num_relations)
        edges = {"relation": relation, "edge_weight": edge_weight, "edge_attr": edge_attr}
        edges |= {"edge_mask": edge_mask, "edge_seed": edge_seed}
        attended = self.conv(self.input_dropout(self.norm(x)), graph, **edges)
        h = self.output_dropout(attended) + self.residual(self.residual_dropout(x))  # Eq. 6
        out: Tensor = self.feed_forward(h)  # Eq. 7
        return out


class FeedForward(nn.Module):
    """The second half of a block (Eq. 7); an ablation replaces it with ELU."""

    def __init__(self, channels: int, options: BlockOptions) -> None:
        super().__init__()
        inner, backend = options.ffn_multiplier * channels, options.backend
        self.init: Init = options.init
        self.norm = make_norm(options.norm, channels, options.norm_eps, backend)
        self.layers = nn.Sequential(
            Linear(channels, inner, relu=True, backend=backend),
            Dropout(options.ffn_dropout, backend=backend),
            Linear(inner, channels, backend=backend),
            Dropout(options.ffn_output_dropout, backend=backend),
        )

    def reset_parameters(self) -> None:
        reset_norm(self.norm)
        for layer in self.layers:
            if isinstance(layer, Linear):
                fill_linear(layer, self.init, FEED_FORWARD_GAIN)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.layers(self.norm(h))
        return out + h


class Zero(nn.Module):
    """The residual of a block without one: x + (−0.0) equals x in every bit, even for x = −0.0."""

    def forward(self, _: Tensor) -> float:
        return -0.0
