"""What an operator accepts. Shapes, types and devices cost nothing to check; values are looked at only on request."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from magna.graph import Graph
from magna.ops.backends import DTYPES

Rate = float | Tensor  # a probability, or one per head


def traced(tensor: Tensor) -> bool:
    """Whether a compiler looks on, or there is a shape alone."""
    return torch.compiler.is_compiling() or isinstance(tensor, FakeTensor)


def values_readable(tensor: Tensor) -> bool:
    """Values cannot be looked at while a compiler traces, a CUDA graph is being captured, or where there are none."""
    return not (traced(tensor) or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()))


def same_device(name: str, tensor: Tensor, graph: Graph) -> None:
    if tensor.device != graph.device:
        raise ValueError(f"{name} is on {tensor.device}, the graph on {graph.device}; move one with .to(device)")


def dtype(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPES:
        allowed = ", ".join(str(d) for d in DTYPES)
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: {allowed}")


def scores(tensor: Tensor, graph: Graph, validate: bool) -> None:
    _per_edge("scores", tensor, graph)
    _score_dtype("scores", tensor)
    # The largest score is NaN where any is: one pass without a copy. Only a bad tensor is looked at closer.
    if validate and values_readable(tensor) and tensor.numel() and not bool(tensor.detach().amax() < torch.inf):
        edge, head = (int(i) for i in (tensor.isnan() | (tensor == torch.inf)).nonzero()[0])
        raise ValueError(
            f"scores[{edge}, {head}] is {float(tensor[edge, head])}; allowed: finite numbers, or -inf for no edge"
        )


def _score_dtype(name: str, tensor: Tensor) -> None:
    # Also where features are bfloat16: the softmax needs the digits.
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: torch.float32, torch.float64 (try .float())")


def _per_edge(name: str, tensor: Tensor, graph: Graph) -> None:
    if tensor.dim() != 2 or tensor.size(0) != graph.num_edges:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; allowed: [{graph.num_edges}, heads], a row per edge")
    same_device(name, tensor, graph)


def mask(tensor: Tensor, score: Tensor) -> None:
    if tensor.dtype != torch.bool or tensor.shape not in (score.shape, score.shape[:1]):
        allowed = f"torch.bool {list(score.shape[:1])} or {list(score.shape)}"
        raise ValueError(f"mask is {tensor.dtype} {list(tensor.shape)}; allowed: {allowed}")


def node_scores(source: Tensor, target: Tensor, relation: Tensor | None, graph: Graph, negative_slope: float) -> None:
    for name, tensor in (("source", source), ("target", target)):
        if tensor.dim() != 2 or tensor.size(0) != graph.num_nodes:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; allowed: [{graph.num_nodes}, heads]")
        same_device(name, tensor, graph)
    _score_dtype("source", source)
    _alike("target", target, source)
    if relation is not None:
        if graph.edge_type is None:
            raise ValueError("edge_type is missing: scores per relation need a graph with a type on each edge")
        same_device("relation", relation, graph)
        if relation.shape != (graph.num_relations, source.size(1)):
            raise ValueError(
                f"relation has shape {list(relation.shape)}; allowed: {[graph.num_relations, source.size(1)]}"
            )
        _alike("relation", relation, source)
    if not negative_slope >= 0:
        raise ValueError(f"negative_slope is {negative_slope}; allowed: 0 and above")


def _alike(name: str, tensor: Tensor, source: Tensor) -> None:
    if tensor.size(-1) != source.size(1):
        allowed = [tensor.size(0), source.size(1)]
        raise ValueError(f"{name} has shape {list(tensor.shape)}; allowed: {allowed}, the heads of source")
    if tensor.dtype != source.dtype:
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: {source.dtype}, as source")


def features(x: Tensor, attention: Tensor, graph: Graph) -> None:
    if x.dim() != 3 or x.size(0) != graph.num_nodes or 0 in x.shape[1:]:
        raise ValueError(f"x has shape {list(x.shape)}; allowed: [{graph.num_nodes}, heads, width], both 1 and above")
    dtype("x", x)
    same_device("x", x, graph)
    if attention.dim() != 2 or attention.shape != (graph.num_edges, x.size(1)):
        raise ValueError(f"attention has shape {list(attention.shape)}; allowed: {[graph.num_edges, x.size(1)]}")
    dtype("attention", attention)
    same_device("attention", attention, graph)


def hops(K: int | None) -> None:
    if not isinstance(K, int) or isinstance(K, bool) or K < 0:
        raise ValueError(f"K is {K!r}; allowed: an int, 0 and above")


def alpha(value: float | Tensor | None, heads: int, validate: bool, above_zero: bool = False) -> None:
    allowed = "above 0 and at most 1" if above_zero else "0 to 1"
    if value is None:
        raise ValueError(f"alpha is missing; allowed: {allowed}, or theta in its place")
    if isinstance(value, Tensor):
        if value.dim() > 1 or value.numel() not in (1, heads):
            raise ValueError(f"alpha has shape {list(value.shape)}; allowed: a number or [{heads}], one per head")
        if not (validate and values_readable(value)):
            return
        low, high = (float(v) for v in torch.aminmax(value.detach()))
    else:
        low = high = float(value)
    if not (0 <= low and high <= 1) or (above_zero and low == 0):
        raise ValueError(f"alpha is {low if not low >= 0 or high <= 1 else high}; allowed: {allowed}")


def theta(value: Tensor, heads: int) -> Tensor:
    if value.dim() == 1:
        value = value.expand(heads, -1)
    if value.dim() != 2 or value.size(0) != heads or value.size(1) == 0:
        raise ValueError(f"theta has shape {list(value.shape)}; allowed: [{heads}, K + 1] or [K + 1]")
    return value


def active(name: str, rate: Rate, heads: int, validate: bool = True) -> bool:
    """Whether there is anything to drop; a tensor of rates always counts."""
    if isinstance(rate, Tensor):
        if rate.dim() > 1 or rate.numel() not in (1, heads):
            raise ValueError(f"{name} has shape {list(rate.shape)}; allowed: a number or [{heads}], one per head")
        if not (validate and values_readable(rate)):
            return True
        low, high = (float(v) for v in torch.aminmax(rate.detach()))
    else:
        low = high = rate
    if not (0 <= low and high < 1):
        raise ValueError(f"{name} is {high if low >= 0 else low}; allowed: 0 up to, but not including, 1")
    return isinstance(rate, Tensor) or rate > 0


def rates(rate: Rate, heads: int, device: torch.device) -> Tensor:
    """float32 [heads]."""
    if isinstance(rate, Tensor):
        return rate.to(device, torch.float32).expand(heads).contiguous()
    return torch.full((heads,), rate, dtype=torch.float32, device=device)


def pairs(value: bool | Tensor, graph: Graph) -> None:
    if isinstance(value, Tensor) and (value.dtype != torch.int64 or value.shape != (graph.num_edges,)):
        raise ValueError(
            f"edge_pairs is {value.dtype} {list(value.shape)}; allowed: True, False or torch.int64 [{graph.num_edges}]"
        )


def top_k(k: int) -> None:
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ValueError(f"top_k is {k!r}; allowed: an int, 1 and above, or None for all edges")


def tolerance(value: float) -> None:
    if not 0 < value < 2:
        raise ValueError(f"tolerance is {value}; allowed: above 0 and below 2")


def seed(value: int | Tensor | None, why: str, device: torch.device) -> Tensor:
    if value is None:
        raise ValueError(f"seed is missing: {why} is above 0; allowed: an int or an int64 tensor [1]")
    if not isinstance(value, Tensor):
        if not isinstance(value, int) or not -(2**63) <= value < 2**63:
            raise ValueError(f"seed is {value}; allowed: an int of 64 bits or an int64 tensor [1]")
        return torch.full((1,), value, dtype=torch.int64, device=device)
    if value.dtype != torch.int64 or value.numel() != 1 or value.device != device:
        raise ValueError(
            f"seed is {value.dtype} {list(value.shape)} on {value.device}; allowed: an int or int64 [1] on {device}"
        )
    return value.view(1)
