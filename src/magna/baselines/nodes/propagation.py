"""Hops with fixed weights, as the baselines take them: one matrix product with the graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from magna.graph import Graph
from magna.nn.sparse import SparseRows
from magna.ops import attention_diffusion
from magna.typing import Backend


def symmetric_weights(graph: Graph, like: Tensor | SparseRows) -> Tensor:
    r"""The entries of :math:`D^{-1/2} A D^{-1/2}` on the edges, D being the in-degrees, with the type of `like`.

    Shapes: → [E, 1].

    >>> import torch
    >>> pair = Graph.from_edge_index(torch.tensor([[0, 1, 1], [1, 0, 1]]), num_nodes=2)
    >>> symmetric_weights(pair, torch.ones(1)).flatten().tolist()
    [0.7071067690849304, 0.7071067690849304, 0.4999999701976776]
    """
    scale = graph.rowptr.diff().clamp(min=1).to(like.dtype).rsqrt()
    return (scale[graph.source] * scale[graph.target])[:, None]


def mean_weights(graph: Graph, like: Tensor | SparseRows) -> Tensor:
    """The entries of D⁻¹ A on the edges: one over the in-degree of the target.

    Shapes: → [E, 1].
    """
    return graph.rowptr.diff().clamp(min=1).to(like.dtype).reciprocal()[graph.target][:, None]


def propagated(h: Tensor, weight: Tensor, graph: Graph, backend: Backend, **hops: Any) -> Tensor:
    """A H for weights A on the edges; `hops` are further arguments of :func:`magna.ops.attention_diffusion`.

    Shapes: h [N, C], weight [E, 1] → [N, C].
    """
    hops = hops or {"K": 1, "alpha": 0.0}
    return attention_diffusion(h[:, None], weight, graph, backend=backend, validate=False, **hops).squeeze(1)
