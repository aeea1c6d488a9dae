"""The CPU backend: C++ kernels (`kernels/*.cpp`) in a plain library, called through ctypes.

The library holds every kernel for several instruction sets, and the best one that the machine has is taken; the
environment variable MAGNA_CPU_ISA may name a lesser one. The results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magna.graph import Graph, Segments
from magna.ops.backend.registry import Draw
from magna.ops.cpu.memory_pool import POOL
from magna.ops.random import DENSE_STREAM
from magna.ops.reference import kept_edges as kept_edges  # a few passes over the edges: not worth a kernel here

Kernel = Callable[..., None]

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_ROWS: list[Any] = [_POINTER] * 3 + [_INT] * 2
_DRAW: list[Any] = [_POINTER] * 3 + [_INT] * 4
_ARGUMENTS: dict[str, list[Any]] = {
    "head_scores": [_POINTER] * 3 + [_INT] * 7,
    "head_scores_backward": [_POINTER] * 5 + [_INT] * 7,
    "edge_scores": [_POINTER] * 6 + [_INT, _INT, _FLOAT, _INT],
    "segment_sum": [_POINTER] * 2 + _ROWS + [_POINTER, _INT, _FLOAT, _INT],
    "edge_softmax": [_POINTER] + _ROWS + [_POINTER] * 3 + [_INT] * 2,
    "edge_softmax_backward": [_POINTER] * 2 + _ROWS + [_POINTER] * 3 + [_INT] * 2,
    "top_k_mask": [_POINTER] + _ROWS + [_POINTER] + [_INT] * 3,
    "take_rows": [_POINTER] * 3 + [_INT] * 3,
    "dropout": [_POINTER] * 2 + [_INT] * 3 + [_POINTER] * 2 + [_INT] * 2,
    "hop": [_POINTER] * 3 + _ROWS + [_POINTER] * 4 + [_INT] * 2 + _DRAW + [_INT] * 2,
    "hop_backward": [_POINTER] * 3 + _ROWS + [_POINTER] * 5 + [_INT] + [_POINTER] * 2 + [_INT] * 2 + _DRAW + [_INT] * 2,
    "hop_dropout": [_POINTER] * 2 + [_INT] * 3 + _DRAW + [_INT] * 2,
}
ISAS = ("baseline", "avx2", "avx512")
_FEATURES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16"}
_SCORES = {torch.float32: "f32", torch.float64: "f64"}
_ON_FEATURES = ("head_scores", "head_scores_backward", "dropout", "hop", "hop_backward", "hop_dropout")
_CHUNK = 256  # nodes that a thread takes at a time; the sums of the gradient of a vector follow it


def load(path: Path) -> tuple[dict[tuple[str, torch.dtype], Kernel], str]:
    """The kernels of a library by name and dtype, and the instruction set they are for; none where it is missing."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return {}, ""
    try:
        able = ISAS[: library.magna_best_isa() + 1]
        isa = os.environ.get("MAGNA_CPU_ISA", able[-1])
        if isa not in able:
            raise ImportError(f"MAGNA_CPU_ISA is {isa!r}; allowed on this machine: {', '.join(able)}")
        found: dict[tuple[str, torch.dtype], Kernel] = {}
        for name, arguments in _ARGUMENTS.items():
            for dtype, suffix in (_FEATURES if name in _ON_FEATURES else _SCORES).items():
                kernel = library[f"{name}_{suffix}_{isa}"]
                kernel.argtypes, kernel.restype = arguments, None
                found[name, dtype] = kernel
    except AttributeError:
        raise ImportError("the compiled kernels are of another version; install magna again") from None
    return found, isa


LIBRARY = Path(__file__).with_name("libmagna.so")
_kernels, isa = load(LIBRARY)


def why_not(device: torch.device) -> str | None:
    """Why the kernels cannot run on tensors of this device, or None where they can."""
    if device.type != "cpu":
        return f"the tensors are on {device}, and this backend runs on the CPU"
    if not _kernels:
        return "the compiled kernels are missing, because no C++ compiler with OpenMP was found at installation"
    return None


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return POOL.empty(shape, like.dtype)


