"""`APPNP` (Gasteiger et al. 2019, arXiv 1810.05997)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from magna.config.options import HUGE, Options, option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.attention import check_size, graph_at_door
from magna.nn.dropout import Dropout, draw_seed
from magna.nn.hub import Saved
from magna.nn.init import fill_linear
from magna.nn.linear import Linear
from magna.nn.sparse import SparseRows
from magna.ops import attention_diffusion
from magna.typing import Backend


@dataclass(frozen=True, kw_only=True)
class APPNPOptions(Options):
    """Options of :class:`APPNP`."""

    hidden_channels: int = option(64, "Width of a hidden layer.", low=1, high=HUGE)
    num_layers: int = option(2, "Number of layers of the prediction.", low=1, high=4096)
    K: int = option(10, "Number of hops.", low=0, high=4096)
    alpha: float = option(0.1, "Teleport probability.", low=0, high=1)
    input_dropout: float = option(0.0, "Dropout on the input of each layer.", low=0, below=1, per_trial=True)
    edge_dropout: float = option(0.0, "Dropout on the edges, drawn anew at each hop.", low=0, below=1)
    backend: Backend = option("auto", "Kernels: auto takes the fastest for the device.")


@node_model("appnp", APPNPOptions)
class APPNP(Saved):
    r"""Predict, then propagate with personalised PageRank.

    .. math:: Z^{(0)} = \mathrm{MLP}(X), \quad Z^{(k+1)} = (1 - \alpha) \hat A Z^{(k)} + \alpha Z^{(0)}, \quad
              \hat A = D^{-1/2} A D^{-1/2}

    In training the entries of Â are dropped anew at each hop. The graph is taken as it is; APPNP wants self-loops.

    It takes every option of :class:`APPNPOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> import torch
    >>> model = APPNP(16, 3, hidden_channels=32)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__()
        self.options = APPNPOptions.from_flat(options)
        self.config = {"in_channels": in_channels, "out_channels": out_channels, **self.options.applied()}
        for name in ("in_channels", "out_channels"):
            check_size(name, self.config[name])
        self.in_channels, self.out_channels, backend = in_channels, out_channels, self.options.backend
        self.input_dropout = Dropout(self.options.input_dropout, backend=backend)
        widths = [in_channels] + [self.options.hidden_channels] * (self.options.num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(Linear(width, out, backend=backend) for width, out in pairwise(widths))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in self.layers:
            assert isinstance(layer, Linear)
            fill_linear(layer, "glorot")

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor | Graph) -> Tensor:
        options, graph = self.options, graph_at_door(x, edge_index, None, self.in_channels, None)
        h: Any = x
        for number, layer in enumerate(self.layers):
            h = layer(self.input_dropout(F.relu(h) if number > 0 else h))
        scale = graph.rowptr.diff().clamp(min=1).to(h.dtype).rsqrt()  # of the in-degrees
        weight = (scale[graph.source] * scale[graph.target])[:, None]  # [E, 1]
        rate = options.edge_dropout if self.training else 0.0
        seed = draw_seed(h.device) if rate > 0 else None
        z = attention_diffusion(
            h[:, None],
            weight,
            graph,
            K=options.K,
            alpha=options.alpha,
            dropout=rate,
            seed=seed,
            backend=options.backend,
        )
        return z.squeeze(1)
