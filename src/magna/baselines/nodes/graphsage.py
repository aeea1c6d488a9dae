"""`GraphSAGE` (Hamilton et al. 2017, arXiv 1706.02216) with the mean aggregator, on all neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from magna.baselines.nodes.propagation import mean_weights, one_hop
from magna.baselines.nodes.stack import Stack, StackOptions
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.sparse import SparseRows


@node_model("graphsage", StackOptions)
class GraphSAGE(Stack):
    r"""GraphSAGE: a node's state beside the mean of its neighbours' states, each with a matrix.

    .. math:: h_i^{(l+1)} = \mathrm{ReLU}\left(
              W_l h_i^{(l)} + U_l \tfrac{1}{|N(i)|} \sum_{j \in N(i)} h_j^{(l)} + b_l\right)

    The graph is taken as it is, and no neighbours are sampled; GraphSAGE wants no self-loops. States are not scaled to
    length 1.

    It takes every option of :class:`StackOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = GraphSAGE(16, 3, hidden_channels=32)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    TAKES_EDGE_WEIGHT = True

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, StackOptions.from_flat(options))
        self.reset_parameters()

    @property
    def matrices(self) -> int:
        return 2  # W and U

    def weights(self, graph: Graph, dtype: torch.dtype, edge_weight: Tensor | None = None) -> tuple[Graph, Tensor]:
        return graph, mean_weights(graph, dtype, edge_weight)

    def convolve(self, layer: nn.Module, h: Tensor | SparseRows, graph: Graph, weight: Tensor) -> Tensor:
        # The mean of products is the product of the mean, and the products are narrower than wide features.
        node, neighbour = layer(h).chunk(2, dim=1)
        out: Tensor = node + one_hop(neighbour, weight, graph, self.options.backend)
        return out
