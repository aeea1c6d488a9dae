"""`GCNII` (Chen et al. 2020, arXiv 2007.02133)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.nodes.base import NodeBaseline, NodeBaselineOptions
from magna.baselines.nodes.propagation import one_hop, symmetric_weights
from magna.config.options import option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.dropout import Dropout
from magna.nn.linear import Linear
from magna.nn.sparse import SparseRows


@dataclass(frozen=True, kw_only=True)
class GCNIIOptions(NodeBaselineOptions):
    """Options of :class:`GCNII`."""

    num_layers: int = option(
        64, "Number of graph convolutions, between the first and the last matrix.", low=1, high=4096
    )
    alpha: float = option(0.1, "Weight of the first hidden states in each layer.", low=0, high=1, per_trial=True)
    theta: float = option(
        0.5, "Weight of a layer's matrix against the identity: log(theta / l + 1) in layer l.", above=0
    )
    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)


@node_model("gcnii", GCNIIOptions)
class GCNII(NodeBaseline):
    r"""Deep graph convolutions with the first hidden states and the identity in each layer.

    .. math:: H^{(l)} = \mathrm{ReLU}\left(S_l \left((1 - \beta_l) I + \beta_l W_l\right)\right), \quad
              S_l = (1 - \alpha) \hat A H^{(l-1)} + \alpha H^{(0)}, \quad \beta_l = \log(\theta / l + 1)

    with :math:`\hat A = D^{-1/2} A D^{-1/2}`, :math:`H^{(0)} = \mathrm{ReLU}(X W_{in} + b_{in})` and
    :math:`\mathrm{out} = H^{(L)} W_{out} + b_{out}`. The graph is taken as it is; GCNII wants self-loops.

    It takes every option of :class:`GCNIIOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> import torch
    >>> model = GCNII(16, 3, hidden_channels=32, num_layers=8)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: GCNIIOptions
    TAKES_EDGE_WEIGHT = True

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = GCNIIOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        width, backend = chosen.hidden_channels, chosen.backend
        self.alpha: float | Tensor = chosen.alpha  # trials of a batch may differ in it
        self.embed_dropout = Dropout(chosen.embed_dropout, backend=backend)
        self.first = Linear(in_channels, width, backend=backend)
        self.layers = nn.ModuleList(Linear(width, width, bias=False, backend=backend) for _ in range(chosen.num_layers))
        self.last = Linear(width, out_channels, backend=backend)
        self.reset_parameters()

    def forward(
        self, x: Tensor | SparseRows, edge_index: Tensor | Graph, *, edge_weight: Tensor | None = None
    ) -> Tensor:
        graph = self.graph(x, edge_index, edge_weight)
        first = h = F.relu(self.first(self.embed_dropout(x)))
        weight = symmetric_weights(graph, h.dtype, edge_weight)
        for number, layer in enumerate(self.layers, start=1):
            hop = one_hop(self.input_dropout(h), weight, graph, self.options.backend)
            mixed = (1 - self.alpha) * hop + self.alpha * first
            beta = math.log(self.options.theta / number + 1)
            h = F.relu((1 - beta) * mixed + beta * layer(mixed))
        out: Tensor = self.last(self.input_dropout(h))
        return out
