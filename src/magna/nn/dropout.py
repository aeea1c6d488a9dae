"""Dropout whose seed comes from torch's generator and whose mask comes from the seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor, nn

from magna.nn.sparse import SparseRows
from magna.ops import checks, dropout
from magna.ops.backend.op import may_keep
from magna.ops.checks import Rate
from magna.typing import Backend

Features = TypeVar("Features", Tensor, SparseRows)

_AT_ONCE = ("cuda",)  # kinds of devices where drawing one number takes as long as drawing many
_SEEDS = 32  # drawn by one kernel there
_LEFT: ContextVar[dict[torch.device, list[Tensor]] | None] = ContextVar("seeds left", default=None)


def draw_seed(device: torch.device) -> Tensor:
    """A seed, int64 [1], from torch's generator, so that `torch.manual_seed` governs it.

    As a tensor it makes nothing wait for the GPU, and a replayed CUDA graph draws a new one each time.
    """
    left = _LEFT.get() if device.type in _AT_ONCE and may_keep() else None
    if left is None:
        return _draw(1, device)
    seeds = left.setdefault(device, [])
    if not seeds:
        # Every second number, as Triton compiles a kernel again for pointers that are no multiples of 16 bytes.
        seeds.extend(torch.split(_draw(2 * _SEEDS, device)[::2], 1))
    return seeds.pop()


@contextmanager
def seeds_at_once() -> Iterator[None]:
    """Let a GPU draw the seeds of `draw_seed` in blocks of 32, with one kernel for each block.

    Unused seeds are dropped at the end, so that later draws depend on torch's generator alone.
    """
    before = _LEFT.set({})
    try:
        yield
    finally:
        _LEFT.reset(before)


def _draw(count: int, device: torch.device) -> Tensor:
    return torch.randint(torch.iinfo(torch.int64).max, (count,), device=device)


class Dropout(nn.Module):
    """Inverted dropout in training mode, the same masks in every backend.

    Args:
        p: probability of setting an entry to zero.
        rows: set whole rows to zero instead of single entries.
        name: name of the rate in errors.

    Shapes: any, [N, ...] with `rows` → the same.

    >>> Dropout(0.5).eval()(torch.ones(2)).tolist()
    [1.0, 1.0]
    """

    def __init__(self, p: float, *, rows: bool = False, name: str = "p", backend: Backend = "auto") -> None:
        super().__init__()
        checks.active(name, p, 1)
        self.p: Rate = p
        self.rows = rows
        self.backend = backend

    @property
    def drops(self) -> bool:
        return self.training and not is_zero(self.p)

    def forward(self, x: Features) -> Features:
        if not self.drops:
            return x
        if isinstance(x, SparseRows):
            if self.rows:
                return x.scaled(self._drawn(x.values.new_ones(x.size(0))))
            return x.with_values(self._drawn(x.values))
        return x * self._drawn(x.new_ones(x.size(0), *(1 for _ in x.shape[1:]))) if self.rows else self._drawn(x)

    def _drawn(self, entries: Tensor) -> Tensor:
        return dropout(entries, self.p, draw_seed(entries.device), backend=self.backend, validate=False)

    def extra_repr(self) -> str:
        return f"p={self.p}" + (", rows=True" if self.rows else "")


def is_zero(rate: Rate) -> bool:
    """True if nothing is dropped; a tensor of rates, one for each trial, may always drop something."""
    return not isinstance(rate, Tensor) and rate == 0
