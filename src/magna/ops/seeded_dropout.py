"""Dropout from a seed: its mask is a function of the seed, the same in every backend."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from magna.ops import checks, reference
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import choose, kernels
from magna.ops.checks import Rate
from magna.typing import Backend


def dropout(
    x: Tensor, p: Rate, seed: int | Tensor | None, *, backend: Backend = "auto", validate: bool = True
) -> Tensor:
    """Inverted dropout from a seed: the same bits in every backend, and not serial on the CPU as torch's own.

    >>> import torch
    >>> dropout(torch.ones(4), 0.5, seed=0).unique().tolist()
    [0.0, 2.0]
    """
    if not checks.active("p", p, 1, validate):
        return x
    rate, drawn = checks.rates(p, 1, x.device), checks.seed(seed, "p", x.device)
    chosen = choose(backend, x.device)
    return reference.dropout(x, rate, drawn) if chosen == "reference" else dropout_op(x, rate, drawn, False, chosen)


@fused_op(
    "magna::dropout", lambda x, rate, seed, shared, backend: x.new_empty((*rate.shape, *x.shape) if shared else x.shape)
)
def dropout_op(x: Tensor, rate: Tensor, seed: Tensor, shared: bool, backend: str) -> Tensor:
    """Dropout of G blocks of x, each at its rate [G]; with `shared` of G copies of x."""
    return kernels(backend).dropout(x.contiguous(), rate, seed, shared)


def _dropout_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, rate, seed, ctx.shared, ctx.backend = inputs
    ctx.save_for_backward(rate, seed)


@dropout_op.register_autograd(_dropout_save)
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    # The same factors again: dropout is linear, and its mask is a function of the seed.
    grad = dropout_op(grad, *ctx.saved_tensors, False, ctx.backend)
    return grad.sum(0) if ctx.shared else grad, None, None, None, None
