"""Linear layers for the GPU; elsewhere torch's own serve.

Without them a step of WN18RR's shape takes 14 % longer (10.19 ms instead of 8.95, one H200).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from magna.graph.torch_internals import affine_relu, copy_each, takes_gradient
from magna.ops import checks
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import choose, dense_kernels, product
from magna.typing import Backend

_ROUNDED: dict[int, Tensor] = {}  # by the `id` of a weight, within `rounded_at_once`
# The columns of a bfloat16 matrix are padded to a multiple of it: else products take four times as long on a GPU, and
# its copy engine cannot move tiles.
ALIGNED = 8
_FEW_ROWS = 256  # up to so many rows padding takes longer than the product


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False, backend: Backend = "auto"
) -> Tensor:
    """X @ weight.T + bias, and ReLU of it with `relu`, in the type of autocast.

    On the GPU ReLU is part of the product, and one pass over the gradient masks it and sums it for the bias. The
    gradient of a float32 weight is float32, even if the product multiplies bfloat16 numbers.

    Shapes: x [N, C], weight [D, C], bias [D] → [N, D].
    """
    if choose(backend, x.device) != "triton":
        checks.multiplied("x", x, weight)
        out = F.linear(x, weight, bias)
        return out.relu() if relu else out
    x = as_multiplied(x)
    missing = -x.size(1) % ALIGNED if x.dtype == torch.bfloat16 and x.size(0) > _FEW_ROWS else 0
    if missing:
        x, weight = (F.pad(matrix, (0, missing)) for matrix in (x, weight))
    return linear_op(x, weight, _rounded(weight, x.dtype), bias, relu)


def feed_forward(
    x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor, *, backend: Backend = "auto"
) -> Tensor:
    """ReLU(x @ first.T + first_bias) @ second.T + second_bias, as `linear` twice.

    On the GPU, for bfloat16 rows of a multiple of 16 bytes, one kernel takes the gradient back through the second layer
    and ReLU and sums it for the bias. Without it a step of WN18RR's shape takes 2.4 % longer (9.17 ms instead of 8.95,
    one H200).

    Shapes: x [N, C], first [D, C], first_bias [D], second [C, D], second_bias [C] → [N, C].
    """
    fused = choose(backend, x.device) == "triton"
    x = as_multiplied(x) if fused else x
    aligned = x.dtype == torch.bfloat16 and not any(width % ALIGNED for width in first.shape)
    if not fused or not aligned:
        return linear(linear(x, first, first_bias, relu=True, backend=backend), second, second_bias, backend=backend)
    rounded = (_rounded(weight, x.dtype) for weight in (first, second))
    return feed_forward_op(x, first, second, *rounded, first_bias, second_bias)[0]


def linears(x: Tensor, weights: Sequence[Sequence[Tensor]], *, backend: Backend = "auto") -> list[Tensor]:
    """X @ weight.T for several groups of weights, the products of a group side by side.

    On the GPU a group is one product, and the products of the backward pass add up the gradient of x.
    Without it a step of WN18RR's shape takes 7.5 % longer (9.62 ms instead of 8.95, one H200).

    Shapes: x [N, C], weights [D, C] each → for each group [N, sum of D].
    """
    if choose(backend, x.device) != "triton":
        checks.multiplied("x", x, weights[0][0])
        return [joined([F.linear(x, weight) for weight in group], -1) for group in weights]
    if takes_gradient():
        return [joined([linear(x, weight, backend=backend) for weight in group], 1) for group in weights]
    x = as_multiplied(x)
    with torch.no_grad():
        rounded = [joined([_rounded(weight, x.dtype) for weight in group]) for group in weights]
    return linears_op(x, [weight for group in weights for weight in group], rounded)


def joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """`torch.cat`, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


@contextmanager
def rounded_at_once(weights: Iterable[Tensor], dtype: torch.dtype) -> Iterator[None]:
    """A context in which one kernel rounds these weights, which may not change in it, for all layers."""
    weights = list(weights)
    copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
    if weights:
        with torch.no_grad():
            copy_each(copies, weights)
    _ROUNDED.update(zip(map(id, weights), copies, strict=True))
    try:
        yield
    finally:
        _ROUNDED.clear()


def _rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    copy = None if torch.compiler.is_compiling() else _ROUNDED.get(id(weight))
    return weight.detach().to(dtype) if copy is None or copy.dtype != dtype else copy


def as_multiplied(x: Tensor) -> Tensor:
    """X in the type of autocast; float64 stays."""
    kind = x.device.type
    casts = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return x.to(torch.get_autocast_dtype(kind)) if casts else x


