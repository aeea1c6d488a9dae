"""Dropout from a seed; layer norm and linear layers where torch's take a GPU longer than their bytes ask for.

On the CPU these are torch's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from magna.ops import checks, reference
from magna.ops.backends import accumulator, choose, fused_op, product, takes_gradient
from magna.ops.checks import Rate
from magna.ops.edges import dropout_op
from magna.typing import Backend

_ROUNDED: dict[int, Tensor] = {}  # by the `id` of a weight, within `rounded_at_once`
_ALIGNED = 8  # columns of bfloat16 matrices: with another number, products take a GPU four times as long
_FEW_ROWS = 256  # up to which padding takes longer than the product


def dropout(x: Tensor, p: Rate, seed: int | Tensor, *, backend: Backend = "auto", validate: bool = True) -> Tensor:
    """Inverted dropout from a seed: the same bits in every backend, and not serial on the CPU as torch's own.

    >>> dropout(torch.ones(4), 0.5, seed=0).unique().tolist()
    [0.0, 2.0]
    """
    if not checks.active("p", p, 1, validate):
        return x
    rate, seed = checks.rates(p, 1, x.device), checks.seed(seed, "p", x.device)
    chosen = choose(backend, x.device)
    return reference.dropout(x, rate, seed) if chosen == "reference" else dropout_op(x, rate, seed, False, chosen)


def add_norm(
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,
    *,
    unbiased: bool = False,
    x_p: Rate = 0.0,
    x_seed: int | Tensor | None = None,
    p: Rate = 0.0,
    seed: int | Tensor | None = None,
    backend: Backend = "auto",
    validate: bool = True,
) -> tuple[Tensor, Tensor]:
    """x + added and its layer norm, in one pass over both; the gradients of both results meet in one pass, too.

    `unbiased` divides by the unbiased deviation plus eps, as the authors' norm does, and not by the root of variance
    plus eps. Means, deviations and sums are float32 at least; the norm has the type of the sum, under autocast as well.
    With `x_p` x is what `dropout` would leave of it, with `p` the norm, in the same pass.

    Shapes: x and added [..., C], weight [C], bias [C] → [..., C] twice.

    >>> total, normed = add_norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, 0.0]]), torch.ones(2), torch.zeros(2))
    >>> total.tolist(), normed.round().tolist()
    ([[0.0, 2.0]], [[-1.0, 1.0]])
    """
    if added is not None and added.shape != x.shape:
        raise ValueError(f"added has shape {list(added.shape)}; allowed: that of x, {list(x.shape)}")
    if not weight.shape == bias.shape == x.shape[-1:]:
        shapes = f"weight has shape {list(weight.shape)}, bias {list(bias.shape)}"
        raise ValueError(f"{shapes}; allowed: [{x.size(-1)}], the width of x")
    x_drawn = checks.seed(x_seed, "x_p", x.device) if checks.active("x_p", x_p, 1, validate) else None
    drawn = checks.seed(seed, "p", x.device) if checks.active("p", p, 1, validate) else None
    dtype, fused = x.dtype, choose(backend, x.device) == "triton"
    if added is not None:
        dtype = torch.promote_types(x.dtype, added.dtype)
    if x_drawn is not None and not (fused and x.dtype == dtype):
        # Dropout rounds to the type that x has, not to that of the sum.
        x, x_drawn = dropout(x, x_p, x_drawn, backend=backend, validate=False), None
    if not fused:
        total, normed = reference.add_norm(x, added, weight, bias, eps, unbiased)
        return total, normed if drawn is None else dropout(normed, p, drawn, backend=backend, validate=False)
    if added is not None:
        x, added = x.to(dtype), added.to(dtype).reshape(1, -1, x.size(-1))
    weight, bias = (own.to(accumulator(x.dtype))[None] for own in (weight, bias))
    x_rate = None if x_drawn is None else checks.rates(x_p, 1, x.device)
    rate = None if drawn is None else checks.rates(p, 1, x.device)
    rows = x.reshape(1, -1, x.size(-1))
    total, normed, _, _ = layer_norm_op(rows, added, weight, bias, x_rate, x_drawn, rate, drawn, eps, unbiased)
    return x if added is None and x_rate is None else total.view(x.shape), normed.view(x.shape)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False, backend: Backend = "auto"
) -> Tensor:
    """x @ weight.T + bias, and ReLU of it with `relu`, under autocast in its type.

    On the GPU ReLU is part of the product, and one pass over the gradient masks it and sums it up for the bias. The
    gradient of a float32 weight is float32 from the product on, also where the product is of bfloat16 numbers.

    Shapes: x [N, C], weight [D, C], bias [D] → [N, D].
    """
    if choose(backend, x.device) != "triton":
        checks.multiplied("x", x, weight)
        return reference.linear(x, weight, bias, relu)
    x = as_multiplied(x)
    missing = -x.size(1) % _ALIGNED if x.dtype == torch.bfloat16 and x.size(0) > _FEW_ROWS else 0
    if missing:
        x, weight = (torch.nn.functional.pad(matrix, (0, missing)) for matrix in (x, weight))
    return linear_op(x, weight, _rounded(weight, x.dtype), bias, relu)


def feed_forward(
    x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor, *, backend: Backend = "auto"
) -> Tensor:
    """ReLU(x @ first.T + first_bias) @ second.T + second_bias, as `linear` twice.

    On the GPU, of bfloat16 numbers in rows of a multiple of 16 bytes, the product that the gradient takes back through
    the second layer goes on through ReLU and is summed up for the bias before it is written.

    Shapes: x [N, C], first [D, C], first_bias [D], second [C, D], second_bias [C] → [N, C].
    """
    fused = choose(backend, x.device) == "triton"
    x = as_multiplied(x) if fused else x
    aligned = x.dtype == torch.bfloat16 and not any(width % _ALIGNED for width in first.shape)
    if not fused or not aligned:
        return linear(linear(x, first, first_bias, relu=True, backend=backend), second, second_bias, backend=backend)
    rounded = (_rounded(weight, x.dtype) for weight in (first, second))
    return feed_forward_op(x, first, second, *rounded, first_bias, second_bias)[0]


def linears(x: Tensor, weights: Sequence[Sequence[Tensor]], *, backend: Backend = "auto") -> list[Tensor]:
    """x @ weight.T for several groups of weights, the products of a group side by side.

    On the GPU a group is one product, and the gradients of x by all groups are added up by the products themselves.

    Shapes: x [N, C], weights [D, C] each → for each group [N, sum of D].
    """
    if choose(backend, x.device) != "triton":
        checks.multiplied("x", x, weights[0][0])
        return reference.linears(x, weights)
    if takes_gradient():
        return [reference.joined([linear(x, weight, backend=backend) for weight in group], 1) for group in weights]
    x = as_multiplied(x)
    with torch.no_grad():
        rounded = [reference.joined([_rounded(weight, x.dtype) for weight in group]) for group in weights]
    return linears_op(x, [weight for group in weights for weight in group], rounded)


@contextmanager
def rounded_at_once(weights: Iterable[Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Inside, what layers round of these weights was rounded for all of them together: one kernel instead of dozens.

    The weights may not change meanwhile.
    """
    weights = list(weights)
    copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
    if weights:
        with torch.no_grad():
            torch._foreach_copy_(copies, weights)
    _ROUNDED.update(zip(map(id, weights), copies, strict=True))
    try:
        yield
    finally:
        _ROUNDED.clear()


