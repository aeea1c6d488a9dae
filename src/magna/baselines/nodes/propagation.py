"""Hops with fixed weights, as the baselines take them, and what is computed once for a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from magna.graph import Graph, durable
from magna.nn.sparse import SparseRows
from magna.ops import attention_diffusion
from magna.typing import Backend

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def symmetric_weights(graph: Graph, like: Tensor | SparseRows) -> Tensor:
    r"""The entries of :math:`D^{-1/2} A D^{-1/2}` on the edges, D being the in-degrees, with the type of `like`.

    Shapes: → [E, 1].

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
