"""Large blocks of CPU memory, kept for the next call.

The C library gives every block above 32 MB back to the system when it is freed, and touching fresh pages costs more
than the arithmetic on them. A block of this pool goes back to the pool instead, when its last tensor is freed.

No Python runs while a tensor is freed: an exception raised then, such as a pending Ctrl-C, would be lost.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
import weakref
from collections import deque
from functools import cache
from pathlib import Path

import numpy as np
import torch

LARGE = 4 << 20  # bytes; smaller tensors are torch's own
_PAGE = 2 << 20  # of huge pages
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MEMORY = Path("/proc/meminfo")
_SPARE = 1.25  # a free block serves where it is at most this many times too large


class Pool:
    """Blocks in use, and at most `limit` bytes of free ones."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free: list[mmap.mmap] = []  # oldest first
        self._lent: dict[int, tuple[weakref.ref[np.ndarray], mmap.mmap]] = {}  # by the identity of the reference
        self._gone: deque[weakref.ref[np.ndarray]] = deque()  # references to freed arrays
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor, on a block of the pool if it is large."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size < LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
            return torch.empty(shape, dtype=dtype)
        block = self._take(size)
        array = np.frombuffer(block, dtype=np.uint8, count=size)
        reference = weakref.ref(array, self._gone.append)
        self._lent[id(reference)] = reference, block
        return torch.from_numpy(array).view(dtype).view(shape)

    @property
    def free(self) -> list[mmap.mmap]:
        """The free blocks, oldest first."""
        with self._lock:
            self._collect()
            return list(self._free)

    def clear(self) -> None:
        """Give the free blocks back to the system."""
        with self._lock:
            self._collect()
            self._free.clear()

    def _take(self, size: int) -> mmap.mmap:
        size = -(-size // _PAGE) * _PAGE
        with self._lock:
            self._collect()
            fitting = [block for block in self._free if size <= len(block) <= _SPARE * size]
            if fitting:
                block = min(fitting, key=len)
                self._free.remove(block)
                return block
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def _collect(self) -> None:
        """Take back the blocks of freed tensors."""
        while self._gone:
            _, block = self._lent.pop(id(self._gone.popleft()))
            self._free.append(block)
        while self._free and sum(map(len, self._free)) > self.limit:
            self._free.pop(0)


@cache
def machine_memory() -> int:
    """Bytes of memory of the machine, or of its part that a container may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
    for file in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            total = min(total, int(file.read_text()))
    return total


POOL = Pool(limit=machine_memory() // 8)


def free_memory() -> int:
    """Bytes of free memory of the machine, or of its part that a container may use; free blocks of the pool count."""
    free = machine_memory()
    with contextlib.suppress(OSError, KeyError, ValueError):
        free = 1024 * _numbers(_MEMORY)["MemAvailable:"]
    for file in _LIMITS:
        with contextlib.suppress(OSError, KeyError, ValueError):
            used = _numbers(file.with_name("memory.stat"))
            # Cached files count as free.
            free = min(free, int(file.read_text()) - used["anon" if "anon" in used else "total_rss"])
    return free + sum(map(len, POOL.free))


def _numbers(file: Path) -> dict[str, int]:
    """The numbers by name in a file with lines "name number"."""
    return {line.split()[0]: int(line.split()[1]) for line in file.read_text().splitlines()}
