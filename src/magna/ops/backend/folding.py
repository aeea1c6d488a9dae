"""Many trainings at once: under `torch.vmap` the ops fold the extra axis into their heads.

Heads never meet inside an op, so S models of H heads on the same graph are one model of S * H heads: one walk over the
edges serves them all. `magna.training.trials` relies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.ops.diffusion import diffuse_op
from magna.ops.exact import solve_op
from magna.ops.gpu.linear import feed_forward_op, in_groups, joined, linear_op, linears_op
from magna.ops.gpu.norm import layer_norm_op
from magna.ops.scores import edge_scores_op, head_scores_op
from magna.ops.seeded_dropout import dropout_op
from magna.ops.softmax import edge_softmax_op, kept_edges_op, top_k_mask_op

Axis = int | None
Axes = Sequence[Any]


def _fold(tensor: Tensor, axis: Axis, size: int, heads: int) -> Tensor:
    """S tensors whose axis `heads` counts heads, as one with S * H of them."""
    stacked = tensor.movedim(axis, heads) if axis is not None else _repeat(tensor, size, heads)
    return stacked.flatten(heads, heads + 1).contiguous()


def _repeat(tensor: Tensor, size: int, at: int) -> Tensor:
    return tensor.unsqueeze(at).expand(*tensor.shape[:at], size, *tensor.shape[at:])


def _unfold(tensor: Tensor, size: int, heads: int) -> Tensor:
    return torch.unflatten(tensor, heads, (size, -1))


def _one(seed: Tensor, axis: Axis, info: Any) -> Tensor:
    """One seed for all: the entries of different trials draw different bits."""
    if info.randomness == "same":
        allowed = "'different', as dropout draws for each entry of the axis"
        raise ArgumentError("randomness of torch.vmap", "same", allowed, "that, or backend='reference'")
    return seed if axis is None else seed.select(axis, 0)


def _per_edge_or_node(op: Any, folded: Sequence[int]) -> None:
    """For ops that take [.., H] tensors at the places `folded` and give one of the same kind."""

    def rule(info: Any, axes: Sequence[Any], *inputs: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        arguments = list(inputs)
        for place in folded:
            if inputs[place] is not None:
                arguments[place] = _fold(inputs[place], axes[place], size, 1)
        return _unfold(op(*arguments), size, 1), 1

    op.register_vmap(rule)


_per_edge_or_node(edge_scores_op, (0, 1, 2))
_per_edge_or_node(edge_softmax_op, (0, 1))
_per_edge_or_node(top_k_mask_op, (0,))


def _grouped(tensors: Sequence[Tensor | None], axes: Sequence[Axis], size: int) -> list[Tensor | None]:
    """Trials as groups, where an op has an axis for them: nothing has to move."""
    return [
        None if tensor is None else _fold(tensor, axis, size, 0) for tensor, axis in zip(tensors, axes, strict=True)
    ]


@head_scores_op.register_vmap
def _(info: Any, axes: Axes, x: Tensor, vector: Tensor, *rest: Any) -> tuple[Tensor, int]:
    return _unfold(head_scores_op(*_grouped((x, vector), axes[:2], info.batch_size), *rest), info.batch_size, 0), 0


@layer_norm_op.register_vmap
def _(info: Any, axes: Axes, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    *tensors, x_rate, x_seed, rate, seed, eps, unbiased = inputs
    x, added, weight, bias, x_rate, rate = _grouped((*tensors, x_rate, rate), (*axes[:5], axes[6]), info.batch_size)
    seeds = [None if drawn is None else _one(drawn, axis, info) for drawn, axis in ((x_seed, axes[5]), (seed, axes[7]))]
    assert x is not None and weight is not None and bias is not None
    out = layer_norm_op(x, added, weight, bias, x_rate, seeds[0], rate, seeds[1], eps, unbiased)
    return tuple(_unfold(part, info.batch_size, 0) for part in out), (0, 0, 0, 0)


@linear_op.register_vmap
def _(
    info: Any, axes: Axes, x: Tensor, weight: Tensor, rounded: Tensor, bias: Tensor | None, relu: bool
) -> tuple[Tensor, int]:
    return _linear(_first(x, axes[0]), weight, axes[1], bias, axes[3], relu), 0


def _linear(x: Tensor, weight: Tensor, weight_axis: Axis, bias: Tensor | None, bias_axis: Axis, relu: bool) -> Tensor:
    """One product for all trials, torch's own; those of x come first."""
    out = x @ _first(weight, weight_axis).to(x.dtype).mT
    if bias is not None:
        out = out + (bias if bias_axis is None else bias.movedim(bias_axis, 0)[:, None]).to(x.dtype)
    return out.relu() if relu else out


