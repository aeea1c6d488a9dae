"""Rows of a table, and its gradient, with which torch takes a GPU longer than its bytes ask for.

On the CPU these are torch's own.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from magna.ops.backend.registry import fused_op, is_plain

_FEW_ROWS = 1024  # of a table whose gradient is a matrix product


def lookup(table: Tensor, index: Tensor) -> Tensor:
    """table[index], with a gradient that is quick on the GPU and the same bits every time.

    >>> lookup(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1])).tolist()
    [[2.0], [2.0]]
    """
    return lookups(table, index)[1]


def lookups(table: Tensor, *indices: Tensor) -> tuple[Tensor, ...]:
    """The table, for what is done with all of it, and its rows at each index: one pass adds up all their gradients.

    A gradient is as large as its table, so several that meet elsewhere cost more than what they are of.

    Shapes: table [N, C], indices [B] each → [N, C], [B, C] each.

    >>> table, heads, tails = lookups(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1]), torch.tensor([0]))
    >>> table.tolist(), heads.tolist(), tails.tolist()
    ([[1.0], [2.0]], [[2.0], [2.0]], [[1.0]])
    """
    several = len(indices) > 1
    index = torch.cat(indices) if several else indices[0]
    if not table.is_cuda:
        # Of table[index], threads add up the gradient in the order they come.
        rows = table.index_select(0, index)
    elif is_plain((table, index)):
        table, rows = _TableAndRows.apply(table, index)
    else:
        rows = lookup_op(table, index)
    return table, *(rows.split([len(part) for part in indices]) if several else [rows])


@fused_op("magna::lookup")
def lookup_op(table: Tensor, index: Tensor) -> Tensor:
    return table[index]


@lookup_op.register_fake
def _(table, index):
    return table.new_empty(*index.shape, *table.shape[1:])


@fused_op("magna::lookup_backward")
def lookup_backward_op(grad: Tensor, index: Tensor, beside: Tensor | None, size: int) -> Tensor:
    """The gradient of a table of `size` rows, from that of the rows at `index` and, `beside` it, of the whole table."""
    if size <= _FEW_ROWS:
        # Nearly all positions would wait for a few rows. Products of any number of columns take four times as long.
        taken = grad.new_empty(len(index), size + -size % 8)
        torch.eq(index[:, None], torch.arange(taken.size(1), device=index.device), out=taken)
        out = (taken.t() @ grad)[:size]
        return out if beside is None else out.add_(beside)
    rows = importlib.import_module("magna.ops.triton.table")
    return rows.table_gradient(
        grad.contiguous(), index.contiguous(), None if beside is None else beside.contiguous(), size
    )


@lookup_backward_op.register_fake
def _(grad, index, beside, size):
    return grad.new_empty(size, grad.size(1))


def _lookup_save(ctx, inputs, output):
    table, index = inputs
    ctx.rows = table.size(0)
    ctx.save_for_backward(index)


def _lookup_grad(ctx, grad):
    (index,) = ctx.saved_tensors
    return lookup_backward_op(grad, index, None, ctx.rows), None


lookup_op.register_autograd(_lookup_grad, setup_context=_lookup_save)


class _TableAndRows(torch.autograd.Function):
    """A table as it is and rows of it; no op of the library, whose results must be other tensors than its inputs."""

    @staticmethod
    def forward(ctx, table, index):
        _lookup_save(ctx, (table, index), None)
        ctx.set_materialize_grads(False)
        return table, table[index]

    @staticmethod
    def backward(ctx, beside, grad):
        (index,) = ctx.saved_tensors
        return beside if grad is None else lookup_backward_op(grad, index, beside, ctx.rows), None
