"""Fixed weights of edges, hops with them, and what is computed once for a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from magna.graph import Graph, durable
from magna.ops import attention_diffusion
from magna.typing import Backend

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_degrees(graph: Graph, dtype: torch.dtype, edge_weight: Tensor | None = None) -> Tensor:
    """The number of in-edges of each node, or the sum of their weights; 1 where it is 0.

    Shapes: edge_weight [E] → [N].
    """
    if edge_weight is None:
        return graph.rowptr.diff().clamp(min=1).to(dtype)
    total = torch.zeros(graph.num_nodes, dtype=dtype, device=graph.device)
    total = total.index_add(0, graph.target, edge_weight.to(dtype))
    return torch.where(total > 0, total, 1.0)


def symmetric_weights(graph: Graph, dtype: torch.dtype, edge_weight: Tensor | None = None) -> Tensor:
    r"""The weight of each edge in :math:`D^{-1/2} A D^{-1/2}`, where D has the in-degrees.

    With `edge_weight` A holds these weights, and D the sums of its rows, as in PyG's `gcn_norm`.

    Shapes: edge_weight [E] → [E, 1], in the caller's order.

    >>> symmetric_weights(Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]])), torch.float32).tolist()
    [[1.0], [1.0]]
    """
    scale = in_degrees(graph, dtype, edge_weight).rsqrt()
    share = scale[graph.source] * scale[graph.target]
    return (share if edge_weight is None else share * edge_weight.to(dtype))[:, None]


def mean_weights(graph: Graph, dtype: torch.dtype, edge_weight: Tensor | None = None) -> Tensor:
    r"""The weight of each edge in :math:`D^{-1} A`, so that a hop is the mean over the in-edges of a node.

    With `edge_weight` it is their weighted mean.

    Shapes: edge_weight [E] → [E, 1], in the caller's order.

    >>> mean_weights(Graph.from_edge_index(torch.tensor([[0, 1], [2, 2]])), torch.float32).tolist()
    [[0.5], [0.5]]
    """
    share = in_degrees(graph, dtype, edge_weight).reciprocal()[graph.target]
    return (share if edge_weight is None else share * edge_weight.to(dtype))[:, None]


def one_hop(x: Tensor, weight: Tensor, graph: Graph, backend: Backend) -> Tensor:
    """The weighted sum over the in-edges of each node.

    Shapes: x [N, C], weight [E, 1] → [N, C].
    """
    hop = attention_diffusion(x[:, None], weight, graph, K=1, alpha=0.0, backend=backend, validate=False)
    return hop.squeeze(1)


def several_hops(x: Tensor, weight: Tensor, graph: Graph, backend: Backend, **hops: Any) -> Tensor:
    """Hops with other weights than those of `one_hop`, or with dropout: `hops` are those of `attention_diffusion`.

    Shapes: x [N, C], weight [E, 1] → [N, C].
    """
    return attention_diffusion(x[:, None], weight, graph, backend=backend, validate=False, **hops).squeeze(1)


def once_per_graph(
    make: Callable[Concatenate[Graph, Arguments], Result],
) -> Callable[Concatenate[Graph, Arguments], Result]:
    """A function of a graph and of hashable arguments, whose results live as long as the graph.

    >>> @once_per_graph
    ... def edges_times(graph: Graph, factor: int) -> list[int]:
    ...     return [factor * graph.num_edges]
    >>> pair = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
    >>> edges_times(pair, 3) is edges_times(pair, 3)
    True
    """
    results: WeakKeyDictionary[Graph, dict[Any, Result]] = WeakKeyDictionary()

    @wraps(make)
    def look_up(graph: Graph, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        known, key = results.setdefault(graph, {}), (args, tuple(sorted(kwargs.items())))
        if key not in known:
            # It serves later calls, also those outside of this transform or inference mode.
            with durable(), torch.no_grad():
                known[key] = make(graph, *args, **kwargs)
        return known[key]

    return look_up