@feed_forward_op.register_vmap
def _(info: Any, axes: Axes, *inputs: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    x, first, second, _, _, first_bias, second_bias = inputs
    hidden = _linear(_first(x, axes[0]), first, axes[1], first_bias, axes[5], relu=True)
    return (_linear(hidden, second, axes[2], second_bias, axes[6], relu=False), hidden), (0, 0)


@linears_op.register_vmap
def _(
    info: Any, axes: Axes, x: Tensor, weights: Sequence[Tensor], rounded: Sequence[Tensor]
) -> tuple[list[Tensor], list[Axis]]:
    x, outs = _first(x, axes[0]), list[Tensor]()
    left = [_first(weight, axis).to(x.dtype) for weight, axis in zip(weights, axes[1], strict=True)]
    for rows in in_groups([weight.size(-2) for weight in left], [group.size(-2) for group in rounded]):
        group, left = left[: len(rows)], left[len(rows) :]
        if any(weight.dim() == 3 for weight in group):
            group = [weight.expand(info.batch_size, -1, -1) for weight in group]
        outs.append(x @ joined(group, -2).mT)
    return outs, [None if out.dim() == 2 else 0 for out in outs]


def _first(tensor: Tensor, axis: Axis) -> Tensor:
    return tensor if axis is None else tensor.movedim(axis, 0)


@kept_edges_op.register_vmap
def _(info: Any, axes: Axes, rate: Tensor, seed: Tensor, *rest: Any) -> tuple[Tensor, int]:
    size, rates = info.batch_size, _fold(rate, axes[0], info.batch_size, 0)
    # The heads of a trial draw the same bits from its seed.
    seeds = seed if axes[1] is None else _fold(seed, axes[1], size, 0).repeat_interleave(len(rates) // size)
    return _unfold(kept_edges_op(rates, seeds, *rest), size, 1), 1


@diffuse_op.register_vmap
def _(
    info: Any, axes: Axes, x: Tensor, attention: Tensor, theta: Tensor, seed: Tensor, *rest: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    size = info.batch_size
    rates = [
        None if rate is None else _fold(rate, axis, size, rate.dim() - (1 if axis is None else 2))
        for rate, axis in zip(rest[:2], axes[4:6], strict=True)
    ]
    out, states = diffuse_op(
        _fold(x, axes[0], size, 1),
        _fold(attention, axes[1], size, 1),
        _fold(theta, axes[2], size, 0),
        _one(seed, axes[3], info) if any(rate is not None for rate in rates) else seed,
        *rates,
        *rest[2:],
    )
    return (_unfold(out, size, 1), _unfold(states, size, 2)), (1, 2)


@solve_op.register_vmap
def _(info: Any, axes: Axes, x: Tensor, attention: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, int]:
    size = info.batch_size
    folded = _fold(x, axes[0], size, 1), _fold(attention, axes[1], size, 1), _fold(alpha, axes[2], size, 0)
    return _unfold(solve_op(*folded, *rest), size, 1), 1


@dropout_op.register_vmap
def _(info: Any, axes: Axes, x: Tensor, rate: Tensor, seed: Tensor, shared: bool, backend: str) -> tuple[Tensor, int]:
    assert not shared
    size = info.batch_size
    rates = rate.expand(size) if axes[1] is None else rate.movedim(axes[1], 0).reshape(size)
    if axes[0] is not None:
        x = x.movedim(axes[0], 0)
    return dropout_op(x, rates.contiguous(), _one(seed, axes[2], info), axes[0] is None, backend), 0
