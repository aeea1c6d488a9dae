"""Operators as `torch.library` ops, with a shorter way to them where no compiler, transform or mode looks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.library import custom_op
from torch.nn import Parameter

from magna.graph.torch_internals import in_forward_mode, is_stacked_gradient, takes_gradient, unwatched
from magna.ops.backend.graph_tensors import Packed
from magna.ops.backend.registry import as_they_come

R = TypeVar("R")
Rule = Callable[..., Any]

_PLAIN = {Tensor, Parameter}


class FusedOp(Generic[R]):
    """A `torch.library` op, and the same function and gradient without the library around them.

    What `torch.library` does for compilers, `torch.vmap` and dispatch modes takes longer than launching the kernels of
    a small graph, so plain calls leave it out (a `TorchFunctionMode` does not see them). The ops of the library have no
    gradient under `torch.func.grad`; a third form serves there. Derivatives of gradients and those in forward mode are
    errors.

    Args:
        name: the op's name, as "magna::hop".
        function: the op itself; its annotations are the schema.
        shape: the same arguments → empty tensors of the outputs' shapes and types.
    """

    def __init__(self, name: str, function: Callable[..., R], shape: Rule) -> None:
        self.name = name
        self.library = custom_op(name, function, mutates_args=())
        self.library.register_fake(shape)
        self.function = function
        self.learning: Rule = self._unless_learning
        self.register_vmap(self._one_by_one)
        self.library.register_autograd(self._no_derivative)
        self.transformed = self._under_transforms(self._no_derivative, lambda ctx, inputs, output: None)

    def register_vmap(self, rule: Rule) -> Rule:
        self.library.register_vmap(rule)
        self.rule = rule
        return rule

    def register_autograd(self, setup_context: Callable[..., None]) -> Callable[[Rule], Rule]:
        """A decorator of the gradient; `setup_context` keeps what it needs, as that of an `autograd.Function`."""

        def register(backward: Rule) -> Rule:
            self.library.register_autograd(backward, setup_context=setup_context)
            if self.function.__annotations__["return"] == "list[Tensor]":
                # A Function gives tensors or a tuple of them, and has no gradient for the tensors of a list.
                self.learning, self.transformed = self.library, self._no_derivative
                return backward

            def forward(ctx: Any, *args: Any) -> Any:
                output = self.function(*args)
                setup_context(ctx, args, output)
                return output

            def once(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
                results = backward(ctx, *grads)
                results = results if isinstance(results, tuple) else (results,)
                # A list of tensors without gradients is one input of a Function.
                return tuple(None if isinstance(grad, list) else grad for grad in results)

            self.learning = _function(self.name, forward=forward, backward=once)
            self.transformed = self._under_transforms(once, setup_context)
            return backward

        return register

    def _under_transforms(self, backward: Rule, setup_context: Callable[..., None]) -> Rule:
        """The form for `torch.func.grad` and its kin; slower to call than `learning`."""

        def rule(info: Any, axes: Sequence[Any], *args: Any) -> Any:
            return self.rule(info, axes, *args)

        return _function(self.name, forward=self.function, setup_context=setup_context, backward=backward, vmap=rule)

    def _no_derivative(self, *_: Any) -> Any:
        raise RuntimeError(f"{self.name} has no derivative; try backend='reference'")

    def _one_by_one(self, info: Any, axes: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        """`torch.vmap` of an op without a rule."""

        def pick(arg: Any, axis: Any, entry: int) -> Any:
            if isinstance(axis, int):
                return arg.select(axis, entry).contiguous()
            nested = isinstance(axis, list | tuple) and any(place is not None for place in axis)
            return [pick(*pair, entry) for pair in zip(arg, axis, strict=True)] if nested else arg

        entries = range(info.batch_size)
        outs: list[Any] = [self(*(pick(*pair, e) for pair in zip(args, axes, strict=True))) for e in entries]
        if isinstance(outs[0], Tensor):
            return torch.stack(outs), 0
        stacked = [torch.stack(parts) for parts in zip(*outs, strict=True)]
        return type(outs[0])(stacked), type(outs[0])(0 for _ in stacked)

    def __call__(self, *args: Any) -> R:
        if not is_plain(args):
            return cast(R, self._by_library(args))
        return cast(R, self.learning(*args)) if torch.is_grad_enabled() else self.function(*args)

    def _by_library(self, args: Sequence[Any]) -> Any:
        if not torch.compiler.is_compiling() and in_forward_mode():
            raise RuntimeError(f"{self.name} has no derivative in forward mode; try backend='reference'")
        if takes_gradient():
            return self.transformed(*args)
        return self.library(*[list(arg) if isinstance(arg, Packed) else arg for arg in args])

    def _unless_learning(self, *args: Any) -> Any:
        """An op without a gradient; if one could be asked for, the library's form refuses it."""
        lists = [arg if type(arg) is list else [arg] for arg in args]
        learning = any(isinstance(one, Tensor) and one.requires_grad for each in lists for one in each)
        return self._by_library(args) if learning else self.function(*args)


def fused_op(name: str, shape: Rule) -> Callable[[Callable[..., R]], FusedOp[R]]:
    """Make a function a `FusedOp` that runs on the device of its first tensor, in the types of its tensors."""

    def register(function: Callable[..., R]) -> FusedOp[R]:
        @wraps(function)
        def on_its_device(first: Tensor, *rest: Any) -> R:
            # Triton launches on the current GPU, which need not be the one that the tensors are on.
            with torch.cuda.device_of(first), as_they_come(first.device):
                return function(first, *rest)

        return FusedOp(name, on_its_device, shape)

    return register


def _function(name: str, **steps: Rule) -> Rule:
    """An `autograd.Function` to call; the name is what a profiler shows."""
    kind = cast(Any, type(name, (Function,), {step: staticmethod(f) for step, f in steps.items()}))
    return cast(Rule, kind.apply)


def may_keep() -> bool:
    """True if later calls may use a tensor that is made now: those born in inference mode cannot be saved."""
    return unwatched() and not torch.is_inference_mode_enabled()


def is_plain(args: Sequence[Any]) -> bool:
    """True if nothing looks on and all tensors are plain ones on a CPU or GPU."""
    # Stacked gradients come first, as gradients do.
    if not unwatched() or is_stacked_gradient(args[0]):
        return False
    kinds = {type(arg) for arg in args if isinstance(arg, Tensor)}
    return kinds <= _PLAIN and args[0].device.type in ("cpu", "cuda")
