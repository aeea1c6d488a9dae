"""`GAT` (Veličković et al. 2018, arXiv 1710.10903) on this package's operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.config.options import HUGE, Options, option
from magna.config.registry import node_model
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn.attention import check_size, graph_at_door
from magna.nn.conv import MAGNAConv
from magna.nn.dropout import Dropout
from magna.nn.hub import Saved
from magna.nn.sparse import SparseRows
from magna.typing import Backend


@dataclass(frozen=True, kw_only=True)
class GATOptions(Options):
    """Options of :class:`GAT`."""

    hidden_channels: int = option(64, "Width of a hidden layer, all heads together.", low=1, high=HUGE)
    num_layers: int = option(2, "Number of layers, the output layer included.", low=1, high=4096)
    heads: int = option(8, "Attention heads of the hidden layers; they divide the width.", low=1, high=4096)
    out_heads: int = option(1, "Attention heads of the output layer, averaged.", low=1, high=4096)
    negative_slope: float = option(0.2, "Slope of LeakyReLU below zero.", low=0, per_trial=True)
    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)
    input_dropout: float = option(
        0.0, "Dropout on the hidden states, before each further layer.", low=0, below=1, per_trial=True
    )
    dropout: float = option(0.0, "Dropout on the attention.", low=0, below=1, per_trial=True)
    backend: Backend = option("auto", "Kernels: auto takes the fastest for the device.")

    def check(self) -> None:
        if self.hidden_channels % self.heads:
            raise ArgumentError("heads", self.heads, f"divisors of hidden_channels, {self.hidden_channels}")


@node_model("gat", GATOptions)
class GAT(Saved):
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

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, **options: Any
    ) -> None:
        super().__init__()
        chosen = GATOptions.from_flat({"hidden_channels": hidden_channels, "num_layers": num_layers, **options})
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        for name, size in sizes.items():
            check_size(name, size)
        self.config = sizes | chosen.applied()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.embed_dropout = Dropout(chosen.embed_dropout, backend=chosen.backend)
        self.input_dropout = Dropout(chosen.input_dropout, backend=chosen.backend)
        hidden, heads = [hidden_channels] * (num_layers - 1), chosen.out_heads
        outputs = [(width, chosen.heads) for width in hidden] + [(heads * out_channels, heads)]
        self.layers = nn.ModuleList(
            MAGNAConv(
                width,
                out,
                heads=heads,
                K=1,
                alpha=0.0,
                projection="shared",
                tanh=False,
                negative_slope=chosen.negative_slope,
                dropout=chosen.dropout,
                out_projection=False,
                backend=chosen.backend,
            )
            for width, (out, heads) in zip([in_channels, *hidden], outputs, strict=True)
        )
        # Not part of the layers, as the bias of the last one follows the mean of its heads.
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in [*hidden, out_channels])

    def reset_parameters(self) -> None:
        for layer, bias in zip(self.layers, self.biases, strict=True):
            assert isinstance(layer, MAGNAConv)
            layer.reset_parameters()
            nn.init.zeros_(bias)

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor | Graph) -> Tensor:
        graph = graph_at_door(x, edge_index, None, self.in_channels, None)
        h = self.embed_dropout(x)
        *hidden, last = zip(self.layers, self.biases, strict=True)
        for layer, bias in hidden:
            h = self.input_dropout(F.elu(layer(h, graph) + bias))
        layer, bias = last
        out: Tensor = layer(h, graph).unflatten(1, (-1, self.out_channels)).mean(1) + bias
        return out
