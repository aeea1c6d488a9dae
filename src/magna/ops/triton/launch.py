"""Launches of kernels with little work on the host: bound kernels, and the sizes of their grids and blocks.

Before every launch `triton.jit` builds a key of all arguments as text and looks up the compiled kernel. On the usual
benchmarks' graphs this takes longer than the kernels run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

# Triton reads the variable when a kernel is defined, so its value at import holds for the whole process.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# On AMD's GPUs the key of a kernel has parts that `Bound` does not know.
_DIRECT = not INTERPRETED and torch.version.hip is None


class Bound:
    """A kernel of `triton.jit` with its constants, launched as `bound[grid](*variables)`, a tensor first.

    It remembers the compiled kernel for each kind of variables, so make it once for all launches, as `bound` does.
    """

    def __init__(self, function: Any, **constants: Any) -> None:
        self.function, self.constants = function, constants
        self.compiled: dict[tuple[Any, ...], Any] = {}
        params = function.params if _DIRECT else []
        self.rest = tuple(constants[param.name] for param in params if param.is_constexpr)
        if any(param.is_constexpr for param in params[: len(params) - len(self.rest)]):
            raise ValueError(f"{function} has a constant before a variable; allowed: all variables first")

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self.launch, grid) if _DIRECT else partial(self.function[grid], **self.constants)

    @staticmethod
    def kinds(variables: tuple[Any, ...]) -> tuple[Any, ...]:
        """A key that differs wherever that of `triton.jit` differs, and more often for numbers."""
        return tuple(
            (variable.dtype, variable.data_ptr() % 16 == 0)
            if isinstance(variable, Tensor)
            else None
            if variable is None
            else (type(variable), variable % 16 == 0, variable == 1, -(2**31) <= variable < 2**31)
            for variable in variables
        )

    def launch(self, grid: tuple[int, ...], *variables: Any) -> None:
        kinds = variables[0].get_device(), self.kinds(variables)
        compiled = self.compiled.get(kinds)
        if compiled is None:
            self.compiled[kinds] = self.function[grid](*variables, **self.constants)
        else:
            compiled[(*grid, 1, 1)[:3]](*variables, *self.rest)


_BOUND: dict[tuple[Any, ...], Bound] = {}


def bound(function: Any, **constants: Any) -> Bound:
    """A kernel of `triton.jit` with its constants, the same object for the same constants."""
    key = (id(function), *constants, *constants.values())
    kernel = _BOUND.get(key)
    if kernel is None:
        kernel = _BOUND[key] = Bound(function, **constants)
    return kernel


# `triton.cdiv` and `triton.next_power_of_2`, which serve inside kernels too, take several times as long on the host.
def ceil_div(size: int, part: int) -> int:
    return -(-size // part)


def power_of_2(size: int) -> int:
    """The least power of 2 that is at least `size`, which is 1 or more."""
    return 1 << (size - 1).bit_length()


def index_type(size: int) -> tl.dtype:
    """The type of places among so many entries and one block more; 64 bits take more instructions to draw for."""
    return tl.int32 if size < 2**30 else tl.int64


def accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
