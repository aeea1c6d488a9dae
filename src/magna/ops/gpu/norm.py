"""Dropout from a seed; layer norm where torch's takes a GPU longer than its bytes ask for.

On the CPU the norm is torch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from magna.ops import checks, reference
from magna.ops.attention import dropout_op
from magna.ops.backend.registry import accumulator, choose, dense_kernels, fused_op, is_plain
from magna.ops.checks import Rate
from magna.typing import Backend


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
    """X + added and its layer norm, in one pass over both; the gradients of both results meet in one pass, too.

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
    given = rows, added, weight, bias, x_rate, x_drawn, rate, drawn, eps, unbiased
    if added is not None or x_rate is not None:
        total, normed, _, _ = layer_norm_op(*given)
    elif torch.is_grad_enabled() and is_plain(given):
        total, normed = _InputAndNorm.apply(*given)
    else:
        total, normed = x, layer_norm_op(*given)[1]
    return total.view(x.shape), normed.view(x.shape)


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
    return dense_kernels().layer_norm(*(None if t is None else t.contiguous() for t in given), eps, unbiased)


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
    return dense_kernels().layer_norm_backward(*(None if t is None else t.contiguous() for t in given), eps, unbiased)


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


class _InputAndNorm(torch.autograd.Function):
    """What a norm is of, and the norm: the gradients of both meet in the norm's pass, not in one of their own.

    No op of the library, whose results must be other tensors than its inputs.
    """

    @staticmethod
    def forward(ctx, x, *rest):
        output = layer_norm_op.function(x, *rest)
        _layer_norm_save(ctx, (x, *rest), output)
        ctx.adds = True
        return x, output[1]

    @staticmethod
    def backward(ctx, beside, grad):
        by_x, _, *rest = _layer_norm_grad(ctx, beside, grad)
        return by_x, None, *rest
