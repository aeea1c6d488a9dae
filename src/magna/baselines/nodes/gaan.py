"""`GaAN` (Zhang et al. 2018, arXiv 1803.07294)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.nodes.base import NodeBaseline, NodeBaselineOptions
from magna.baselines.nodes.propagation import mean_weights, one_hop
from magna.config.options import HUGE, option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.dropout import Dropout
from magna.nn.linear import Linear
from magna.nn.sparse import SparseRows
from magna.ops import attention_diffusion, edge_softmax

SLOPE = 0.1  # of the LeakyReLU, in the paper's section 3


@dataclass(frozen=True, kw_only=True)
class GaANOptions(NodeBaselineOptions):
    """Options of :class:`GaAN`."""

    heads: int = option(8, "Attention heads, each with a gate.", low=1, high=4096)
    key_channels: int = option(24, "Width of a head's queries and keys.", low=1, high=HUGE)
    value_channels: int = option(32, "Width of a head's values.", low=1, high=HUGE)
    pool_channels: int = option(64, "Width of the neighbours' features whose maximum the gates read.", low=1, high=HUGE)
    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)


class GatedAttention(nn.Module):
    r"""Key-value attention over the neighbours, whose heads each node weighs by gates between 0 and 1.

    .. math:: y_i = W_o \left(x_i \,\Vert\, \Vert_m g_i^{(m)} \sum_j a_{ij}^{(m)} \phi(W_v^{(m)} x_j)\right) + b, \quad
              a_{ij}^{(m)} = \mathrm{softmax}_j \left\langle W_q^{(m)} x_i, W_k^{(m)} x_j\right\rangle

    .. math:: g_i = \sigma\left(W_g \left(x_i \,\Vert\, \max_j W_m x_j \,\Vert\, \tfrac{1}{|N_i|} \sum_j x_j\right)
              + b\right)

    φ is LeakyReLU. A product with a concatenation is a sum of products, and the mean of a product is that of the mean.
    Keys have no bias, as the softmax would not see it.

    Shapes: x [N, in_channels] → [N, out_channels].
    """

    def __init__(self, in_channels: int, out_channels: int, options: GaANOptions) -> None:
        super().__init__()
        self.heads, self.backend = options.heads, options.backend
        linear, keys = partial(Linear, backend=options.backend), options.heads * options.key_channels
        self.query, self.key = linear(in_channels, keys), linear(in_channels, keys, bias=False)
        self.value = linear(in_channels, options.heads * options.value_channels)
        self.pool = linear(in_channels, options.pool_channels)
        self.gate = linear(in_channels, options.heads)
        self.gate_max = linear(options.pool_channels, options.heads, bias=False)
        self.gate_mean = linear(in_channels, options.heads, bias=False)
        self.out = linear(in_channels, out_channels)
        self.out_heads = linear(options.heads * options.value_channels, out_channels, bias=False)

    def forward(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        value = F.leaky_relu(self.value(x), SLOPE).unflatten(1, (self.heads, -1))  # [N, H, D]
        heads = attention_diffusion(
            value, self.attention(x, graph), graph, K=1, alpha=0.0, backend=self.backend, validate=False
        )
        gated = heads * self.gates(x, graph)[:, :, None]
        out: Tensor = self.out(x) + self.out_heads(gated.flatten(1))
        return out

    def attention(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        """Weights of the edges, [E, H]."""
        query, key = (layer(x).unflatten(1, (self.heads, -1)) for layer in (self.query, self.key))
        scores = (query.index_select(0, graph.target) * key.index_select(0, graph.source)).sum(-1)
        return edge_softmax(scores, graph, backend=self.backend, validate=False)

    def gates(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        """Gates of the heads, [N, H]."""
        mean = self.gate_mean(x)
        mean = one_hop(mean, mean_weights(graph, mean.dtype), graph, self.backend)
        return torch.sigmoid(self.gate(x) + self.gate_max(neighbour_max(self.pool(x), graph)) + mean)


def neighbour_max(h: Tensor, graph: Graph) -> Tensor:
    """The largest value of each channel among the in-neighbours; 0 without any.

    Shapes: [N, C] → [N, C].

    >>> neighbour_max(torch.tensor([[1.0], [-2.0]]), Graph.from_edge_index(torch.tensor([[1], [0]]), 2)).tolist()
    [[-2.0], [0.0]]
    """
    index = graph.target[:, None].expand(-1, h.size(1))
    return torch.zeros_like(h).scatter_reduce(0, index, h.index_select(0, graph.source), "amax", include_self=False)


@node_model("gaan", GaANOptions)
class GaAN(NodeBaseline):
    r"""Gated attention network: layers of :class:`GatedAttention` with LeakyReLU between them.

    .. math:: H^{(l+1)} = \mathrm{LeakyReLU}\left(\mathrm{GatedAttention}(H^{(l)})\right)

    The graph is taken as it is.

    It takes every option of :class:`GaANOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = GaAN(16, 3, hidden_channels=32, heads=4)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: GaANOptions

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = GaANOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        self.embed_dropout = Dropout(chosen.embed_dropout, backend=chosen.backend)
        self.layers = nn.ModuleList(GatedAttention(*sizes, chosen) for sizes in pairwise(self.widths))
        self.reset_parameters()

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor | Graph) -> Tensor:
        graph = self.graph(x, edge_index)
        h: Any = self.embed_dropout(x)
        for number, layer in enumerate(self.layers):
            h = layer(self.input_dropout(F.leaky_relu(h, SLOPE)) if number > 0 else h, graph)
        out: Tensor = h
        return out