def _rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    held = None if torch.compiler.is_compiling() else _ROUNDED.get(id(weight))
    return weight.detach().to(dtype) if held is None or held.dtype != dtype else held


def as_multiplied(x: Tensor) -> Tensor:
    """x as autocast would hand it to a product: float64 stays what it is."""
    kind = x.device.type
    casts = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return x.to(torch.get_autocast_dtype(kind)) if casts else x


@fused_op("magna::layer_norm")
def layer_norm_op(
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    x_rate: Tensor | None,
    x_seed: Tensor | None,
    rate: Tensor | None,
    seed: Tensor | None,
    eps: float,
    unbiased: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of x and `added` [G, N, C], its norm with the weight and bias [G, C], mean and scale [G, N] of its rows.

    Where there is a rate [G], x or the norm is under dropout. Where x is the sum, nothing is written of it: [G, 0].
    """
    given = x, added, weight, bias, x_rate, x_seed, rate, seed
    return _kernels().layer_norm(*(None if t is None else t.contiguous() for t in given), eps, unbiased)


@layer_norm_op.register_fake
def _(x, added, weight, bias, x_rate, x_seed, rate, seed, eps, unbiased):
    total = x.new_empty(x.size(0), 0) if added is None and x_rate is None else x.new_empty(x.shape)
    return total, x.new_empty(x.shape), weight.new_empty(x.shape[:2]), weight.new_empty(x.shape[:2])


@fused_op("magna::layer_norm_backward")
def layer_norm_backward_op(
    grad: Tensor,
    beside: Tensor | None,
    total: Tensor,
    weight: Tensor,
    mean: Tensor,
    scale: Tensor,
    x_rate: Tensor | None,
    x_seed: Tensor | None,
    rate: Tensor | None,
    seed: Tensor | None,
    eps: float,
    unbiased: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the sum, of x, of weight and bias [G, 2, C], from those of the norm and, `beside` it, the sum.

    Without a rate of its own x has that of the sum, and its own is [G, 0].
    """
    given = grad, beside, total, weight, mean, scale, x_rate, x_seed, rate, seed
    return _kernels().layer_norm_backward(*(None if t is None else t.contiguous() for t in given), eps, unbiased)


@layer_norm_backward_op.register_fake
def _(grad, beside, total, weight, mean, scale, x_rate, x_seed, rate, seed, eps, unbiased):
    by_x = total.new_empty(total.size(0), 0) if x_rate is None else total.new_empty(total.shape)
    return total.new_empty(total.shape), by_x, weight.new_empty(weight.size(0), 2, weight.size(1))


def _layer_norm_save(ctx, inputs, output):
    x, added, weight, _, *drawn, eps, unbiased = inputs
    total, _, mean, scale = output
    ctx.adds, ctx.drops, ctx.kind = added is not None, drawn[0] is not None, (eps, unbiased)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(total if ctx.adds or ctx.drops else x, weight, mean, scale, *drawn)


def _layer_norm_grad(ctx, beside, grad, *_):
    by_weight = by_bias = None
    if grad is None:
        by_total = by_x = beside
        if ctx.drops and beside is not None:
            by_x = dropout_op(beside, *ctx.saved_tensors[4:6], False, "triton")
    else:
        beside = beside if ctx.adds or ctx.drops else None
        by_total, by_x, own = layer_norm_backward_op(grad, beside, *ctx.saved_tensors, *ctx.kind)
        by_x = by_x if ctx.drops else by_total
        by_weight, by_bias = own.unbind(1)
    return by_x, by_total if ctx.adds else None, by_weight, by_bias, *[None] * 6


layer_norm_op.register_autograd(_layer_norm_grad, setup_context=_layer_norm_save)


@fused_op("magna::linear")
def linear_op(x: Tensor, weight: Tensor, rounded: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """`rounded` is the weight in the type of x: it is what is multiplied, the weight what gets the gradient."""
    bias = None if bias is None else _rounded(bias, x.dtype)
    if relu and bias is not None:
        # One call of cuBLAS, which adds the bias and cuts at zero before it writes.
        return torch._addmm_activation(bias, x, rounded.t())
    out = torch.nn.functional.linear(x, rounded, bias)
    return out.relu_() if relu else out


@linear_op.register_fake
def _(x, weight, rounded, bias, relu):
    return x.new_empty(x.size(0), rounded.size(0))


@fused_op("magna::linear_backward")
def linear_backward_op(
    grad: Tensor, x: Tensor, weight: Tensor, rounded: Tensor, out: Tensor | None, into_x: bool, into_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias, empty where not asked for; `out` is what ReLU gave, where there is one."""
    grad, by_bias = grad.contiguous(), weight.new_empty(0)
    if into_bias or out is not None:
        grad, by_bias = _kernels().bias_backward(grad, out)
    by_x = grad @ rounded if into_x else x.new_empty(0)
    return by_x, product(grad.t(), x).to(weight.dtype), by_bias.to(weight.dtype)


@linear_backward_op.register_fake
def _(grad, x, weight, rounded, out, into_x, into_bias):
    sums = weight.new_empty(weight.size(0) if into_bias or out is not None else 0)
    return x.new_empty(x.shape if into_x else 0), weight.new_empty(weight.shape), sums


def _linear_save(ctx, inputs, output):
    x, weight, rounded, bias, relu = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight, rounded, output if relu else None)


def _linear_grad(ctx, grad):
    into_x = ctx.needs_input_grad[0]
    x, weight, bias = linear_backward_op(grad, *ctx.saved_tensors, into_x, ctx.biased)
    return x if into_x else None, weight, None, bias if ctx.biased else None, None


linear_op.register_autograd(_linear_grad, setup_context=_linear_save)


@fused_op("magna::feed_forward")
def feed_forward_op(
    x: Tensor,
    first: Tensor,
    second: Tensor,
    rounded_first: Tensor,
    rounded_second: Tensor,
    first_bias: Tensor,
    second_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """The output, and what ReLU gave."""
    hidden = torch._addmm_activation(_rounded(first_bias, x.dtype), x, rounded_first.t())
    return torch.addmm(_rounded(second_bias, x.dtype), hidden, rounded_second.t()), hidden


@feed_forward_op.register_fake
def _(x, first, second, *rest):
    return x.new_empty(x.size(0), second.size(0)), x.new_empty(x.size(0), first.size(0))


@fused_op("magna::feed_forward_backward")
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
    kernels, grad = _kernels(), grad.contiguous()
    by_second, second_sums = product(grad.t(), hidden), kernels.bias_backward(grad, None)[1]
    inner, first_sums = kernels.hidden_backward(grad, rounded_second, hidden)
    by_first = product(inner.t(), x)
    return (
        inner @ rounded_first,
        by_first.to(first.dtype),
        by_second.to(second.dtype),
        first_sums.to(first.dtype),
        second_sums.to(second.dtype),
    )


@feed_forward_backward_op.register_fake
def _(grad, x, hidden, first, second, *rounded):
    sums = first.new_empty(first.size(0)), second.new_empty(second.size(0))
    return x.new_empty(x.shape), first.new_empty(first.shape), second.new_empty(second.shape), *sums


def _feed_forward_save(ctx, inputs, output):
    x, *weights = inputs[:5]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, output[1], *weights)


def _feed_forward_grad(ctx, grad, _):
    x, first, second, first_bias, second_bias = feed_forward_backward_op(grad, *ctx.saved_tensors)
    return x, first, second, None, None, first_bias, second_bias


feed_forward_op.register_autograd(_feed_forward_grad, setup_context=_feed_forward_save)


@fused_op("magna::linears")
def linears_op(x: Tensor, weights: Sequence[Tensor], rounded: Sequence[Tensor]) -> list[Tensor]:
    """As `linear_op` for each of `rounded`: one weight after the other, a few of them below each other in each."""
    return [x @ group.t() for group in rounded]


@linears_op.register_fake
def _(x, weights, rounded):
    return [x.new_empty(x.size(0), group.size(0)) for group in rounded]


@fused_op("magna::linears_backward")
def linears_backward_op(x: Tensor, grads: Sequence[Tensor], weight: Tensor, rounded: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of x and of each group, in the type of a weight."""
    by_x = grads[0] @ rounded[0]
    for grad, group in zip(grads[1:], rounded[1:], strict=True):
        by_x.addmm_(grad, group)
    return [by_x, *(product(grad.t(), x).to(weight.dtype) for grad in grads)]


@linears_backward_op.register_fake
def _(x, grads, weight, rounded):
    return [x.new_empty(x.shape), *(weight.new_empty(group.shape) for group in rounded)]


def _linears_save(ctx, inputs, output):
    x, weights, rounded = inputs
    ctx.rows = [weight.size(0) for weight in weights]
    ctx.save_for_backward(x, weights[0], *rounded)


def _linears_grad(ctx, grads):
    x, weight, *rounded = ctx.saved_tensors
    by_x, *by_groups = linears_backward_op(x, grads, weight, rounded)
    sizes = in_groups(ctx.rows, [group.size(0) for group in rounded])
    by_weights = [part for group, rows in zip(by_groups, sizes, strict=True) for part in group.split(rows)]
    return by_x, by_weights, [None] * len(rounded)


def in_groups(rows: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """The rows of weights, one after the other, by the groups that they make up.

    >>> in_groups([2, 2, 3], [4, 3])
    [[2, 2], [3]]
    """
    found, left = list[list[int]](), list(rows)
    for size in sizes:
        found.append([])
        while sum(found[-1]) < size:
            found[-1].append(left.pop(0))
    return found


linears_op.register_autograd(_linears_grad, setup_context=_linears_save)


def _kernels() -> ModuleType:
    return importlib.import_module("magna.ops.triton_dense")
