"""Fixed weights of edges, and one hop with them."""

from __future__ import annotations

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion
from magna.typing import Backend


def symmetric_weights(graph: Graph, dtype: torch.dtype) -> Tensor:
    r"""The weight of each edge in :math:`D^{-1/2} A D^{-1/2}`, where D has the in-degrees.

    Shapes: → [E, 1], in the caller's order.

    >>> symmetric_weights(Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]])), torch.float32).tolist()
    [[1.0], [1.0]]
    """
    scale = graph.rowptr.diff().clamp(min=1).to(dtype).rsqrt()
    return (scale[graph.source] * scale[graph.target])[:, None]


def mean_weights(graph: Graph, dtype: torch.dtype) -> Tensor:
    r"""The weight of each edge in :math:`D^{-1} A`, so that a hop is the mean over the in-edges of a node.

    Shapes: → [E, 1], in the caller's order.

    >>> mean_weights(Graph.from_edge_index(torch.tensor([[0, 1], [2, 2]])), torch.float32).tolist()
    [[0.5], [0.5]]
    """
    return graph.rowptr.diff().clamp(min=1).to(dtype).reciprocal()[graph.target][:, None]


def one_hop(x: Tensor, weight: Tensor, graph: Graph, backend: Backend) -> Tensor:
    """The weighted sum over the in-edges of each node.

    Shapes: x [N, C], weight [E, 1] → [N, C].
    """
    hop = attention_diffusion(x[:, None], weight, graph, K=1, alpha=0.0, backend=backend, validate=False)
    return hop.squeeze(1)
