"""Where data files are: the data folder, else a download from their public home; always checked by SHA-256."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from magna.config.atomic_files import write_whole
from magna.data.files import FILES, PublicFile

ENVIRONMENT_VARIABLE = "MAGNA_DATA_DIR"
_TIMEOUT_SECONDS = 30


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder given, else `MAGNA_DATA_DIR`, else the user's cache folder."""
    chosen = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "magna"


def present(path: str, data_dir: str | Path | None = None) -> Path | None:
    """The file as it lies in the data folder (the published text counts for its gzip), or None."""
    for name in _names(path):
        candidate = data_folder(data_dir) / name
        if candidate.is_file():
            return candidate
    return None


def locate(path: str, data_dir: str | Path | None = None) -> Path:
    """The checked file for a path such as `cora/ind.cora.x`, downloaded where the data folder does not hold it."""
    found = present(path, data_dir) or _download(path, data_folder(data_dir))
    expected = FILES[path].sha256 if found.name == Path(path).name else FILES[path].text_sha256
    actual = hashlib.sha256(found.read_bytes()).hexdigest()
    if actual != expected:
        raise ValueError(
            f"{found} has SHA-256 {actual[:12]}…; allowed: {expected}; delete the file and it is fetched again"
        )
    return found


def files_of(dataset: str) -> list[str]:
    """The paths that a public data set is made of."""
    return [path for path in FILES if path.startswith(f"{dataset}/")]


def _names(path: str) -> list[str]:
    return [path, path.removesuffix(".gz")] if FILES[path].text_sha256 else [path]


def _download(path: str, folder: Path) -> Path:
    file, destination = FILES[path], folder / _names(path)[-1]
    try:
        content = _published(file)
    except (OSError, tarfile.TarError) as error:
        reason = getattr(error, "reason", None) or error
        raise ValueError(
            f"{destination} is missing and could not be downloaded ({reason}); "
            f"get it from {file.url}{f' ({file.member} inside)' if file.member else ''} and put it there, "
            f"or point --data-dir or {ENVIRONMENT_VARIABLE} to a folder that holds {path}"
        ) from error
    expected = file.text_sha256 or file.sha256
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise ValueError(f"{file.url} gave SHA-256 {actual[:12]}…; allowed: {expected}; nothing was stored")
    try:
        write_whole(destination, content, again="the same command")
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise ValueError(
            f"{destination} is missing and {destination.parent} cannot be written; "
            f"put the file there or choose another folder with --data-dir or {ENVIRONMENT_VARIABLE}"
        ) from error
    return destination


def _published(file: PublicFile) -> bytes:
    with urllib.request.urlopen(file.url, timeout=_TIMEOUT_SECONDS) as answer:
        content: bytes = answer.read()
    if file.member is None:
        return content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if member.isfile() and Path(member.name).name == file.member:
                extracted = archive.extractfile(member)
                assert extracted is not None
                return extracted.read()
    raise tarfile.TarError(f"no {file.member} in {file.url}")
