"""Claims on files: one process at a time works on a cell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """True if this process alone may write the file, False if another one has claimed it.

    The system ends a claim with its process, however that ends: a killed one blocks nobody.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield True
        return
    lock = path.with_name(f".{path.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            yield False
            return
        with suppress(FileNotFoundError):
            if os.fstat(file).st_ino == lock.stat().st_ino:
                break
        os.close(file)  # its last owner has removed it meanwhile
    try:
        yield True
    finally:
        lock.unlink(missing_ok=True)
        os.close(file)
