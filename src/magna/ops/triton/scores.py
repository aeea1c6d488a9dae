"""The steps before the softmax on the GPU: the scores of nodes and of edges, and the edges that dropout leaves."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Graph
from magna.ops.random import EDGE_STREAM
from magna.ops.triton.dense import sum_rows
from magna.ops.triton.draw import bits, keys
from magna.ops.triton.edges import blocks
from magna.ops.triton.launch import accumulator, bound, ceil_div, power_of_2

_TILE = 4096  # channels of several nodes that a program takes in one step
_CHUNK = 32, 128  # nodes of a program, at least and at most
_PROGRAMS = 1024  # at most, unless each has the most nodes
_EDGES = 128  # edges of a program


@triton.jit
def _tanh(x, ROUNDED: tl.constexpr):
    """Tanh, exact where e^2x is 0 or inf, and elsewhere to a rounding of 1, as a sum needs.

    Of bfloat16 to 5e-7, a thousandth of its rounding: 1 / y is rsqrt(y)^2, two instructions instead of a division.
    """
    if ROUNDED:
        root = tl.rsqrt(tl.exp2(2.8853900817779268 * x) + 1.0)
        return 1.0 - 2.0 * root * root
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def _head(
    x_ptr, vector_ptr, start, nodes,
    H: tl.constexpr, C: tl.constexpr, BN: tl.constexpr, CB: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One head of the next BN nodes of a group: their place in [G, N, H], a mask, x, its place and mask, the vector."""
    h, group = tl.program_id(1), tl.program_id(2).to(tl.int64)
    n, c = start + tl.arange(0, BN), tl.arange(0, CB)
    row = (group * nodes + n) * H + h
    exists, live = n < nodes, (n < nodes)[:, None] & (c < C)[None, :]
    place = row[:, None] * C + c[None, :]
    x = tl.load(x_ptr + place, mask=live, other=0.0).to(ACC)
    vector = tl.load(vector_ptr + (group * H + h) * C + c, mask=c < C, other=0.0)
    return row, exists, x, place, live, vector


