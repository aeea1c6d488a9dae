"""Load of the machine's cores by other programs; nothing in this module imports torch."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def other_cores() -> Iterator[Callable[[], float | None]]:
    """Number of cores that others kept busy since the start of the block, or None if the system does not say.

    Others are other programs, and other guests of the same host.
    """
    start, busy, ours = time.perf_counter(), _busy_seconds(), time.process_time()

    def others() -> float | None:
        now = _busy_seconds()
        if busy is None or now is None:
            return None
        return max(0.0, now - busy - (time.process_time() - ours)) / (time.perf_counter() - start)

    yield others


def _busy_seconds() -> float | None:
    """Time that all cores together were not idle since the machine started."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, soft_irq, steal = (int(ticks) for ticks in file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")
