"""Large blocks of CPU memory, kept for the next call.

The C library gives every block above 32 MB back to the system when it is freed, and touching fresh pages costs more
than the arithmetic on them. A block of this pool goes back to the pool instead, when the last tensor on it is gone.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
import weakref
from functools import cache
from pathlib import Path

import numpy as np
import torch

LARGE = 4 << 20  # bytes; smaller tensors are torch's own
_PAGE = 2 << 20  # of huge pages
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_SPARE = 1.25  # a free block serves where it is at most this many times too large


class Pool:
    """Free blocks, oldest first, at most `limit` bytes of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.free: list[mmap.mmap] = []
        # A collection of garbage inside the lock may free a tensor, which comes back here in the same thread.
        self._lock = threading.RLock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor, on a block of the pool where it is large."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size < LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
            return torch.empty(shape, dtype=dtype)
        block = self._take(size)
        array = np.frombuffer(block, dtype=np.uint8, count=size)
        weakref.finalize(array, self._give, block).atexit = False
        return torch.from_numpy(array).view(dtype).view(shape)

    def _take(self, size: int) -> mmap.mmap:
        with self._lock:
            fitting = [block for block in self.free if size <= len(block) <= _SPARE * size]
            if fitting:
                block = min(fitting, key=len)
                with contextlib.suppress(ValueError):  # it left the pool meanwhile, and is ours all the same
                    self.free.remove(block)
                return block
        block = mmap.mmap(-1, -(-size // _PAGE) * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def _give(self, block: mmap.mmap) -> None:
        with self._lock:
            self.free.append(block)
            while self.free and sum(map(len, self.free)) > self.limit:
                self.free.pop(0)


@cache
def machine_memory() -> int:
    """Bytes of the machine's memory, or of the part of it that a container may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
    for file in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            total = min(total, int(file.read_text()))
    return total


POOL = Pool(limit=machine_memory() // 8)
