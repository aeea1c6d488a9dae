"""`JKNet`: jumping knowledge network (Xu et al. 2018, arXiv 1806.03536)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from magna.baselines.nodes.stack import Stack, StackOptions
from magna.config.options import option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.linear import Linear
from magna.nn.sparse import SparseRows
from magna.typing import Backend


@dataclass(frozen=True, kw_only=True)
class JKNetOptions(StackOptions):
    """Options of :class:`JKNet`."""

    num_layers: int = option(2, "Number of graph convolutions, before the output head.", low=1, high=4096)
    join: Literal["concat", "max", "lstm"] = option(
        "concat",
        "States of all layers as one: concat: side by side; max: the largest in each channel; lstm: their mean, "
        "weighted by an LSTM over the layers.",
    )


@node_model("jknet", JKNetOptions)
class JKNet(Stack):
    r"""Jumping knowledge: the output head sees the states of all graph convolutions.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(\hat A H^{(l)} W_l + b_l\right), \quad
              \mathrm{out} = \mathrm{join}\left(H^{(1)}, \dots, H^{(L)}\right) W_{out} + b_{out}, \quad
              \hat A = D^{-1/2} A D^{-1/2}

    In `join` "lstm" a node weighs its layers by :math:`\mathrm{softmax}_l(v \cdot [f_l \Vert g_l])`, where f and g
    are the states of an LSTM over the layers and of one in reverse. The graph is taken as it is; JKNet wants
    self-loops.

    It takes every option of :class:`JKNetOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = JKNet(16, 3, hidden_channels=32, num_layers=3, join="lstm")
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: JKNetOptions
    TAKES_EDGE_WEIGHT = True
    ENDS_HIDDEN = True

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = JKNetOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        width, layers = chosen.hidden_channels, chosen.num_layers
        joined = layers * width if chosen.join == "concat" else width
        self.attention = LayerAttention(width, layers, backend=chosen.backend) if chosen.join == "lstm" else None
        self.head = Linear(joined, out_channels, backend=chosen.backend)
        self.reset_parameters()

    def layer_widths(self) -> list[int]:
        return [self.in_channels] + [self.options.hidden_channels] * self.options.num_layers

    def join(self, states: Sequence[Tensor]) -> Tensor:
        """The states [N, hidden_channels] of all layers as one."""
        if self.attention is not None:
            joined: Tensor = self.attention(states)
            return joined
        return torch.cat(list(states), dim=1) if self.options.join == "concat" else torch.stack(list(states)).amax(0)

    def forward(
        self, x: Tensor | SparseRows, edge_index: Tensor | Graph, *, edge_weight: Tensor | None = None
    ) -> Tensor:
        out: Tensor = self.head(self.input_dropout(self.join(self.states(x, edge_index, edge_weight))))
        return out


class LayerAttention(nn.Module):
    """The mean of a node's states over the layers, weighted by an LSTM in both directions.

    Shapes: states [N, C] each → [N, C].
    """

    def __init__(self, channels: int, num_layers: int, backend: Backend = "auto") -> None:
        super().__init__()
        width = max(1, num_layers * channels // 2)
        self.ahead, self.back = (LSTM(channels, width, backend) for _ in range(2))
        self.score = Linear(2 * width, 1, bias=False, backend=backend)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.ahead(states), reversed(self.back(states[::-1])), strict=True)
        scores = [self.score(torch.cat(pair, dim=1)) for pair in pairs]
        share = torch.stack(scores).softmax(0)  # [L, N, 1]
        return (share * torch.stack(list(states))).sum(0)


class LSTM(nn.Module):
    """The states of an LSTM over a sequence; `torch.nn.LSTM` cannot serve many trials in one batch.

    Shapes: inputs [N, C] each → [N, width] each.
    """

    def __init__(self, channels: int, width: int, backend: Backend = "auto") -> None:
        super().__init__()
        self.input = Linear(channels, 4 * width, backend=backend)
        self.state = Linear(width, 4 * width, bias=False, backend=backend)

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        cell = state = inputs[0].new_zeros(inputs[0].size(0), self.state.in_features)
        states = []
        for x in inputs:
            write, keep, change, show = (self.input(x) + self.state(state)).chunk(4, dim=1)
            cell = keep.sigmoid() * cell + write.sigmoid() * change.tanh()
            state = show.sigmoid() * cell.tanh()
            states.append(state)
        return states
