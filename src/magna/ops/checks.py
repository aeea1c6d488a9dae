"""What an operator accepts. Shapes, types and devices cost nothing to check; values are looked at only on request."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from magna.graph import Graph
from magna.ops.backend.registry import DTYPES, may_keep

Rate = float | Tensor  # a probability, or one per head
# None is ever taken out, as a captured step goes on reading what it found here: where it is full, nothing is added.
_FIXED_RATES: dict[tuple[float, int, torch.device], Tensor] = {}
_MOST_RATES = 256


def traced(tensor: Tensor) -> bool:
    """Whether a compiler looks on, or there is a shape alone."""
    return torch.compiler.is_compiling() or isinstance(tensor, FakeTensor)


def values_readable(tensor: Tensor) -> bool:
    """Values cannot be looked at while a compiler traces, a CUDA graph is being captured, or where there are none."""
    return not (traced(tensor) or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()))


def levels(tensor: Tensor) -> list[Tensor]:
    """A tensor, and what it stands for under `torch.vmap`: the last has all trials, and knows whether they learn."""
    found = [tensor]
    if not torch.compiler.is_compiling():
        while torch._C._functorch.is_functorch_wrapped_tensor(found[-1]):
            found.append(torch._C._functorch.get_unwrapped(found[-1]))
    return found


def tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is a {type(value).__name__}; allowed: a torch.Tensor")


def graph(value: object) -> None:
    if not isinstance(value, Graph):
        allowed = "a Graph (try Graph.from_edge_index(edge_index, num_nodes))"
        raise ValueError(f"graph is a {type(value).__name__}; allowed: {allowed}")


def is_number(value: object) -> bool:
    # A compiler's own number cannot be asked.
    return torch.compiler.is_compiling() or hasattr(value, "__float__")


def same_device(name: str, tensor: Tensor, graph: Graph) -> None:
    if tensor.device != graph.device:
        raise ValueError(f"{name} is on {tensor.device}, the graph on {graph.device}; move one with .to(device)")


def dtype(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPES:
        allowed = ", ".join(str(d) for d in DTYPES)
        hint = " (try .bfloat16(), or torch.autocast(…, dtype=torch.bfloat16))" if tensor.dtype == torch.float16 else ""
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: {allowed}{hint}")


def multiplied(name: str, tensor: Tensor, weight: Tensor) -> None:
    """Torch's own products want one type on both sides, unless autocast sees to it."""
    if tensor.dtype != weight.dtype and not torch.is_autocast_enabled(tensor.device.type):
        raise ValueError(
            f"{name} has dtype {tensor.dtype}; allowed: {weight.dtype}, as the weights (try .to({weight.dtype}))"
        )


def scores(value: Tensor, edges: Graph, validate: bool) -> None:
    graph(edges)
    _per_edge("scores", value, edges)
    _score_dtype("scores", value)
    # The largest score is NaN where any is: one pass without a copy. Only a bad tensor is looked at closer.
    if validate and values_readable(value) and value.numel() and not bool(value.detach().amax() < torch.inf):
        edge, head = (int(i) for i in (value.isnan() | (value == torch.inf)).nonzero()[0])
        raise ValueError(
            f"scores[{edge}, {head}] is {float(value[edge, head])}; allowed: finite numbers, or -inf for no edge"
        )


def _score_dtype(name: str, tensor: Tensor) -> None:
    # Also where features are bfloat16: the softmax needs the digits.
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} has dtype {tensor.dtype}; allowed: torch.float32, torch.float64 (try .float())")


def _per_edge(name: str, value: Tensor, edges: Graph) -> None:
    tensor(name, value)
    if value.dim() != 2 or value.size(0) != edges.num_edges:
        raise ValueError(f"{name} has shape {list(value.shape)}; allowed: [{edges.num_edges}, heads], a row per edge")
    same_device(name, value, edges)


def mask(name: str, value: Tensor, edges: Graph, heads: int) -> None:
    tensor(name, value)
    one, each = (edges.num_edges,), (edges.num_edges, heads)
    if value.dtype != torch.bool or value.shape not in (one, each):
        allowed = f"torch.bool {list(one)} or {list(each)}"
        raise ValueError(f"{name} is {value.dtype} {list(value.shape)}; allowed: {allowed}")
    same_device(name, value, edges)


def head_vector(x: Tensor, vector: Tensor) -> None:
    tensor("x", x)
    tensor("vector", vector)
    if x.dim() != 3:
        raise ValueError(f"x has shape {list(x.shape)}; allowed: [num_nodes, heads, width]")
    dtype("x", x)
    if vector.shape != x.shape[1:]:
        raise ValueError(f"vector has shape {list(vector.shape)}; allowed: {list(x.shape[1:])}, a row per head of x")
    if vector.device != x.device:
        raise ValueError(f"vector is on {vector.device}, x on {x.device}; move one with .to(device)")