def head_scores(x: Tensor, vector: Tensor, tanh: bool) -> Tensor:
    out = vector.new_empty(x.shape[:3])
    _kernel("head_scores", x)(
        x.data_ptr(), vector.data_ptr(), out.data_ptr(), *x.shape, _CHUNK, int(tanh), torch.get_num_threads()
    )
    return out


def head_scores_backward(grad: Tensor, x: Tensor, vector: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    groups, nodes, heads, width = x.shape
    grad_x = empty(x.shape, x)
    partial = vector.new_empty(groups, -(-nodes // _CHUNK), heads, width)
    _kernel("head_scores_backward", x)(
        grad.data_ptr(),
        x.data_ptr(),
        vector.data_ptr(),
        grad_x.data_ptr(),
        partial.data_ptr(),
        *x.shape,
        _CHUNK,
        int(tanh),
        torch.get_num_threads(),
    )
    return grad_x, partial.sum(1)


def edge_scores(source: Tensor, target: Tensor, relation: Tensor | None, graph: Graph, negative_slope: float) -> Tensor:
    source, target, edge_index = source.contiguous(), target.contiguous(), graph.edge_index.contiguous()
    edge_type = None
    if relation is not None:
        assert graph.edge_type is not None
        edge_type = graph.edge_type.contiguous()
    out = empty((graph.num_edges, source.size(1)), source)
    _kernel("edge_scores", source)(
        source.data_ptr(),
        target.data_ptr(),
        _pointer(relation),
        edge_index.data_ptr(),
        _pointer(edge_type),
        out.data_ptr(),
        graph.num_edges,
        source.size(1),
        negative_slope,
        torch.get_num_threads(),
    )
    return out


def segment_sum(grad: Tensor, scores: Tensor, negative_slope: float, segments: Segments) -> Tensor:
    out = grad.new_empty(segments.ptr.numel() - 1, grad.size(1))
    _kernel("segment_sum", grad)(
        grad.data_ptr(),
        scores.data_ptr(),
        *_rows(segments),
        out.data_ptr(),
        grad.size(1),
        negative_slope,
        torch.get_num_threads(),
    )
    return out


def edge_softmax(scores: Tensor, graph: Graph) -> Tensor:
    target, out = graph.target.contiguous(), empty(scores.shape, scores)
    stats = scores.new_empty(graph.num_nodes, 2, scores.size(1))
    _kernel("edge_softmax", scores)(
        scores.data_ptr(),
        *_rows(graph.by_target),
        target.data_ptr(),
        stats.data_ptr(),
        out.data_ptr(),
        scores.size(1),
        torch.get_num_threads(),
    )
    return out


def edge_softmax_backward(grad: Tensor, attention: Tensor, graph: Graph) -> Tensor:
    target, out = graph.target.contiguous(), empty(attention.shape, attention)
    dots = grad.new_empty(graph.num_nodes, grad.size(1))
    _kernel("edge_softmax_backward", grad)(
        grad.data_ptr(),
        attention.data_ptr(),
        *_rows(graph.by_target),
        target.data_ptr(),
        dots.data_ptr(),
        out.data_ptr(),
        grad.size(1),
        torch.get_num_threads(),
    )
    return out


def top_k_mask(scores: Tensor, k: int, graph: Graph) -> Tensor:
    out = torch.empty_like(scores, dtype=torch.bool)
    _kernel("top_k_mask", scores)(
        scores.data_ptr(), *_rows(graph.by_target), out.data_ptr(), k, scores.size(1), torch.get_num_threads()
    )
    return out


def take_rows(values: Tensor, order: Tensor) -> Tensor:
    out = empty(values.shape, values)
    _kernel("take_rows", values)(
        values.data_ptr(), order.data_ptr(), out.data_ptr(), *values.shape, torch.get_num_threads()
    )
    return out


def dropout(x: Tensor, rate: Tensor, seed: Tensor, shared: bool) -> Tensor:
    out = empty((*rate.shape, *x.shape) if shared else x.shape, x)
    if out.numel() == 0:
        return out
    _kernel("dropout", x)(
        x.data_ptr(),
        out.data_ptr(),
        out.numel(),
        out.numel() // rate.numel(),
        shared,
        rate.data_ptr(),
        seed.data_ptr(),
        DENSE_STREAM,
        torch.get_num_threads(),
    )
    return out


def attention_kept(draw: Draw, hops: int, segments: Segments) -> None:
    """Nothing is drawn ahead: a hop draws once for an edge and head, whatever its width."""


def hop(
    z: Tensor,
    x: Tensor,
    attention: Tensor,
    segments: Segments,
    col: Tensor,
    *,
    z_scale: Tensor | None,
    x_scale: Tensor,
    draw: Draw,
    number: int,
    out: Tensor,
) -> None:
    """One hop: out = F ∘ (z_scale · A_k z + x_scale · x), F its feature dropout."""
    _kernel("hop", z)(
        z.data_ptr(),
        x.data_ptr(),
        attention.data_ptr(),
        *_rows(segments),
        col.data_ptr(),
        _pointer(z_scale),
        x_scale.data_ptr(),
        out.data_ptr(),
        z.size(1),
        z.size(2),
        *_draw(draw),
        number,
        torch.get_num_threads(),
    )


def hop_backward(
    grad: Tensor,
    z: Tensor,
    attention: Tensor,
    segments: Segments,
    col: Tensor,
    *,
    z_scale: Tensor | None,
    first_scale: Tensor | None,
    scale: Tensor,
    draw: Draw,
    number: int,
    grad_attention: Tensor,
    add: bool,
    rank: Tensor | None,
    grad_x: Tensor,
    out: Tensor | None,
) -> Tensor | None:
    """One hop back: T = F ∘ A_kᵀ grad with the feature dropout F of the hop before; grad_x gets scale · T, out gets T,
    and an edge's grad_attention gets z_scale · its dropout factor · ⟨grad at its target, z at its source⟩. With `rank`,
    the positions of the caller's edges in the walk, grad_attention is complete and returned in the caller's order.
    """
    _kernel("hop_backward", grad)(
        grad.data_ptr(),
        z.data_ptr(),
        attention.data_ptr(),
        *_rows(segments),
        col.data_ptr(),
        _pointer(z_scale),
        _pointer(first_scale),
        scale.data_ptr(),
        grad_attention.data_ptr(),
        add,
        grad_x.data_ptr(),
        _pointer(out),
        grad.size(1),
        grad.size(2),
        *_draw(draw),
        number,
        torch.get_num_threads(),
    )
    return None if rank is None else take_rows(grad_attention, rank)


def hop_dropout(grad: Tensor, draw: Draw, number: int) -> Tensor:
    """The gradient through the feature dropout of a hop."""
    out = empty(grad.shape, grad)
    _kernel("hop_dropout", grad)(
        grad.data_ptr(), out.data_ptr(), *grad.shape, *_draw(draw), number, torch.get_num_threads()
    )
    return out


def _kernel(name: str, tensor: Tensor) -> Kernel:
    kernel = _kernels.get((name, tensor.dtype))
    if kernel is None:
        raise ValueError(
            f"{name} got {tensor.dtype}; allowed: torch.float32, torch.float64, for features torch.bfloat16"
        )
    return kernel


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _rows(segments: Segments) -> tuple[int, int, int, int, int]:
    ptr, order, hubs = segments.ptr, segments.order, segments.hubs
    return ptr.data_ptr(), order.data_ptr(), hubs.data_ptr(), ptr.numel() - 1, hubs.size(0)


def _draw(draw: Draw) -> tuple[int | None, ...]:
    attention_rate, feature_rate = _pointer(draw.attention_rate), _pointer(draw.feature_rate)
    return draw.seed.data_ptr(), attention_rate, feature_rate, *draw[3:7]