@triton.jit
def _head_scores_kernel(
    x_ptr, vector_ptr, out_ptr, nodes,
    H: tl.constexpr, C: tl.constexpr,
    CHUNK: tl.constexpr, BN: tl.constexpr, CB: tl.constexpr, TANH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * CHUNK
    for start in range(first, tl.minimum(first + CHUNK, nodes), BN):
        row, exists, x, _, _, vector = _head(x_ptr, vector_ptr, start, nodes, H, C, BN, CB, ACC)
        bent = _tanh(x, x_ptr.dtype.element_ty == tl.bfloat16) if TANH else x
        tl.store(out_ptr + row, tl.sum(bent * vector[None, :], axis=1), mask=exists)


@triton.jit
def _head_scores_backward_kernel(
    grad_ptr, x_ptr, vector_ptr, grad_x_ptr, partial_ptr, nodes,
    H: tl.constexpr, C: tl.constexpr,
    CHUNK: tl.constexpr, BN: tl.constexpr, CB: tl.constexpr, TANH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """`partial` [G, chunks, H, C]: the gradient of the vector by each chunk of nodes."""
    first = tl.program_id(0) * CHUNK
    total = tl.zeros([BN, CB], dtype=ACC)
    for start in range(first, tl.minimum(first + CHUNK, nodes), BN):
        row, exists, x, place, live, vector = _head(x_ptr, vector_ptr, start, nodes, H, C, BN, CB, ACC)
        grad = tl.load(grad_ptr + row, mask=exists, other=0.0)[:, None]
        bent = _tanh(x, x_ptr.dtype.element_ty == tl.bfloat16) if TANH else x
        total += grad * bent
        slope = grad * vector[None, :]
        if TANH:
            slope *= 1.0 - bent * bent
        tl.store(grad_x_ptr + place, slope.to(grad_x_ptr.dtype.element_ty), mask=live)
    c = tl.arange(0, CB)
    item = tl.program_id(2).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(partial_ptr + (item * H + tl.program_id(1)) * C + c, tl.sum(total, axis=0), mask=c < C)


@triton.jit
def _ends(edge_index_ptr, num_edges, BE: tl.constexpr):
    """The next BE edges, a mask of those that exist, their sources and targets."""
    e = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    exists = e < num_edges
    source = tl.load(edge_index_ptr + e, mask=exists, other=0)
    target = tl.load(edge_index_ptr + num_edges + e, mask=exists, other=0)
    return e, exists, source, target


@triton.jit
def _edge_scores_kernel(
    source_ptr, target_ptr, relation_ptr, edge_index_ptr, edge_type_ptr, out_ptr, num_edges, by_source, by_target,
    SLOPE: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, TYPED: tl.constexpr,
):  # fmt: skip
    """`by_source` and `by_target` are the strides from one node's scores to the next."""
    e, exists, source, target = _ends(edge_index_ptr, num_edges, BE)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    live = exists[:, None] & (h < H)[None, :]
    total = tl.load(source_ptr + source[:, None] * by_source + h[None, :], mask=live, other=0.0)
    total += tl.load(target_ptr + target[:, None] * by_target + h[None, :], mask=live, other=0.0)
    if TYPED:
        kind = tl.load(edge_type_ptr + e, mask=exists, other=0)
        total += tl.load(relation_ptr + kind[:, None] * H + h[None, :], mask=live, other=0.0)
    total = tl.where(total > 0, total, total * SLOPE)
    tl.store(out_ptr + e[:, None] * H + h[None, :], total, mask=live)


@triton.jit
def _kept_edges_kernel(
    rate_ptr, seed_ptr, pairs_ptr, edge_index_ptr, out_ptr, num_edges, num_nodes,
    STREAM: tl.constexpr, NUMBERED: tl.constexpr, PAIRED: tl.constexpr, SEED_HEADS: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """An edge has one draw for all heads, or one for every SEED_HEADS of them, each from another seed."""
    e, exists, source, target = _ends(edge_index_ptr, num_edges, BE)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    entry = e
    if NUMBERED:
        entry = tl.load(pairs_ptr + e, mask=exists, other=0)
    elif PAIRED:
        entry = tl.minimum(source, target) * num_nodes + tl.maximum(source, target)
    if SEED_HEADS < H:
        seed_ptr += tl.minimum(h, H - 1)[None, :] // SEED_HEADS
    key0, key1 = keys(seed_ptr, tl.full([], STREAM, tl.int32))
    drawn = bits(key0, key1, entry[:, None]).to(tl.int64)
    bar = (tl.load(rate_ptr + h, mask=h < H, other=0.0) * 4294967296.0).to(tl.int64)
    stays = (drawn >= bar[None, :]) | (source == target)[:, None]
    live = exists[:, None] & (h < H)[None, :]
    tl.store(out_ptr + e[:, None] * H + h[None, :], stays.to(tl.int8), mask=live)


def head_scores(x: Tensor, vector: Tensor, tanh: bool) -> Tensor:
    out = vector.new_empty(x.shape[:3])
    if out.numel():
        options, grid = _tiles(x)
        bound(_head_scores_kernel, TANH=tanh, **options)[grid](x, vector, out, x.size(1))
    return out


def head_scores_backward(grad: Tensor, x: Tensor, vector: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    options, grid = _tiles(x)
    grad_x = torch.empty_like(x)
    partial = vector.new_empty(x.size(0), grid[0], *x.shape[2:])
    if partial.numel():
        kernel = bound(_head_scores_backward_kernel, TANH=tanh, **options)
        kernel[grid](grad, x, vector, grad_x, partial, x.size(1))
    return grad_x, sum_rows(partial.flatten(2)).view(vector.shape)


def _tiles(x: Tensor) -> tuple[dict[str, Any], tuple[int, int, int]]:
    groups, nodes, heads, width = x.shape
    channels = power_of_2(width)
    least, most = _CHUNK
    chunk = min(most, max(least, power_of_2(ceil_div(groups * nodes * heads, _PROGRAMS))))
    rows = min(chunk, max(1, _TILE // channels))
    options = {"H": heads, "C": width, "CHUNK": chunk, "BN": rows, "CB": channels, "ACC": accumulator(x.dtype)}
    return options, (ceil_div(nodes, chunk), heads, groups)


def edge_scores(source: Tensor, target: Tensor, relation: Tensor | None, graph: Graph, negative_slope: float) -> Tensor:
    out = source.new_empty(graph.num_edges, source.size(1))
    options, groups = blocks(source.size(1), edges=_EDGES, num_warps=4)
    # Both may be views of one tensor with the heads of both.
    source, target = (part if part.stride(1) == 1 else part.contiguous() for part in (source, target))
    if out.numel():
        kernel = bound(_edge_scores_kernel, SLOPE=negative_slope, TYPED=relation is not None, **options)
        edges = graph.edge_index.contiguous(), _flat(graph.edge_type)
        kernel[(ceil_div(graph.num_edges, _EDGES), groups)](
            source, target, relation, *edges, out, graph.num_edges, source.stride(0), target.stride(0)
        )
    return out


def kept_edges(rate: Tensor, seed: Tensor, pairs: Tensor | None, paired: bool, graph: Graph) -> Tensor:
    out = torch.empty(graph.num_edges, rate.size(0), dtype=torch.bool, device=rate.device)
    options, groups = blocks(rate.size(0), edges=_EDGES, num_warps=4)
    if out.numel():
        draws = {"NUMBERED": pairs is not None, "PAIRED": paired, "SEED_HEADS": rate.size(0) // seed.size(0)}
        kernel = bound(_kept_edges_kernel, STREAM=EDGE_STREAM, **draws, **options)
        edges, flags = graph.edge_index.contiguous(), out.view(torch.int8)
        kernel[(ceil_div(graph.num_edges, _EDGES), groups)](
            rate, seed, _flat(pairs), edges, flags, graph.num_edges, graph.num_nodes
        )
    return out


def _flat(per_edge: Tensor | None) -> Tensor | None:
    """A contiguous copy of a column of a table."""
    return None if per_edge is None else per_edge.contiguous()
