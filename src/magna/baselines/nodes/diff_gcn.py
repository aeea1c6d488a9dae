"""`DiffGCN`: GCN on the graph of personalised PageRank (GDC, Klicpera et al. 2019, arXiv 1911.05485)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.nodes.ppr import diffused_graph
from magna.config.options import HUGE, Options, option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.attention import check_size, graph_at_door
from magna.nn.dropout import Dropout
from magna.nn.hub import Saved
from magna.nn.init import fill_linear
from magna.nn.linear import Linear
from magna.nn.sparse import SparseRows
from magna.ops import attention_diffusion
from magna.typing import Backend


@dataclass(frozen=True, kw_only=True)
class DiffGCNOptions(Options):
    """Options of :class:`DiffGCN`."""

    hidden_channels: int = option(64, "Width of a hidden layer.", low=1, high=HUGE)
    num_layers: int = option(2, "Number of layers, the output layer included.", low=1, high=4096)
    alpha: float = option(0.1, "Teleport probability of PageRank.", above=0, high=1)
    top_k: int = option(64, "Entries of PageRank for each node.", low=1, high=HUGE)
    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)
    input_dropout: float = option(
        0.0, "Dropout on the hidden states, before each further layer.", low=0, below=1, per_trial=True
    )
    backend: Backend = option("auto", "Kernels: auto takes the fastest for the device.")


@node_model("diff-gcn", DiffGCNOptions)
class DiffGCN(Saved):
    r"""Graph convolutions with the fixed weights S of :func:`magna.baselines.nodes.ppr.diffused_graph`.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(S H^{(l)} W + b\right)

    S is computed once for each graph, in seconds for some thousand nodes; the graph is taken as undirected.

    It takes every option of :class:`DiffGCNOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = DiffGCN(16, 32, num_layers=2, out_channels=3, alpha=0.1, top_k=2)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, **options: Any
    ) -> None:
        super().__init__()
        chosen = DiffGCNOptions.from_flat({"hidden_channels": hidden_channels, "num_layers": num_layers, **options})
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        for name, size in sizes.items():
            check_size(name, size)
        self.options, self.config, backend = chosen, sizes | chosen.applied(), chosen.backend
        self.in_channels, self.out_channels = in_channels, out_channels
        self.embed_dropout = Dropout(chosen.embed_dropout, backend=backend)
        self.input_dropout = Dropout(chosen.input_dropout, backend=backend)
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(Linear(width, out, bias=False, backend=backend) for width, out in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(size)) for size in widths[1:])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer, bias in zip(self.layers, self.biases, strict=True):
            assert isinstance(layer, Linear)
            fill_linear(layer, "glorot")
            nn.init.zeros_(bias)

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor | Graph) -> Tensor:
        graph = graph_at_door(x, edge_index, None, self.in_channels, None)
        graph, weight = diffused_graph(graph, self.options.alpha, self.options.top_k)
        weight = weight.to(x.dtype)
        h: Any = self.embed_dropout(x)
        for number, (layer, bias) in enumerate(zip(self.layers, self.biases, strict=True)):
            if number > 0:
                h = self.input_dropout(F.relu(h))
            h = layer(h)[:, None]  # [N, 1, C]
            h = attention_diffusion(h, weight, graph, K=1, alpha=0.0, backend=self.options.backend, validate=False)
            h = h.squeeze(1) + bias
        out: Tensor = h
        return out
