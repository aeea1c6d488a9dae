"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from magna.errors import ArgumentError, DataError

# A full disk, or a full share of it.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def make_folder(path: str | Path, argument: str) -> Path:
    """Make the folder that an argument names, if it is new."""
    folder = Path(path)
    try:
        str(folder).encode()  # files of text name it
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in _FULL:
            raise
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(argument, str(folder), f"a folder that can be made ({reason})") from error
    return folder


def check_free(folder: Path, names: Iterable[str], missing: str, argument: str) -> None:
    """Refuse a folder with files of these names, which would be replaced; `missing` says what the folder lacks."""
    if files := [name for name in names if (folder / name).exists()]:
        allowed = "a new folder, or one without files of these names"
        raise DataError(folder, f"it has {', '.join(files)} but {missing}", allowed=allowed, hint=f"another {argument}")


def write_whole(path: Path, content: bytes, again: str = "resume=True") -> None:
    """Write a file under another name and rename it; a link stays, and its target is written.

    Args:
        path: the file.
        content: its bytes.
        again: the way to continue after an error.
    """
    target = path.resolve()
    # The name has the process id, as two processes may write the same file.
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with writing(path, again):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def forget_parts(files: Iterable[Path]) -> None:
    """Delete the half-written parts of these files, which killed processes have left; no other process may write."""
    for file in files:
        for part in file.parent.glob(f".{file.name}.*.part"):
            part.unlink()


@contextmanager
def writing(path: Path, again: str = "resume=True") -> Iterator[None]:
    """Name the file, the cause and the cure in an error of the disk, such as a full one."""
    try:
        yield
    except OSError as error:
        reason, cure = error.strerror or str(error), "make room" if error.errno in _FULL else "see to that"
        message = f"{path} could not be written ({reason}); what was there before is kept: {cure}, then {again}"
        raise OSError(error.errno, message) from error
