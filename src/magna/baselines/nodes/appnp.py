"""`APPNP` (Gasteiger et al. 2019, arXiv 1810.05997)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from magna.baselines.nodes.base import NodeBaseline, NodeBaselineOptions
from magna.baselines.nodes.propagation import symmetric_weights
from magna.config.options import option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.dropout import draw_seed
from magna.nn.sparse import SparseRows
from magna.ops import attention_diffusion


@dataclass(frozen=True, kw_only=True)
class APPNPOptions(NodeBaselineOptions):
    """Options of :class:`APPNP`."""

    K: int = option(10, "Number of hops.", low=0, high=4096)
    alpha: float = option(0.1, "Teleport probability.", low=0, high=1)
    input_dropout: float = option(0.0, "Dropout on the input of each layer.", low=0, below=1, per_trial=True)
    edge_dropout: float = option(0.0, "Dropout on the edges, drawn anew at each hop.", low=0, below=1)


@node_model("appnp", APPNPOptions)
class APPNP(NodeBaseline):
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

    options: APPNPOptions
    TAKES_EDGE_WEIGHT = True

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, APPNPOptions.from_flat(options))
        self.layers = self.linears()
        self.reset_parameters()

    def forward(
        self, x: Tensor | SparseRows, edge_index: Tensor | Graph, *, edge_weight: Tensor | None = None
    ) -> Tensor:
        options, graph = self.options, self.graph(x, edge_index, edge_weight)
        h: Any = x
        for number, layer in enumerate(self.layers):
            h = layer(self.input_dropout(F.relu(h) if number > 0 else h))
        weight = symmetric_weights(graph, h.dtype, edge_weight)
        rate = options.edge_dropout if self.training else 0.0
        seed = draw_seed(h.device) if rate > 0 else None
        hops: dict[str, Any] = {"K": options.K, "alpha": options.alpha, "dropout": rate, "seed": seed}
        return attention_diffusion(h[:, None], weight, graph, backend=options.backend, **hops).squeeze(1)
