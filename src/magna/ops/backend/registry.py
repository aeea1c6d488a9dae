"""Backends: which there are, which one `auto` takes, and how a `Graph` passes through an op's schema.

A backend is a module with the functions of `KERNELS`, each on contiguous tensors and without autograd. A new one is one
file, one line in `MODULES` and its name in `typing.Backend`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.library import custom_op
from torch.nn import Parameter

from magna.graph import Graph, Segments
from magna.ops.backend.torch_internals import constant_result
from magna.typing import Backend, one_of

MODULES = {"cpu": "magna.ops.cpu.bindings", "triton": "magna.ops.triton.kernels"}
KERNELS = (
    "empty",  # empty(shape, like) -> an uninitialised tensor of the dtype and device of another
    "head_scores",  # head_scores(x [G, N, H, C], vector [G, H, C], tanh) -> [G, N, H]
    "head_scores_backward",  # with the gradient first -> those of x and of the vector
    "edge_scores",
    "segment_sum",
    "kept_edges",
    "edge_softmax",
    "edge_softmax_backward",
    "top_k_mask",
    "dropout",
    "attention_kept",  # attention_kept(draw, hops, segments) -> what the hops want of it in `Draw.kept`
    "take_rows",  # take_rows(values [E, H], order [E] int32) -> values[order], the order a permutation
    "hop",
    "hop_backward",  # with rank, the last of them: the gradient of the attention in the caller's order
    "hop_dropout",
)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """A @ b; of bfloat16 in float32, or in the type of `out`, summed up in float32 either way."""
    if a.dtype != torch.bfloat16:
        return torch.mm(a, b, out=out)
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32 if out is None else out.dtype, out=out)
    exact = a.float() @ b.float()
    return exact if out is None else out.copy_(exact)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to a total in the type that `product` gives."""
    if a.dtype == torch.bfloat16 and a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += product(a, b)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type that sums of a feature type are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


_imported = cache(importlib.import_module)


def kernels(backend: str) -> ModuleType:
    """The module of a backend; its import fails where the backend cannot run at all."""
    return _imported(MODULES[backend])


def dense_kernels() -> ModuleType:
    """Layer norm and what goes with linear layers, which Triton's backend alone has."""
    return _imported("magna.ops.triton.dense")


# Under a compiler the answer is a constant: imports cannot be traced.
@constant_result
def why_not(backend: str, device: torch.device) -> str | None:
    """Why a backend cannot run on tensors of this device, or None where it can."""
    if backend == "reference":
        return None
    try:
        return kernels(backend).why_not(device)
    except ImportError as error:
        return str(error)


def choose(backend: Backend, device: torch.device) -> str:
    """The backend that runs: the one asked for, or for "auto" the fused one of the device where it can run.

    >>> choose("reference", torch.device("cpu"))
    'reference'
    """
    one_of("backend", backend, Backend)
    if backend == "auto":
        fused = {"cpu": "cpu", "cuda": "triton"}.get(device.type, "reference")
        reason = why_not(fused, device)
        if reason is None:
            return fused
        if not torch.compiler.is_compiling():
            _say_once(reason)
        return "reference"
    reason = why_not(backend, device)
    if reason is not None:
        raise ValueError(f"backend is {backend!r}, which cannot run here: {reason}; try backend='auto'")
    return backend


_PLAIN = {Tensor, Parameter}


