"""Refusals of the operators. Shapes, types and devices cost nothing to check; values are read only on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph import Graph
from magna.graph.torch_internals import FakeTensor
from magna.graph.torch_internals import levels as levels
from magna.ops.backend.op import may_keep
from magna.ops.backend.registry import DTYPES as DTYPES

Rate = float | Tensor  # a probability, or one per head
_RATE = "0 up to, but not including, 1"
_FLOATS = ", ".join(map(str, DTYPES))
# Entries stay, as a captured step goes on reading them; a full table takes no more.
_FIXED_RATES: dict[tuple[float, int, torch.device], Tensor] = {}
_MOST_RATES = 256


def traced(tensor: Tensor) -> bool:
    """True under a compiler, or for a tensor without values."""
    return torch.compiler.is_compiling() or isinstance(tensor, FakeTensor)


def values_readable(tensor: Tensor) -> bool:
    """False while a compiler traces or a CUDA graph is captured, and for tensors without values."""
    return not (traced(tensor) or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()))


def tensor(name: str, value: object, allowed: str = "a torch.Tensor") -> None:
    if not isinstance(value, Tensor):
        raise ArgumentError(name, value, allowed)


def alike(
    name: str, value: Any, dtype: torch.dtype | None, shape: Sequence[int], device: torch.device, note: str
) -> None:
    """Refuse all but a tensor of this shape, on this device and, unless it is None, of this type."""
    right = isinstance(value, Tensor) and list(value.shape) == list(shape) and value.device == device
    if not (right and dtype in (None, value.dtype)):
        kind = "" if dtype is None else f"{dtype} "
        raise ArgumentError(name, value, f"{kind}{list(shape)} on {device}, {note}")


def graph(value: object) -> None:
    if not isinstance(value, Graph):
        raise ArgumentError("graph", value, "a Graph", "Graph.from_edge_index(edge_index, num_nodes)")


def is_number(value: object) -> bool:
    # A compiler's own number cannot be asked.
    return torch.compiler.is_compiling() or hasattr(value, "__float__")


def same_device(name: str, value: Tensor, edges: Graph) -> None:
    if value.device != edges.device:
        raise ArgumentError(name, value, f"a tensor on {edges.device}, as the graph", ".to(device)")


def dtype(name: str, value: Tensor) -> None:
    if value.dtype not in DTYPES:
        hint = ".bfloat16(), or torch.autocast(…, dtype=torch.bfloat16)" if value.dtype == torch.float16 else ""
        raise ArgumentError(name, value, _FLOATS, hint)


def multiplied(name: str, value: Tensor, weight: Tensor) -> None:
    """Torch's own products want one type on both sides, unless autocast sees to it."""
    if value.dtype != weight.dtype and not torch.is_autocast_enabled(value.device.type):
        raise ArgumentError(name, value, f"{weight.dtype}, as the weights", f".to({weight.dtype})")


def scores(value: Tensor, edges: Graph, validate: bool) -> None:
    graph(edges)
    tensor("scores", value)
    if value.dim() != 2 or value.size(0) != edges.num_edges:
        raise ArgumentError("scores", value, f"[{edges.num_edges}, heads], a row per edge")
    same_device("scores", value, edges)
    _score_dtype("scores", value)
    # The largest score is NaN where any is: one pass without a copy. Only a bad tensor is read again.
    if validate and values_readable(value) and value.numel() and not bool(value.detach().amax() < torch.inf):
        edge, head = (int(i) for i in (value.isnan() | (value == torch.inf)).nonzero()[0])
        raise ArgumentError(f"scores[{edge}, {head}]", float(value[edge, head]), "finite numbers, or -inf for no edge")


def _score_dtype(name: str, value: Tensor) -> None:
    # Also where features are bfloat16: the softmax needs the digits.
    if value.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(name, value, "torch.float32, torch.float64", ".float()")


def mask(name: str, value: Tensor, edges: Graph, heads: int) -> None:
    one, each = [edges.num_edges], [edges.num_edges, heads]
    allowed = f"torch.bool {one} or {each}"
    tensor(name, value, allowed)
    if value.dtype != torch.bool or list(value.shape) not in (one, each):
        raise ArgumentError(name, value, allowed)
    same_device(name, value, edges)


def edge_weight(value: Tensor, edges: Graph, validate: bool) -> None:
    alike("edge_weight", value, None, [edges.num_edges], edges.device, "a number per edge")
    if not value.is_floating_point():
        raise ArgumentError("edge_weight", value, "a floating type", ".float()")
    if validate and values_readable(value) and value.numel():
        low, high = (float(v) for v in torch.aminmax(value.detach()))
        if not (low >= 0 and high < torch.inf):
            raise ArgumentError("edge_weight", low if not low >= 0 else high, "finite numbers of 0 or more; 0: no edge")


def head_vector(x: Tensor, vector: Tensor) -> None:
    tensor("x", x)
    if x.dim() != 3:
        raise ArgumentError("x", x, "[num_nodes, heads, width]")
    dtype("x", x)
    alike("vector", vector, None, x.shape[1:], x.device, "a row per head of x")


def node_scores(
    source: Tensor,
    target: Tensor,
    relation: Tensor | None,
    edges: Graph,
    negative_slope: float,
    edge: Tensor | None = None,
) -> None:
    graph(edges)
    tensor("source", source)
    if source.dim() != 2 or source.size(0) != edges.num_nodes:
        raise ArgumentError("source", source, f"[{edges.num_nodes}, heads]")
    same_device("source", source, edges)
    _score_dtype("source", source)
    heads = source.size(1)
    alike("target", target, source.dtype, [edges.num_nodes, heads], source.device, "as source")
    if relation is not None:
        if edges.edge_type is None:
            raise ArgumentError("edge_type", None, "a type on each edge of the graph, for scores per relation")
        alike("relation", relation, source.dtype, [edges.num_relations, heads], source.device, "as source")
    if edge is not None:
        alike("edge", edge, source.dtype, [edges.num_edges, heads], source.device, "as source")
    if not is_number(negative_slope) or not negative_slope >= 0:
        raise ArgumentError("negative_slope", negative_slope, "0 and above")


