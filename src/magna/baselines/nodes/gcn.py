"""`GCN` (Kipf & Welling 2017, arXiv 1609.02907)."""

from __future__ import annotations

from typing import Any

from magna.baselines.nodes.stack import Stack, StackOptions
from magna.config.registry import node_model


@node_model("gcn", StackOptions)
class GCN(Stack):
    r"""Graph convolutional network: a mean over neighbours, weighted by their degrees, after each product.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(\hat A H^{(l)} W_l + b_l\right), \quad \hat A = D^{-1/2} A D^{-1/2}

    The graph is taken as it is; GCN wants self-loops.

    It takes every option of :class:`StackOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> import torch
    >>> model = GCN(16, 3, hidden_channels=32)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    TAKES_EDGE_WEIGHT = True

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, StackOptions.from_flat(options))
        self.reset_parameters()