class FusedOp:
    """A `torch.library` op, and a shorter way to it where nobody looks on.

    What `torch.library` does for compilers, `torch.vmap` and dispatch modes takes longer than launching the kernels of
    a small graph. Where none of them is there, the same function and the same gradient are called directly. A
    `TorchFunctionMode` does not see such calls. The ops of the library have no gradient under `torch.func.grad`, so
    that a third form serves there. Derivatives of gradients and those in forward mode are errors.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.library = custom_op(name, function, mutates_args=())
        self.register_fake = self.library.register_fake
        self.function, self.learning = function, self._unless_learning
        self.register_vmap(self._one_by_one)
        self.library.register_autograd(self._no_derivative)
        self.transformed = self._under_transforms(self._no_derivative, lambda ctx, inputs, output: None)

    def register_vmap(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        self.library.register_vmap(rule)
        self.rule = rule
        return rule

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        self.library.register_autograd(backward, setup_context=setup_context)
        if self.function.__annotations__["return"] == "list[Tensor]":
            # A Function gives tensors or a tuple of them. It also has no gradient for the tensors of a list that it
            # gets: only the op that gives one gets one whose tensors learn.
            self.learning, self.transformed = self.library, self._no_derivative
            return

        def forward(ctx: Any, *args: Any) -> Any:
            output = self.function(*args)
            setup_context(ctx, args, output)
            return output

        def once(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
            found = backward(ctx, *grads)
            # A list of tensors without gradients is one input here.
            return tuple(None if isinstance(g, list) else g for g in (found if isinstance(found, tuple) else (found,)))

        self.learning = _function(self.name, forward=forward, backward=once).apply
        self.transformed = self._under_transforms(once, setup_context)

    def _under_transforms(self, backward: Callable[..., Any], setup_context: Callable[..., None]) -> Callable[..., Any]:
        """What `torch.func.grad` and its kin take; slower to call than `learning`."""

        def rule(info: Any, axes: Sequence[Any], *args: Any) -> Any:
            return self.rule(info, axes, *args)

        steps = {"forward": self.function, "setup_context": setup_context, "backward": backward, "vmap": rule}
        return _function(self.name, **steps).apply

    def _no_derivative(self, *_: Any) -> Any:
        raise RuntimeError(f"{self.name} has no derivative; try backend='reference'")

    def _one_by_one(self, info: Any, axes: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        """`torch.vmap` of an op that has no rule of its own."""

        def pick(arg: Any, axis: Any, entry: int) -> Any:
            if isinstance(axis, int):
                return arg.select(axis, entry).contiguous()
            nested = isinstance(axis, list | tuple) and any(place is not None for place in axis)
            return [pick(*pair, entry) for pair in zip(arg, axis, strict=True)] if nested else arg

        outs = [
            self(*(pick(*pair, entry) for pair in zip(args, axes, strict=True))) for entry in range(info.batch_size)
        ]
        if isinstance(outs[0], Tensor):
            return torch.stack(outs), 0
        stacked = [torch.stack(parts) for parts in zip(*outs, strict=True)]
        return type(outs[0])(stacked), type(outs[0])(0 for _ in stacked)

    def __call__(self, *args: Any) -> Any:
        if not is_plain(args):
            return self._by_library(args)
        return (self.learning if torch.is_grad_enabled() else self.function)(*args)

    def _by_library(self, args: Sequence[Any]) -> Any:
        if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
            raise RuntimeError(f"{self.name} has no derivative in forward mode; try backend='reference'")
        if takes_gradient():
            return self.transformed(*args)
        return self.library(*[list(arg) if isinstance(arg, Packed) else arg for arg in args])

    def _unless_learning(self, *args: Any) -> Any:
        """An op without a gradient; where one could be asked for, the library's says so when it is."""
        lists = [arg if type(arg) is list else [arg] for arg in args]
        learning = any(isinstance(one, Tensor) and one.requires_grad for each in lists for one in each)
        return self._by_library(args) if learning else self.function(*args)


def _function(name: str, **steps: Callable[..., Any]) -> type[Function]:
    """The name is what a profiler shows."""
    return cast("type[Function]", type(name, (Function,), {step: staticmethod(f) for step, f in steps.items()}))


def takes_gradient() -> bool:
    """Whether `torch.func.grad` or one of its kin looks on."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        return False
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(one.key() == torch._C._functorch.TransformType.Grad for one in stack)


def unwatched() -> bool:
    """Whether nobody looks on: no compiler or tracer, no transform or mode."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and forward_ad._current_level < 0


def may_keep() -> bool:
    """Whether a tensor that is made now serves later calls as well: those born in inference mode cannot be saved."""
    return unwatched() and not torch.is_inference_mode_enabled()