def features(x: Tensor, attention: Tensor, edges: Graph) -> None:
    graph(edges)
    tensor("x", x)
    if x.dim() != 3 or x.size(0) != edges.num_nodes or 0 in x.shape[1:]:
        raise ArgumentError("x", x, f"[{edges.num_nodes}, heads, width], both 1 and above")
    shape = [edges.num_edges, x.size(1)]
    tensor("attention", attention)
    if list(attention.shape) != shape:
        raise ArgumentError("attention", attention, f"{shape}, a row per edge and a column per head of x")
    for name, value in (("x", x), ("attention", attention)):
        dtype(name, value)
        same_device(name, value, edges)


def hops(K: int | None) -> None:
    if not isinstance(K, int) or isinstance(K, bool) or K < 0:
        raise ArgumentError("K", K, "an int, 0 and above")


def alpha(value: float | Tensor | None, heads: int, validate: bool, above_zero: bool = False) -> None:
    allowed = "above 0 and at most 1" if above_zero else "0 to 1"
    if isinstance(value, Tensor):
        if value.dim() > 1 or value.numel() not in (1, heads):
            raise ArgumentError("alpha", value, f"a number or [{heads}], one per head")
        if not (validate and values_readable(value)):
            return
        low, high = (float(v) for v in torch.aminmax(value.detach()))
    elif value is not None and is_number(value):
        low = high = float(value)
    else:
        raise ArgumentError("alpha", value, f"{allowed}, a number or a tensor [{heads}]; or theta in its place")
    if not (0 <= low and high <= 1) or (above_zero and low == 0):
        raise ArgumentError("alpha", low if not low >= 0 or high <= 1 else high, allowed)


def theta(value: Tensor, heads: int) -> Tensor:
    tensor("theta", value)
    if value.dim() == 1:
        value = value.expand(heads, -1)
    if value.dim() != 2 or value.size(0) != heads or value.size(1) == 0:
        raise ArgumentError("theta", value, f"[{heads}, K + 1] or [K + 1]")
    return value


def active(name: str, rate: Rate, heads: int, validate: bool = True, per_hop: bool = False) -> bool:
    """True if there is anything to drop; a tensor of rates always counts. `per_hop`: each hop may have its rates."""
    if isinstance(rate, Tensor):
        if rate.dim() > 1 + per_hop or (rate.size(-1) if rate.dim() else 1) not in (1, heads):
            allowed = f"a number or [{heads}], one per head" + (f", or [K, {heads}], one per hop and head" * per_hop)
            raise ArgumentError(name, rate, allowed)
        if not (validate and values_readable(rate)):
            return True
        low, high = (float(v) for v in torch.aminmax(rate.detach()))
    elif is_number(rate):
        low = high = rate
    else:
        raise ArgumentError(name, rate, _RATE)
    # Rates become float32, in which numbers nearer to 1 than this are 1.
    if not (0 <= low and high < 1 - 2**-25):
        raise ArgumentError(name, high if low >= 0 else low, _RATE)
    return isinstance(rate, Tensor) or rate > 0


def rates(rate: Rate, heads: int, device: torch.device) -> Tensor:
    """float32 [heads], or [K, heads] if each hop has its rates; read-only, as calls share the tensor."""
    if isinstance(rate, Tensor):
        return rate.to(device, torch.float32).expand(*rate.shape[:-1], heads).contiguous()
    if not may_keep():
        return torch.full((heads,), rate, dtype=torch.float32, device=device)
    key = float(rate), heads, device
    fixed = _FIXED_RATES.get(key)
    if fixed is None:
        fixed = torch.full((heads,), rate, dtype=torch.float32, device=device)
        # Tensors made while a CUDA graph is captured belong to the graph.
        if len(_FIXED_RATES) < _MOST_RATES and values_readable(fixed):
            if fixed.is_cuda:
                torch.cuda.current_stream(device).synchronize()  # once: later calls may be on another stream
            _FIXED_RATES[key] = fixed
    return fixed


def per_hop(name: str, rate: Tensor | None, hops: int) -> None:
    if rate is not None and rate.dim() == 2 and rate.size(0) != hops:
        raise ArgumentError(name, rate, f"{hops} rows, one per hop")


def pairs(value: bool | Tensor, edges: Graph) -> None:
    if not isinstance(value, bool):
        alike("edge_pairs", value, torch.int64, [edges.num_edges], edges.device, "or True or False")


def top_k(k: int) -> None:
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ArgumentError("top_k", k, "an int, 1 and above, or None for all edges")


def tolerance(value: float) -> None:
    if not is_number(value) or not 0 < value < 2:
        raise ArgumentError("tolerance", value, "above 0 and below 2")


def seed(value: int | Tensor | None, rate: str, device: torch.device) -> Tensor:
    allowed = f"an int of 64 bits or an int64 tensor [1] on {device}"
    if value is None:
        raise ArgumentError("seed", value, f"{allowed}, as {rate} is above 0")
    if isinstance(value, Tensor):
        if value.dtype != torch.int64 or value.numel() != 1 or value.device != device:
            raise ArgumentError("seed", value, allowed)
        return value.view(1)
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ArgumentError("seed", value, allowed)
    return torch.full((1,), value, dtype=torch.int64, device=device)
