"""Layer norm and the bias and ReLU of a linear layer's gradient on the GPU, in one pass over the rows each.

Products by tiles change or consume their results before they would be written.

Each program writes its sums over rows, the gradients of weights and biases; they are added in a fixed order, without
atomics.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from magna.ops.backend import registry as backends
from magna.ops.random import DENSE_STREAM
from magna.ops.triton.draw import bits, factor, keys
from magna.ops.triton.launch import INTERPRETED, accumulator, bound, ceil_div, index_type, power_of_2

# Rows and columns of a tile, and channels of one step of its product.
TILE = {"BM": 16, "BN": 32, "BC": 16} if INTERPRETED else {"BM": 128, "BN": 128, "BC": 64}

# Triton's interpreter reads bfloat16 numbers as integers in a matrix product.
_WIDENS = tl.constexpr(INTERPRETED)

Drawn = tuple[Tensor | None, ...]  # rate and seed of the dropout on x, and of that on the norm

_TILE = 2048  # entries of several rows that a program takes in one step
_COLUMNS = 512  # of a program that need not hold whole rows
_CHUNKS = 512  # programs that share the rows where there are sums over them
# Both for the norm's backward pass: rows of up to so many entries have one warp, which waits for no other.
_NORM_BACK = 512, 1056
_STRIP = 512, 16  # of these partial sums: rows of a step of a program, and its columns


@triton.jit
def _tile(start, end, rows, C: tl.constexpr, BN: tl.constexpr, CB: tl.constexpr, INDEX: tl.constexpr):
    """BN rows of a group: their numbers in all groups, a mask of those that exist, and both for their entries."""
    n, c = start + tl.arange(0, BN), tl.arange(0, CB)
    row = tl.program_id(1).to(INDEX) * rows + n
    exists = n < end
    return row, exists, row[:, None] * C + c[None, :], exists[:, None] & (c < C)[None, :]


@triton.jit
def _chance(rate_ptr, seed_ptr, STREAM: tl.constexpr):
    """The keys and the rate of a group's draws."""
    key0, key1 = keys(seed_ptr, tl.full([], STREAM, tl.int32))
    return key0, key1, tl.load(rate_ptr + tl.program_id(1))


@triton.jit
def _dropped(x, place, key0, key1, rate, ACC: tl.constexpr):
    """X under the dropout that `dropout` draws for entries numbered over all groups, in the type of x."""
    return (x.to(ACC) * factor(bits(key0, key1, place), rate, ACC)).to(x.dtype)


@triton.jit
def _like_sums(number: tl.constexpr, BN: tl.constexpr, ACC: tl.constexpr):
    """A constant in the type of the sums; a literal would have 32 bits."""
    return tl.full([BN], number, ACC)


@triton.jit
def _layer_norm_kernel(
    x_ptr, added_ptr, weight_ptr, bias_ptr, x_rate_ptr, x_seed_ptr, rate_ptr, seed_ptr,
    total_ptr, out_ptr, mean_ptr, scale_ptr, rows,
    EPS: tl.constexpr, UNBIASED: tl.constexpr, ADDS: tl.constexpr, X_DROPS: tl.constexpr, DROPS: tl.constexpr,
    STREAM: tl.constexpr, C: tl.constexpr, BN: tl.constexpr, CB: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    row, exists, place, live = _tile(tl.program_id(0) * BN, rows, rows, C, BN, CB, INDEX)
    loaded = tl.load(x_ptr + place, mask=live, other=0.0)
    if X_DROPS:
        key0, key1, rate = _chance(x_rate_ptr, x_seed_ptr, STREAM)
        loaded = _dropped(loaded, place, key0, key1, rate, ACC)
    x = loaded.to(ACC)
    if ADDS:
        x += tl.load(added_ptr + place, mask=live, other=0.0).to(ACC)
    if ADDS or X_DROPS:
        # The norm is that of the rounded sum, which later layers read.
        rounded = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + place, rounded, mask=live)
        x = rounded.to(ACC)
    mean = tl.sum(x, axis=1) / C
    centred = tl.where(live, x - mean[:, None], 0.0)
    squares, eps = tl.sum(centred * centred, axis=1), _like_sums(EPS, BN, ACC)
    scale = 1.0 / (tl.sqrt(squares / (C - 1)) + eps if UNBIASED else tl.sqrt(squares / C + eps))
    c = tl.arange(0, CB)
    entry = tl.program_id(1).to(tl.int64) * C + c
    weight = tl.load(weight_ptr + entry, mask=c < C, other=0.0).to(ACC)
    bias = tl.load(bias_ptr + entry, mask=c < C, other=0.0).to(ACC)
    out = centred * scale[:, None] * weight[None, :] + bias[None, :]
    if DROPS:
        key0, key1, rate = _chance(rate_ptr, seed_ptr, STREAM)
        out = _dropped(out, place, key0, key1, rate, ACC)
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=live)
    tl.store(mean_ptr + row, mean, mask=exists)
    tl.store(scale_ptr + row, scale, mask=exists)