def node_scores(source: Tensor, target: Tensor, relation: Tensor | None, edges: Graph, negative_slope: float) -> None:
    graph(edges)
    for name, value in (("source", source), ("target", target)):
        tensor(name, value)
        if value.dim() != 2 or value.size(0) != edges.num_nodes:
            raise ValueError(f"{name} has shape {list(value.shape)}; allowed: [{edges.num_nodes}, heads]")
        same_device(name, value, edges)
    _score_dtype("source", source)
    _alike("target", target, source)
    if relation is not None:
        if edges.edge_type is None:
            raise ValueError("edge_type is missing: scores per relation need a graph with a type on each edge")
        same_device("relation", relation, edges)
        if relation.shape != (edges.num_relations, source.size(1)):
            raise ValueError(
                f"relation has shape {list(relation.shape)}; allowed: {[edges.num_relations, source.size(1)]}"
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


def features(x: Tensor, attention: Tensor, edges: Graph) -> None:
    graph(edges)
    tensor("x", x)
    tensor("attention", attention)
    if x.dim() != 3 or x.size(0) != edges.num_nodes or 0 in x.shape[1:]:
        raise ValueError(f"x has shape {list(x.shape)}; allowed: [{edges.num_nodes}, heads, width], both 1 and above")
    dtype("x", x)
    same_device("x", x, edges)
    if attention.dim() != 2 or attention.shape != (edges.num_edges, x.size(1)):
        raise ValueError(f"attention has shape {list(attention.shape)}; allowed: {[edges.num_edges, x.size(1)]}")
    dtype("attention", attention)
    same_device("attention", attention, edges)


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
    elif is_number(value):
        low = high = float(value)
    else:
        raise ValueError(f"alpha is {value!r}; allowed: {allowed}, a number or a tensor [{heads}]")
    if not (0 <= low and high <= 1) or (above_zero and low == 0):
        raise ValueError(f"alpha is {low if not low >= 0 or high <= 1 else high}; allowed: {allowed}")


def theta(value: Tensor, heads: int) -> Tensor:
    tensor("theta", value)
    if value.dim() == 1:
        value = value.expand(heads, -1)
    if value.dim() != 2 or value.size(0) != heads or value.size(1) == 0:
        raise ValueError(f"theta has shape {list(value.shape)}; allowed: [{heads}, K + 1] or [K + 1]")
    return value


def active(name: str, rate: Rate, heads: int, validate: bool = True, per_hop: bool = False) -> bool:
    """Whether there is anything to drop; a tensor of rates always counts. `per_hop`: each hop may have its own."""
    if isinstance(rate, Tensor):
        if rate.dim() > 1 + per_hop or (rate.size(-1) if rate.dim() else 1) not in (1, heads):
            allowed = f"a number or [{heads}], one per head" + (f", or [K, {heads}], one per hop and head" * per_hop)
            raise ValueError(f"{name} has shape {list(rate.shape)}; allowed: {allowed}")
        if not (validate and values_readable(rate)):
            return True
        low, high = (float(v) for v in torch.aminmax(rate.detach()))
    elif is_number(rate):
        low = high = rate
    else:
        raise ValueError(f"{name} is {rate!r}; allowed: 0 up to, but not including, 1")
    # Rates are kept in float32, where what is nearer to 1 than this is 1.
    if not (0 <= low and high < 1 - 2**-25):
        raise ValueError(f"{name} is {high if low >= 0 else low}; allowed: 0 up to, but not including, 1")
    return isinstance(rate, Tensor) or rate > 0


def rates(rate: Rate, heads: int, device: torch.device) -> Tensor:
    """float32 [heads], or [K, heads] where each hop has its own; to be read alone, as others have the same tensor."""
    if isinstance(rate, Tensor):
        return rate.to(device, torch.float32).expand(*rate.shape[:-1], heads).contiguous()
    if not may_keep():
        return torch.full((heads,), rate, dtype=torch.float32, device=device)
    key = float(rate), heads, device
    found = _FIXED_RATES.get(key)
    if found is None:
        found = torch.full((heads,), rate, dtype=torch.float32, device=device)
        # What is made while a CUDA graph is captured belongs there, and must not be kept.
        if len(_FIXED_RATES) < _MOST_RATES and values_readable(found):
            if found.is_cuda:
                torch.cuda.current_stream(device).synchronize()  # once: later calls may be on another stream
            _FIXED_RATES[key] = found
    return found


def per_hop(name: str, rate: Tensor | None, hops: int) -> None:
    if rate is not None and rate.dim() == 2 and rate.size(0) != hops:
        raise ValueError(f"{name} has {rate.size(0)} rows; allowed: {hops}, one per hop")


def pairs(value: bool | Tensor, edges: Graph) -> None:
    if isinstance(value, bool):
        return
    allowed = f"True, False or torch.int64 [{edges.num_edges}]"
    if not isinstance(value, Tensor):
        raise ValueError(f"edge_pairs is {value!r}; allowed: {allowed}")
    if value.dtype != torch.int64 or value.shape != (edges.num_edges,):
        raise ValueError(f"edge_pairs is {value.dtype} {list(value.shape)}; allowed: {allowed}")
    same_device("edge_pairs", value, edges)


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
