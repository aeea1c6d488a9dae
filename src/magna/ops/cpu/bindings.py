"""The functions of `registry.Kernels` for the CPU: C++ kernels (`kernels/*.cpp`) in a library, through ctypes.

The library has every kernel for several instruction sets and takes the machine's best one, or that of the environment
variable MAGNA_CPU_ISA. The results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph import Graph, Segments
from magna.ops.backend.registry import Draw, Hop, HopBack
from magna.ops.cpu.memory_pool import POOL
from magna.ops.random import DENSE_STREAM
from magna.ops.reference import kept_edges as kept_edges  # a few passes over the edges: not worth a kernel

Kernel = Callable[..., None]

ISAS = ("baseline", "avx2", "avx512")
_SCORES = {torch.float32: "f32", torch.float64: "f64"}
_FEATURES = {**_SCORES, torch.bfloat16: "bf16"}
_NAMES = {  # with the types that each is compiled for
    **dict.fromkeys(("head_scores", "head_scores_backward", "dropout"), _FEATURES),
    **dict.fromkeys(("hop", "hop_backward", "hop_dropout"), _FEATURES),
    **dict.fromkeys(("edge_scores", "segment_sum", "edge_softmax", "edge_softmax_backward"), _SCORES),
    **dict.fromkeys(("top_k_mask", "take_rows"), _SCORES),
}
_NUMBERS = {"int64_t": ctypes.c_int64, "double": ctypes.c_double}
_CHUNK = 256  # nodes of a thread at a time, and of a partial sum of a vector's gradient


@cache
def prototype(arguments: str) -> tuple[Any, tuple[tuple[int, str], ...]]:
    """A ctypes function type and the names of its arguments, from the text of a C++ declaration.

    >>> prototype("const float* x, float *out, int64_t size")[1]
    ((1, 'x'), (1, 'out'), (1, 'size'))
    """
    types: list[Any] = []
    names = []
    for argument in arguments.split(","):
        kind, _, name = argument.replace("*", "* ").strip().rpartition(" ")
        types.append(ctypes.c_void_p if "*" in kind else _NUMBERS[kind])
        names.append(name)
    return ctypes.CFUNCTYPE(None, *types), tuple((1, name) for name in names)


def load(path: Path) -> tuple[dict[tuple[str, torch.dtype], Kernel], str]:
    """The kernels of a library by name and dtype, and their instruction set; none if the library is missing.

    A call with a wrong number of arguments is a TypeError: ctypes knows the count from the library itself.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return {}, ""
    kernels: dict[tuple[str, torch.dtype], Kernel] = {}
    try:
        able = ISAS[: library.magna_best_isa() + 1]
        isa = os.environ.get("MAGNA_CPU_ISA", able[-1])
        if isa not in able:
            raise ImportError(f"MAGNA_CPU_ISA is {isa!r}; allowed on this machine: {', '.join(able)}")
        for name, dtypes in _NAMES.items():
            for dtype, suffix in dtypes.items():
                text = ctypes.c_char.in_dll(library, f"{name}_arguments_{suffix}_{isa}")
                kind, names = prototype(ctypes.string_at(ctypes.addressof(text)).decode())
                kernels[name, dtype] = kind((f"{name}_{suffix}_{isa}", library), names)
    except (AttributeError, ValueError):
        raise ImportError("the compiled kernels are of another version; install magna again") from None
    return kernels, isa


LIBRARY = Path(__file__).with_name("libmagna.so")
_kernels, isa = load(LIBRARY)


def why_not(device: torch.device) -> str | None:
    """The reason why the kernels cannot run on tensors of this device, or None."""
    if device.type != "cpu":
        return f"the tensors are on {device}, and this backend runs on the CPU"
    if not _kernels:
        return "the compiled kernels are missing, because no C++ compiler with OpenMP was found at installation"
    return None


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return POOL.empty(shape, like.dtype)


def _run(name: str, first: Tensor, *rest: Tensor | float | None) -> None:
    """Call a kernel of the dtype of its first argument; the number of threads goes last."""
    kernel = _kernels.get((name, first.dtype))
    if kernel is None:
        raise ArgumentError(f"the first tensor of {name}", first, [str(dtype) for dtype in _NAMES[name]])
    arguments = [value.data_ptr() if isinstance(value, Tensor) else value for value in (first, *rest)]
    kernel(*arguments, torch.get_num_threads())