def is_plain(args: Sequence[Any]) -> bool:
    """Whether nobody looks on, and no tensor is of another kind or device."""
    if not unwatched():
        return False
    # What `torch.autograd.grad(is_grads_batched=True)` stacks comes first, as gradients do.
    if torch._C._functorch.is_legacy_batchedtensor(args[0]):
        return False
    kinds = {type(arg) for arg in args if isinstance(arg, Tensor)}
    return kinds <= _PLAIN and args[0].device.type in ("cpu", "cuda")


def as_they_come(device: torch.device) -> AbstractContextManager:
    """Products of tensors in the type that they have, whatever autocast says: who wants bfloat16 says so by a type."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def fused_op(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function as a `torch.library` op that runs on the device of its first tensor, in its own precision."""

    def register(function: Callable[..., Any]) -> FusedOp:
        @wraps(function)
        def on_its_device(first: Tensor, *rest: Any) -> Any:
            # Triton launches on the current GPU, which need not be the one that the tensors are on.
            with torch.cuda.device_of(first), as_they_come(first.device):
                return function(first, *rest)

        return FusedOp(name, on_its_device)

    return register


@cache
def _say_once(reason: str) -> None:
    warnings.warn(f"{reason}; the plain PyTorch definition serves, which is slower", stacklevel=4)


class Draw(NamedTuple):
    """Dropout of one diffusion, and which slice of the heads and columns the tensors at hand are."""

    seed: Tensor  # [1] int64
    attention_rate: Tensor | None  # [h] float32, the heads at hand
    feature_rate: Tensor | None  # [h] float32
    heads: int  # of the whole tensor
    width: int
    first_head: int = 0
    first_column: int = 0
    kept: Tensor | None = None  # a backend's own: which attention is kept, drawn before the first hop


class Packed(list[Tensor]):
    """The tensors of a graph; an op that is called directly finds the graph itself here, and need not build it anew."""

    graph: Graph


def pack(graph: Graph) -> tuple[list[Tensor], list[int]]:
    """A graph as the tensors and ints that an op's schema can hold."""
    tensors = [graph.edge_index, *graph.by_target[:4], *graph.by_source[:4]]
    tensors += [graph.col, graph.source_col, graph.source_rank]
    sizes = [graph.num_nodes, int(graph.in_order), graph.by_target.num_slots, graph.by_source.num_slots]
    if graph.edge_type is not None and graph.by_relation is not None:
        tensors += [graph.edge_type, *graph.by_relation[:4]]
        sizes += [graph.num_relations, graph.by_relation.num_slots]
    if torch.compiler.is_compiling():
        return tensors, sizes
    packed = Packed(tensors)
    packed.graph = graph
    return packed, sizes


def keep(ctx: Any, graph: Sequence[Tensor], *tensors: Tensor) -> None:
    """Keep tensors and a graph for the backward pass; a graph as it is where it came as itself."""
    ctx.graph = graph if isinstance(graph, Packed) else None
    ctx.save_for_backward(*tensors, *(graph if ctx.graph is None else ()))


def kept(ctx: Any, count: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The tensors, `count` of them, and the graph that `keep` was given."""
    found, graph = ctx.saved_tensors, ctx.graph
    if graph is None:
        return found[:count], list(found[count:])
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        ctx.graph = None  # given up with the tensors, which a second backward pass finds gone
    return found, graph


def unpack(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Graph:
    if isinstance(tensors, Packed):
        return tensors.graph
    typed = len(sizes) > 4
    return Graph(
        num_nodes=sizes[0],
        edge_index=tensors[0],
        by_target=_segments(tensors[1:5], sizes[2]),
        by_source=_segments(tensors[5:9], sizes[3]),
        col=tensors[9],
        source_col=tensors[10],
        source_rank=tensors[11],
        in_order=bool(sizes[1]),
        edge_type=tensors[12] if typed else None,
        num_relations=sizes[4] if typed else 0,
        by_relation=_segments(tensors[13:17], sizes[5]) if typed else None,
    )


def _segments(tensors: Sequence[Tensor], num_slots: int) -> Segments:
    ptr, order, pieces, hubs = tensors
    return Segments(ptr, order, pieces, hubs, num_slots)


def in_target_order(values: Tensor, graph: Graph, fused: ModuleType) -> Tensor:
    return values if graph.in_order else fused.take_rows(values, graph.by_target.order)
