"""`GAT` (Veličković et al. 2018, arXiv 1710.10903) on this package's operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from magna.baselines.nodes.stack import Stack, StackOptions
from magna.config.options import option
from magna.config.registry import node_model
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn.conv import MAGNAConv
from magna.nn.sparse import SparseRows


@dataclass(frozen=True, kw_only=True)
class GATOptions(StackOptions):
    """Options of :class:`GAT`."""

    heads: int = option(8, "Attention heads of the hidden layers; they divide the width.", low=1, high=4096)
    out_heads: int = option(1, "Attention heads of the output layer, averaged.", low=1, high=4096)
    negative_slope: float = option(0.2, "Slope of LeakyReLU below zero.", low=0, per_trial=True)
    dropout: float = option(0.0, "Dropout on the attention.", low=0, below=1, per_trial=True)

    def check(self) -> None:
        if self.hidden_channels % self.heads:
            raise ArgumentError("heads", self.heads, f"divisors of hidden_channels, {self.hidden_channels}")


@node_model("gat", GATOptions)
class GAT(Stack):
    r"""Graph attention network: attention over neighbours alone, heads side by side, ELU between the layers.

    .. math:: H^{(l+1)} = \mathrm{ELU}\left(\Vert_m A_m H^{(l)} W_m + b\right), \quad
              \mathrm{out} = \tfrac{1}{M} \sum_m A_m H^{(L-1)} W_m + b

    Each layer is :class:`MAGNAConv` with one hop and no teleport. The graph is taken as it is; GAT wants self-loops.

    It takes every option of :class:`GATOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = GAT(16, 32, num_layers=2, out_channels=3, heads=4)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: GATOptions
    ACTIVATION = nn.ELU
    TAKES_EDGE_WEIGHT = True

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, **options: Any
    ) -> None:
        chosen = GATOptions.from_flat({"hidden_channels": hidden_channels, "num_layers": num_layers, **options})
        super().__init__(in_channels, out_channels, chosen)
        self.reset_parts()

    def make_layers(self) -> nn.ModuleList:
        options = self.options
        form: Any = {"K": 1, "alpha": 0.0, "projection": "shared", "tanh": False, "out_projection": False}
        form |= {"add_self_loops": False, "bias": False}  # the task adds the loops, the stack the biases
        form |= {name: getattr(options, name) for name in ("negative_slope", "dropout", "backend")}
        heads = [options.heads] * (options.num_layers - 1) + [options.out_heads]
        outputs = [*self.widths[1:-1], options.out_heads * self.out_channels]
        return nn.ModuleList(MAGNAConv(*sizes, **form) for sizes in zip(self.widths[:-1], outputs, heads, strict=True))

    def reset_parameters(self) -> None:
        for layer in self.layers:
            assert isinstance(layer, MAGNAConv)
            layer.reset_parameters()
        self.reset_parts()

    def weights(self, graph: Graph, _: torch.dtype, edge_weight: Tensor | None = None) -> tuple[Graph, Tensor | None]:
        return graph, edge_weight

    def convolve(self, layer: nn.Module, h: Tensor | SparseRows, graph: Graph, weight: Tensor | None) -> Tensor:
        out: Tensor = layer(h, graph, edge_weight=weight)
        return out.unflatten(1, (-1, self.out_channels)).mean(1) if layer is self.layers[-1] else out