def _rows(segments: Segments) -> tuple[Tensor, Tensor, Tensor, int, int]:
    ptr, hubs = segments.ptr, segments.hubs
    return ptr, segments.order, hubs, ptr.numel() - 1, hubs.size(0)


def _draw(draw: Draw, number: int) -> tuple[Tensor | int | None, ...]:
    return *draw[:7], number


def head_scores(x: Tensor, vector: Tensor, tanh: bool) -> Tensor:
    out = vector.new_empty(x.shape[:3])
    _run("head_scores", x, vector, out, *x.shape, _CHUNK, tanh)
    return out


def head_scores_backward(grad: Tensor, x: Tensor, vector: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    groups, nodes, heads, width = x.shape
    grad_x = empty(x.shape, x)
    partial = vector.new_empty(groups, -(-nodes // _CHUNK), heads, width)
    _run("head_scores_backward", x, grad, vector, grad_x, partial, *x.shape, _CHUNK, tanh)
    return grad_x, partial.sum(1)


def edge_scores(source: Tensor, target: Tensor, relation: Tensor | None, graph: Graph, negative_slope: float) -> Tensor:
    source, target, edge_index = source.contiguous(), target.contiguous(), graph.edge_index.contiguous()
    edge_type = None
    if relation is not None:
        assert graph.edge_type is not None
        edge_type = graph.edge_type.contiguous()
    out = empty((graph.num_edges, source.size(1)), source)
    sizes = graph.num_edges, source.size(1), negative_slope
    _run("edge_scores", source, target, relation, edge_index, edge_type, out, *sizes)
    return out


def segment_sum(grad: Tensor, scores: Tensor, negative_slope: float, segments: Segments) -> Tensor:
    out = grad.new_empty(segments.ptr.numel() - 1, grad.size(1))
    _run("segment_sum", grad, scores, *_rows(segments), out, grad.size(1), negative_slope)
    return out


def edge_softmax(scores: Tensor, graph: Graph) -> Tensor:
    target, out = graph.target.contiguous(), empty(scores.shape, scores)
    stats = scores.new_empty(graph.num_nodes, 2, scores.size(1))
    _run("edge_softmax", scores, *_rows(graph.by_target), target, stats, out, scores.size(1))
    return out


def edge_softmax_backward(grad: Tensor, attention: Tensor, graph: Graph) -> Tensor:
    target, out = graph.target.contiguous(), empty(attention.shape, attention)
    dots = grad.new_empty(graph.num_nodes, grad.size(1))
    _run("edge_softmax_backward", grad, attention, *_rows(graph.by_target), target, dots, out, grad.size(1))
    return out


def top_k_mask(scores: Tensor, k: int, graph: Graph) -> Tensor:
    out = torch.empty_like(scores, dtype=torch.bool)
    _run("top_k_mask", scores, *_rows(graph.by_target), out, k, scores.size(1))
    return out


def take_rows(values: Tensor, order: Tensor) -> Tensor:
    out = empty(values.shape, values)
    _run("take_rows", values, order, out, *values.shape)
    return out


def dropout(x: Tensor, rate: Tensor, seed: Tensor, shared: bool) -> Tensor:
    out = empty((*rate.shape, *x.shape) if shared else x.shape, x)
    if out.numel():
        _run("dropout", x, out, out.numel(), out.numel() // rate.numel(), shared, rate, seed, DENSE_STREAM)
    return out


def attention_kept(draw: Draw, hops: int, segments: Segments) -> None:
    """Draw nothing ahead: a hop draws once for an edge and head, whatever its width."""


def hop(step: Hop) -> None:
    z, x, attention, segments, col, z_scale, x_scale, out, draw, number = step
    scales = z_scale, x_scale
    _run("hop", z, x, attention, *_rows(segments), col, *scales, out, z.size(1), z.size(2), *_draw(draw, number))


def hop_backward(step: HopBack) -> Tensor | None:
    grad, z, attention, segments, col = step[:5]
    z_scale, first_scale, scale, grad_attention, add, rank, grad_x, out, draw, number = step[5:]
    walk = attention, *_rows(segments), col, z_scale, first_scale, scale
    sizes = grad.size(1), grad.size(2), *_draw(draw, number)
    _run("hop_backward", grad, z, *walk, grad_attention, add, grad_x, out, *sizes)
    return None if rank is None else take_rows(grad_attention, rank)


def hop_dropout(grad: Tensor, draw: Draw, number: int) -> Tensor:
    out = empty(grad.shape, grad)
    _run("hop_dropout", grad, out, *grad.shape, *_draw(draw, number))
    return out
