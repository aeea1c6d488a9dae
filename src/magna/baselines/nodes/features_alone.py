"""`FeaturesAlone`: a multilayer perceptron that does not read the edges."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from magna.baselines.nodes.stack import Stack, StackOptions
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.sparse import SparseRows


@node_model("mlp", StackOptions)
class FeaturesAlone(Stack):
    r"""Multilayer perceptron on the features of each node; the control that shows what the edges are worth.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(\mathrm{norm}\left(H^{(l)} W_l + b_l\right)\right)

    It takes every option of :class:`StackOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> import torch
    >>> model = FeaturesAlone(16, 3, hidden_channels=32)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 3])
    """

    TAKES_EDGE_WEIGHT = True  # as any other property of the edges, it changes nothing

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, StackOptions.from_flat(options))
        self.reset_parameters()

    def weights(self, graph: Graph, *_: Any) -> tuple[Graph, None]:
        return graph, None

    def convolve(self, layer: nn.Module, h: Tensor | SparseRows, *_: Any) -> Tensor:
        out: Tensor = layer(h)
        return out
