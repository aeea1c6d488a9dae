"""Peak memory of a device while code runs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator

import torch

from magna.ops.cpu.memory_pool import POOL


@contextlib.contextmanager
def peak_bytes(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """A function that returns the most bytes in use since the start, above those at the start.

    On a GPU they are those of torch's allocator. On the CPU they are the growth of the resident set by the high-water
    mark of Linux, after free memory was returned; on other systems the function returns None.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
    elif _reset_high_water():
        before = _status_bytes("VmRSS")
        yield lambda: max(0, _status_bytes("VmHWM") - before)
    else:
        yield lambda: None


def _reset_high_water() -> bool:
    try:
        # Freed blocks in the pool and the C library would hide growth.
        POOL.clear()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except (OSError, AttributeError, TypeError):
        return False
    return True


def _status_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