@fused_op("magna::linear", lambda x, weight, rounded, bias, relu: x.new_empty(x.size(0), rounded.size(0)))
def linear_op(x: Tensor, weight: Tensor, rounded: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Multiply by `rounded`, the weight in the type of x; the weight gets the gradient."""
    bias = None if bias is None else _rounded(bias, x.dtype)
    if relu and bias is not None:
        return affine_relu(bias, x, rounded.t())
    out = F.linear(x, rounded, bias)
    return out.relu_() if relu else out


def _linear_backward_shape(
    grad: Tensor, x: Tensor, weight: Tensor, rounded: Tensor, out: Tensor | None, into_x: bool, into_bias: bool
) -> tuple[Tensor, ...]:
    sums = weight.new_empty(weight.size(0) if into_bias or out is not None else 0)
    return x.new_empty(x.shape if into_x else 0), weight.new_empty(weight.shape), sums


@fused_op("magna::linear_backward", _linear_backward_shape)
def linear_backward_op(
    grad: Tensor, x: Tensor, weight: Tensor, rounded: Tensor, out: Tensor | None, into_x: bool, into_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias, empty if not needed; `out` is the output of a ReLU."""
    grad, by_bias = grad.contiguous(), weight.new_empty(0)
    if into_bias or out is not None:
        grad, by_bias = dense_kernels().bias_backward(grad, out)
    by_x = grad @ rounded if into_x else x.new_empty(0)
    return by_x, product(grad.t(), x).to(weight.dtype), by_bias.to(weight.dtype)


def _linear_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, rounded, bias, relu = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight, rounded, output if relu else None)


@linear_op.register_autograd(_linear_save)
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    into_x = ctx.needs_input_grad[0]
    x, weight, bias = linear_backward_op(grad, *ctx.saved_tensors, into_x, ctx.biased)
    return x if into_x else None, weight, None, bias if ctx.biased else None, None


@fused_op(
    "magna::feed_forward",
    lambda x, first, second, *_: tuple(x.new_empty(x.size(0), weight.size(0)) for weight in (second, first)),
)
def feed_forward_op(
    x: Tensor,
    first: Tensor,
    second: Tensor,
    rounded_first: Tensor,
    rounded_second: Tensor,
    first_bias: Tensor,
    second_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """The output of the second layer, and that of the ReLU."""
    hidden = affine_relu(_rounded(first_bias, x.dtype), x, rounded_first.t())
    return torch.addmm(_rounded(second_bias, x.dtype), hidden, rounded_second.t()), hidden


def _feed_forward_backward_shape(
    grad: Tensor, x: Tensor, hidden: Tensor, first: Tensor, second: Tensor, *_: Tensor
) -> tuple[Tensor, ...]:
    like_weights = (first.new_empty(size) for size in (first.shape, second.shape, first.size(0), second.size(0)))
    return x.new_empty(x.shape), *like_weights


@fused_op("magna::feed_forward_backward", _feed_forward_backward_shape)
def feed_forward_backward_op(
    grad: Tensor,
    x: Tensor,
    hidden: Tensor,
    first: Tensor,
    second: Tensor,
    rounded_first: Tensor,
    rounded_second: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, both weights and both biases."""
    grad = grad.contiguous()
    by_second = product(grad.t(), hidden).to(second.dtype)
    inner, first_sums, second_sums = dense_kernels().hidden_backward(grad, rounded_second, hidden)
    by_first = product(inner.t(), x).to(first.dtype)
    return inner @ rounded_first, by_first, by_second, first_sums.to(first.dtype), second_sums.to(second.dtype)


def _feed_forward_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, *weights = inputs[:5]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, output[1], *weights)


@feed_forward_op.register_autograd(_feed_forward_save)
def _(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, first, second, first_bias, second_bias = feed_forward_backward_op(grad, *ctx.saved_tensors)
    return x, first, second, None, None, first_bias, second_bias


@fused_op("magna::linears", lambda x, weights, rounded: [x.new_empty(x.size(0), group.size(0)) for group in rounded])
def linears_op(x: Tensor, weights: Sequence[Tensor], rounded: Sequence[Tensor]) -> list[Tensor]:
    """As `linear_op` for each of `rounded`, the concatenated weights of a group."""
    return [x @ group.t() for group in rounded]


@fused_op(
    "magna::linears_backward",
    lambda x, grads, weight, rounded: [x.new_empty(x.shape), *(weight.new_empty(group.shape) for group in rounded)],
)
def linears_backward_op(x: Tensor, grads: Sequence[Tensor], weight: Tensor, rounded: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of x and of each group, in the type of a weight."""
    by_x = grads[0] @ rounded[0]
    for grad, group in zip(grads[1:], rounded[1:], strict=True):
        by_x.addmm_(grad, group)
    return [by_x, *(product(grad.t(), x).to(weight.dtype) for grad in grads)]


def _linears_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weights, rounded = inputs
    ctx.rows = [weight.size(0) for weight in weights]
    ctx.save_for_backward(x, weights[0], *rounded)


@linears_op.register_autograd(_linears_save)
def _(ctx: Any, grads: Sequence[Tensor]) -> tuple[Any, ...]:
    x, weight, *rounded = ctx.saved_tensors
    by_x, *by_groups = linears_backward_op(x, grads, weight, rounded)
    sizes = in_groups(ctx.rows, [group.size(0) for group in rounded])
    by_weights = [part for group, rows in zip(by_groups, sizes, strict=True) for part in torch.split(group, rows)]
    return by_x, by_weights, [None] * len(rounded)


def in_groups(rows: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """The rows of consecutive weights, by groups of these sizes.

    >>> in_groups([2, 2, 3], [4, 3])
    [[2, 2], [3]]
    """
    groups, left = list[list[int]](), list(rows)
    for size in sizes:
        groups.append([])
        while sum(groups[-1]) < size:
            groups[-1].append(left.pop(0))
    return groups
