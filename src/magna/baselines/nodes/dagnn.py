"""`DAGNN`: deep adaptive graph neural network (Liu et al. 2020, arXiv 2007.09296)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.nodes.base import NodeBaseline, NodeBaselineOptions
from magna.baselines.nodes.propagation import one_hop, symmetric_weights
from magna.config.options import option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.dropout import Dropout
from magna.nn.linear import Linear
from magna.nn.norm import BatchNorm, LayerNorm, make_norm
from magna.nn.sparse import SparseRows
from magna.typing import Norm


@dataclass(frozen=True, kw_only=True)
class DAGNNOptions(NodeBaselineOptions):
    """Options of :class:`DAGNN`."""

    K: int = option(10, "Number of hops.", low=1, high=4096)
    norm: Norm = option("none", "Norm of the hidden states, before the activation.")
    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)


@node_model("dagnn", DAGNNOptions)
class DAGNN(NodeBaseline):
    r"""Predict, propagate K hops, then weigh the hops of each node by a gate.

    .. math:: Z^{(0)} = \mathrm{MLP}(X), \quad Z^{(k)} = \hat A Z^{(k-1)}, \quad
              \mathrm{out}_i = \sum_{k=0}^{K} \sigma\left(s \cdot z_i^{(k)} + b\right) z_i^{(k)}, \quad
              \hat A = D^{-1/2} A D^{-1/2}

    The bias b of the gate is that of the authors' code. The graph is taken as it is; DAGNN wants self-loops.

    It takes every option of :class:`DAGNNOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = DAGNN(16, 3, hidden_channels=32, K=4)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: DAGNNOptions
    TAKES_EDGE_WEIGHT = True

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = DAGNNOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        self.embed_dropout = Dropout(chosen.embed_dropout, backend=chosen.backend)
        self.layers = self.linears()
        self.norms = nn.ModuleList(make_norm(chosen.norm, width, backend=chosen.backend) for width in self.widths[1:-1])
        self.gate = Linear(out_channels, 1, backend=chosen.backend)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for norm in self.norms:
            if isinstance(norm, LayerNorm | BatchNorm):
                norm.reset_parameters()

    def forward(
        self, x: Tensor | SparseRows, edge_index: Tensor | Graph, *, edge_weight: Tensor | None = None
    ) -> Tensor:
        graph, h = self.graph(x, edge_index, edge_weight), self.layers[0](self.embed_dropout(x))
        for norm, layer in zip(self.norms, self.layers[1:], strict=True):
            h = layer(self.input_dropout(F.relu(norm(h))))
        weight, hops = symmetric_weights(graph, h.dtype, edge_weight), [h]
        for _ in range(self.options.K):
            hops.append(one_hop(hops[-1], weight, graph, self.options.backend))
        states = torch.stack(hops, dim=1)  # [N, K + 1, C]
        gates = self.gate(states.flatten(0, 1)).view(-1, len(hops), 1).sigmoid()
        out: Tensor = (gates * states).sum(1)
        return out
