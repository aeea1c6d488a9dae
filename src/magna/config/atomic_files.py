"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# A disk, or one's share of it, that is full.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Names that no folder can have here.
_NO_FOLDER = {
    errno.EEXIST: "there is a file of that name",
    errno.ENOTDIR: "a part of it is a file",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "its links lead in a circle",
    errno.EACCES: "that is not permitted",
    errno.EPERM: "that is not permitted",
    errno.EROFS: "nothing can be written there",
}


def make_folder(path: str | Path, option: str) -> Path:
    """The folder that an option names, made where it is new."""
    folder = Path(path)
    if fault := name_fault(folder):
        raise ValueError(f"{str(folder)!r} cannot be made: {fault}; try another {option}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _NO_FOLDER:  # as of a disk that is full
            raise
        # What is there and is not there is a link.
        nowhere = error.errno == errno.EEXIST and not folder.exists()
        reason = "it is a link to nowhere" if nowhere else _NO_FOLDER[error.errno]
        raise ValueError(f"{folder} cannot be made: {reason}; try another {option}") from error
    return folder


def name_fault(path: Path) -> str | None:
    """Why no file can be called so, or no text file can say so; None where all is well."""
    try:
        return "its name has a NUL" if b"\0" in str(path).encode() else None
    except UnicodeEncodeError:
        return "its name is not UTF-8 text"


def check_free(folder: Path, names: Iterable[str], missing: str, option: str) -> None:
    """Refuse a folder with files of such names, which would be replaced; `missing` says whose they cannot be."""
    if found := [name for name in names if (folder / name).exists()]:
        raise ValueError(
            f"{folder} holds {', '.join(found)} but {missing}; allowed: a new folder, or one without files of these "
            f"names; try another {option}"
        )


def write_whole(path: Path, content: bytes, again: str = "--resume") -> None:
    """Write beside and rename; `again` is how to go on after an error. A link stays one: its target is written."""
    target = path.resolve()
    # Two processes may write the same file: each has a part of its own.
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
    """Delete what a process that was killed had half written of these, where no other one writes."""
    for file in files:
        for part in file.parent.glob(f".{file.name}.*.part"):
            part.unlink()


@contextmanager
def writing(path: Path, again: str = "--resume") -> Iterator[None]:
    """A disk that is full, or a folder that may not be written, says which file and what to do."""
    try:
        yield
    except OSError as error:
        reason, cure = error.strerror or str(error), "make room" if error.errno in _FULL else "see to that"
        message = f"{path} could not be written ({reason}); what was there before is kept: {cure}, then {again}"
        raise OSError(error.errno, message) from error