@triton.jit
def _read_back(
    grad_ptr, total_grad_ptr, total_ptr, mean_ptr, scale_ptr, start, end, rows,
    ADDS: tl.constexpr, C: tl.constexpr, BN: tl.constexpr, CB: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The inputs of the norm's backward pass for some rows; without ADDS the total's gradient is not read."""
    row, exists, place, live = _tile(start, end, rows, C, BN, CB, INDEX)
    grad = tl.load(grad_ptr + place, mask=live, other=0.0)
    total = tl.load(total_ptr + place, mask=live, other=0.0)
    total_grad = grad
    if ADDS:
        total_grad = tl.load(total_grad_ptr + place, mask=live, other=0.0)
    mean, scale = tl.load(mean_ptr + row, mask=exists, other=0.0), tl.load(scale_ptr + row, mask=exists, other=0.0)
    return grad, total, total_grad, mean, scale


@triton.jit
def _layer_norm_backward_kernel(
    grad_ptr, total_grad_ptr, total_ptr, weight_ptr, mean_ptr, scale_ptr, x_rate_ptr, x_seed_ptr, rate_ptr, seed_ptr,
    by_total_ptr, by_x_ptr, partial_ptr, rows, chunk,
    EPS: tl.constexpr, UNBIASED: tl.constexpr, ADDS: tl.constexpr, X_DROPS: tl.constexpr, DROPS: tl.constexpr,
    STREAM: tl.constexpr, C: tl.constexpr, BN: tl.constexpr, CB: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """`partial` [G, programs, 2, C]: the gradients of weight and bias by each chunk of rows."""
    first = tl.program_id(0) * chunk
    end = tl.minimum(first + chunk, rows)
    c, group = tl.arange(0, CB), tl.program_id(1).to(tl.int64)
    weight = tl.load(weight_ptr + group * C + c, mask=c < C, other=0.0).to(ACC)
    if X_DROPS:
        x_key0, x_key1, x_rate = _chance(x_rate_ptr, x_seed_ptr, STREAM)
    if DROPS:
        key0, key1, rate = _chance(rate_ptr, seed_ptr, STREAM)
    by_weight = tl.zeros([BN, CB], dtype=ACC)
    by_bias = tl.zeros([BN, CB], dtype=ACC)
    grads, totals, total_grads, means, scales = _read_back(
        grad_ptr, total_grad_ptr, total_ptr, mean_ptr, scale_ptr, first, end, rows, ADDS, C, BN, CB, INDEX
    )
    for start in range(first, end, BN):
        _, _, place, live = _tile(start, end, rows, C, BN, CB, INDEX)
        grad, total, total_grad, mean, scale = grads.to(ACC), totals.to(ACC), total_grads, means, scales
        # Load the next rows before the sums of these, which no later load can overtake.
        grads, totals, total_grads, means, scales = _read_back(
            grad_ptr, total_grad_ptr, total_ptr, mean_ptr, scale_ptr, start + BN, end, rows, ADDS, C, BN, CB, INDEX
        )
        if DROPS:
            grad = _dropped(grad, place, key0, key1, rate, ACC)
        normed = (total - mean[:, None]) * scale[:, None]
        by_weight += grad * normed
        by_bias += grad
        slope = grad * weight[None, :]
        along = tl.sum(slope * normed, axis=1)
        if UNBIASED:
            # The deviation's share of the divisor; where eps is all of it, the deviation has no slope.
            share = 1.0 - _like_sums(EPS, BN, ACC) * scale
            along = tl.where(share > 1e-6, along / ((C - 1) * share), 0.0)
        else:
            along /= C
        slope = (slope - (tl.sum(slope, axis=1) / C)[:, None] - normed * along[:, None]) * scale[:, None]
        if ADDS:
            slope += total_grad.to(ACC)
        rounded = slope.to(by_total_ptr.dtype.element_ty)
        tl.store(by_total_ptr + place, rounded, mask=live)
        if X_DROPS:
            tl.store(by_x_ptr + place, _dropped(rounded, place, x_key0, x_key1, x_rate, ACC), mask=live)
    entry = (group * tl.num_programs(0) + tl.program_id(0)) * 2 * C + c
    tl.store(partial_ptr + entry, tl.sum(by_weight, axis=0), mask=c < C)
    tl.store(partial_ptr + entry + C, tl.sum(by_bias, axis=0), mask=c < C)


@triton.jit
def _bias_backward_kernel(
    grad_ptr, out_ptr, masked_ptr, partial_ptr, rows, chunk,
    RELU: tl.constexpr, C: tl.constexpr, BN: tl.constexpr, CB: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """`partial` [programs, C]: the sums of the gradient's columns, where the output of ReLU is above 0."""
    first = tl.program_id(0) * chunk
    end = tl.minimum(first + chunk, rows)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    total = tl.zeros([BN, CB], dtype=ACC)
    for start in range(first, end, BN):
        n = start + tl.arange(0, BN)
        place, live = n.to(tl.int64)[:, None] * C + c[None, :], (n < end)[:, None] & (c < C)[None, :]
        grad = tl.load(grad_ptr + place, mask=live, other=0.0)
        if RELU:
            grad = tl.where(tl.load(out_ptr + place, mask=live, other=0.0) <= 0, 0.0, grad)
            tl.store(masked_ptr + place, grad, mask=live)
        total += grad.to(ACC)
    tl.store(partial_ptr + tl.program_id(0).to(tl.int64) * C + c, tl.sum(total, axis=0), mask=c < C)


@triton.jit
def _sum_kernel(x_ptr, out_ptr, rows, columns, BN: tl.constexpr, CB: tl.constexpr):
    c, group = tl.program_id(0) * CB + tl.arange(0, CB), tl.program_id(1).to(tl.int64)
    total = tl.zeros([BN, CB], dtype=x_ptr.dtype.element_ty)
    for start in range(0, rows, BN):
        n = start + tl.arange(0, BN)
        live = (n < rows)[:, None] & (c < columns)[None, :]
        total += tl.load(x_ptr + (group * rows + n)[:, None] * columns + c[None, :], mask=live, other=0.0)
    tl.store(out_ptr + group * columns + c, tl.sum(total, axis=0), mask=c < columns)


def sum_rows(x: Tensor) -> Tensor:
    """[G, N, C] → [G, C], for the few rows of partial sums."""
    groups, rows, width = x.shape
    out, (step, columns) = x.new_empty(groups, width), _STRIP
    if out.numel():
        kernel = bound(_sum_kernel, BN=step, CB=columns, num_warps=8)
        kernel[(ceil_div(width, columns), groups)](x, out, rows, width)
    return out


def layer_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, drawn: Drawn, eps: float, unbiased: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    groups, rows, width = x.shape
    total = x.new_empty(groups, 0) if added is None and drawn[0] is None else torch.empty_like(x)
    out, options = torch.empty_like(x), _options(x, width, _TILE)
    mean, scale = (weight.new_empty(groups, rows) for _ in range(2))
    if out.numel():
        kernel = bound(_layer_norm_kernel, **_norm_options(x, eps, unbiased, added, drawn), **options)
        inputs = x, added, weight, bias, *drawn
        kernel[(ceil_div(rows, options["BN"]), groups)](*inputs, total, out, mean, scale, rows)
    return total, out, mean, scale


def layer_norm_backward(
    grad: Tensor,
    total_grad: Tensor | None,
    total: Tensor,
    weight: Tensor,
    mean: Tensor,
    scale: Tensor,
    drawn: Drawn,
    eps: float,
    unbiased: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    groups, rows, width = total.shape
    tile, most = _NORM_BACK
    by_total, options = torch.empty_like(total), _options(total, width, tile)
    options["num_warps"] = max(1, min(16, options["CB"] // tile))
    by_x = total.new_empty(groups, 0) if drawn[0] is None else torch.empty_like(total)
    chunk, programs = _chunks(rows, options["BN"], most)
    partial = mean.new_empty(groups, programs, 2, width)
    if partial.numel():
        has = _norm_options(total, eps, unbiased, total_grad, drawn)
        kernel = bound(_layer_norm_backward_kernel, **has, **options)
        inputs = grad, total_grad, total, weight, mean, scale, *drawn
        kernel[(programs, groups)](*inputs, by_total, by_x, partial, rows, chunk)
    return by_total, by_x, sum_rows(partial.flatten(2)).view(groups, 2, width)


def _norm_options(x: Tensor, eps: float, unbiased: bool, added: Tensor | None, drawn: Drawn) -> dict[str, Any]:
    has = {"ADDS": added is not None, "X_DROPS": drawn[0] is not None, "DROPS": drawn[2] is not None}
    sizes = {"C": x.size(2), "INDEX": index_type(x.numel())}
    return {"EPS": eps, "UNBIASED": unbiased, "STREAM": DENSE_STREAM, **has, **sizes}


def bias_backward(grad: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient before the ReLU that gave `out`, and its sum over the rows."""
    rows, width = grad.shape
    options = _options(grad, min(width, _COLUMNS), _TILE)
    columns = ceil_div(width, options["CB"])
    chunk, programs = _chunks(rows, options["BN"], max(1, _CHUNKS // max(columns, 1)))
    masked = grad if out is None else torch.empty_like(grad)
    partial = torch.empty(programs, width, dtype=backends.accumulator(grad.dtype), device=grad.device)
    if partial.numel():
        kernel = bound(_bias_backward_kernel, RELU=out is not None, C=width, **options)
        kernel[(programs, columns)](grad, out, masked, partial, rows, chunk)
    return masked, sum_rows(partial[None])[0]


def hidden_backward(grad: Tensor, weight: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before the ReLU that gave `hidden`, from that after the next weight; their column sums."""
    masked, *sums = masked_product(grad, weight.contiguous(), hidden)
    of_masked, of_grad = (sum_rows(partial[None])[0] for partial in sums)
    return masked, of_masked, of_grad


def _options(x: Tensor, width: int, tile: int) -> dict[str, Any]:
    columns = power_of_2(max(width, 1))
    sizes = {"BN": max(1, tile // columns), "CB": columns, "num_warps": min(16, max(4, columns // 512))}
    return {**sizes, "ACC": accumulator(x.dtype)}


def _chunks(rows: int, step: int, most: int) -> tuple[int, int]:
    """The rows of a program, a multiple of its step, and the number of programs."""
    chunk = ceil_div(ceil_div(rows, most), step) * step
    return chunk, ceil_div(rows, chunk) if rows else 0


def described(matrix: Tensor, *tile: str) -> TensorDescriptor:
    """A matrix by tiles, which the GPU's copy engine moves; beyond its end zeros are read and nothing is written.

    `triton.jit` launches kernels that take these, as `Bound` knows tensors alone.
    """
    return TensorDescriptor.from_tensor(matrix, [TILE[size] for size in tile])


@triton.jit
def product_tile(
    a, b, m, n, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """BM rows of a from m on times BN columns of b (TURNED: rows of b) from n on, in float32."""
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for c in range(0, C, BC):
        left, right = a.load([m, c]), b.load([n, c]).T if TURNED else b.load([c, n])
        if _WIDENS:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total)
    return total


@triton.jit
def _masked_product_kernel(
    sums_ptr, a_sums_ptr, a, b, mask, out, columns,
    C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """`sums` and `a_sums` [tiles of rows, columns]: the sums of the columns of the result and of a within each tile."""
    # Tiles of the same rows follow each other; one program after them sums a, which is in the cache then.
    m, n, tile = tl.program_id(1) * BM, tl.program_id(0) * BN, tl.program_id(1).to(tl.int64)
    if n < columns:
        total = product_tile(a, b, m, n, C, BM, BN, BC, TURNED=False)
        masked = tl.where(mask.load([m, n]) <= 0, 0.0, total).to(tl.bfloat16)
        out.store([m, n], masked)
        _store_sums(sums_ptr + tile * columns, masked, n, columns, BN)
    else:
        for c in range(0, C, BC):
            _store_sums(a_sums_ptr + tile * C, a.load([m, c]), c, C, BC)


@triton.jit
def _store_sums(ptr, values, first, size, B: tl.constexpr):
    """The sums of the columns of a tile whose first column is `first` of `size`."""
    column = first + tl.arange(0, B)
    tl.store(ptr + column, tl.sum(values.to(tl.float32), axis=0), mask=column < size)


def masked_product(a: Tensor, b: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A @ b but where the mask is 0 or below; for each tile of rows the sums of its columns [tiles, N], and those of a.

    All are bfloat16, their columns a multiple of `dense.ALIGNED`.

    Shapes: a [M, C], b [C, N], mask [M, N] → [M, N].
    """
    (rows, channels), columns = a.shape, b.size(1)
    out, tiles = torch.empty_like(mask), ceil_div(rows, TILE["BM"])
    sums, a_sums = (a.new_empty(tiles, width, dtype=torch.float32) for width in (columns, channels))
    if out.numel():
        factors = described(a, "BM", "BC"), described(b, "BC", "BN")
        inputs = sums, a_sums, *factors, described(mask, "BM", "BN"), described(out, "BM", "BN"), columns
        grid = ceil_div(columns, TILE["BN"]) + 1, tiles
        _masked_product_kernel[grid](*inputs, C=channels, **TILE, num_warps=4, num_stages=2)
    return out, sums, a_sums
