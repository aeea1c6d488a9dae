"""The backends, the functions that each must have, and the one that `auto` takes.

A new one is one file, one line in `MODULES` and its name in `typing.Backend`.
"""

from __future__ import annotations

import importlib
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph import Graph, Segments
from magna.graph.torch_internals import constant_result
from magna.typing import Backend, one_of

MODULES = {"cpu": "magna.ops.cpu.bindings", "triton": "magna.ops.triton.kernels"}
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


class Draw(NamedTuple):
    """Dropout of one diffusion, and the slice of the heads and columns that the tensors are."""

    seed: Tensor  # [1] int64
    attention_rate: Tensor | None  # [h] float32, the heads of the slice
    feature_rate: Tensor | None  # [h] float32
    heads: int  # of the whole tensor
    width: int
    first_head: int = 0
    first_column: int = 0
    drawn: Tensor | None = None  # the attention that stays, for backends that draw it before the first hop


class Hop(NamedTuple):
    """Write F ∘ (z_scale · A_k z + x_scale · x) to `out`, F its feature dropout."""

    z: Tensor  # [N, h, d], as x and out
    x: Tensor
    attention: Tensor  # [E, h], in the order of the walk
    segments: Segments
    col: Tensor  # the other ends of the edges
    z_scale: Tensor | None  # [h], as x_scale
    x_scale: Tensor
    out: Tensor
    draw: Draw
    number: int  # of the hop


class HopBack(NamedTuple):
    """T = F ∘ A_kᵀ grad with the feature dropout F of the hop before: grad_x gets scale · T, out gets T.

    An edge's grad_attention gets z_scale · its dropout factor · ⟨grad at its target, z at its source⟩. With `rank`,
    the positions of the caller's edges in the walk, it is complete and returned in the caller's order.
    """

    grad: Tensor  # [N, h, d], as z, grad_x and out
    z: Tensor
    attention: Tensor  # [E, h], in the order of the walk, as grad_attention
    segments: Segments
    col: Tensor
    z_scale: Tensor | None  # [h], as the other scales
    first_scale: Tensor | None  # of grad, with which grad_x begins; None adds to it
    scale: Tensor
    grad_attention: Tensor
    add: bool  # to grad_attention
    rank: Tensor | None
    grad_x: Tensor
    out: Tensor | None
    draw: Draw
    number: int


class Kernels(Protocol):
    """The module of a backend: functions of contiguous tensors, without autograd. G counts trials of a batch."""

    def why_not(self, device: torch.device) -> str | None: ...

    def empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of the dtype and device of another."""

    def head_scores(self, x: Tensor, vector: Tensor, tanh: bool) -> Tensor:
        """Scores [G, N, H] from x [G, N, H, C] and vector [G, H, C]."""

    def head_scores_backward(self, grad: Tensor, x: Tensor, vector: Tensor, tanh: bool) -> tuple[Tensor, Tensor]: ...

    def edge_scores(
        self, source: Tensor, target: Tensor, relation: Tensor | None, graph: Graph, negative_slope: float
    ) -> Tensor: ...

    def segment_sum(self, grad: Tensor, scores: Tensor, negative_slope: float, segments: Segments) -> Tensor:
        """Sums over segments of the gradient of scores [E, H], back through LeakyReLU."""

    def kept_edges(self, rate: Tensor, seed: Tensor, pairs: Tensor | None, paired: bool, graph: Graph) -> Tensor: ...

    def edge_softmax(self, scores: Tensor, graph: Graph) -> Tensor: ...

    def edge_softmax_backward(self, grad: Tensor, attention: Tensor, graph: Graph) -> Tensor: ...

    def top_k_mask(self, scores: Tensor, k: int, graph: Graph) -> Tensor: ...

    def dropout(self, x: Tensor, rate: Tensor, seed: Tensor, shared: bool) -> Tensor:
        """Dropout of G blocks of x at the rates [G]; with `shared` of G copies of it."""

    def attention_kept(self, draw: Draw, hops: int, segments: Segments) -> Tensor | None:
        """The value of `Draw.drawn` for these hops."""

    def take_rows(self, values: Tensor, order: Tensor) -> Tensor:
        """values[order], the order [E] int32 a permutation."""

    def hop(self, step: Hop) -> None: ...

    def hop_backward(self, step: HopBack) -> Tensor | None: ...

    def hop_dropout(self, grad: Tensor, draw: Draw, number: int) -> Tensor:
        """The gradient through the feature dropout of a hop."""


KERNELS = tuple(name for name in vars(Kernels) if not name.startswith("_") and name != "why_not")


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


def kernels(backend: str) -> Kernels:
    """The module of a backend; its import fails where the backend cannot run at all."""
    return cast(Kernels, _imported(MODULES[backend]))


def dense_kernels() -> ModuleType:
    """Layer norm and the parts of linear layers, which Triton's backend alone has."""
    return _imported("magna.ops.triton.dense")


# Under a compiler the answer is a constant: imports cannot be traced.
@constant_result
def why_not(backend: str, device: torch.device) -> str | None:
    """The reason that keeps a backend from running on tensors of this device, or None."""
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
        raise cannot_run(backend, reason)
    return backend


def cannot_run(backend: str, reason: str) -> ArgumentError:
    return ArgumentError("backend", backend, f"one that runs ({reason})", "backend='auto'")


@cache
def _say_once(reason: str) -> None:
    warnings.warn(f"{reason}; the plain PyTorch definition serves, which is slower", stacklevel=4)


def as_they_come(device: torch.device) -> AbstractContextManager[object]:
    """A context in which products take tensors in their types, also under autocast."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()
