"""Files of public data sets: in the data folder, or downloaded from their home; always checked by SHA-256."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from magna.config.atomic_files import write_whole
from magna.errors import DataError

ENVIRONMENT_VARIABLE = "MAGNA_DATA_DIR"
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class PublicFile:
    """One file under the data folder, such as `cora/ind.cora.x`, and its public home."""

    path: str
    sha256: str
    url: str
    text_sha256: str | None = None  # of the text that is published, and stored without `.gz`, if `path` is its gzip
    member: str | None = None  # name inside a published archive

    def present(self, data_dir: str | Path | None = None) -> Path | None:
        """The file in the data folder, or None."""
        files = (data_folder(data_dir) / name for name in (self.path, self._stored))
        return next(filter(Path.is_file, files), None)

    def locate(self, data_dir: str | Path | None = None) -> Path:
        """The checked file, downloaded if the data folder does not have it."""
        file = self.present(data_dir) or self._download(data_folder(data_dir) / self._stored)
        expected = self.sha256 if file.name == Path(self.path).name else self.text_sha256
        actual = _checksum(file.read_bytes())
        if actual != expected:
            hint = "to delete the file: it is then downloaded again"
            raise DataError(file, f"its SHA-256 is {actual[:12]}…", allowed=f"{expected}", hint=hint)
        return file

    @property
    def _stored(self) -> str:
        """The path under which a download is stored."""
        return self.path.removesuffix(".gz") if self.text_sha256 else self.path

    def _download(self, destination: Path) -> Path:
        folders = f"another data_dir or {ENVIRONMENT_VARIABLE}"
        try:
            content = self._published()
        except (OSError, tarfile.TarError) as error:
            reason = getattr(error, "reason", None) or error
            inside = f" ({self.member} inside)" if self.member else ""
            hint = f"to get it from {self.url}{inside} and put it there, or {folders} that has {self.path}"
            raise DataError(destination, f"it is missing, and the download failed ({reason})", hint=hint) from error
        expected, actual = self.text_sha256 or self.sha256, _checksum(content)
        if actual != expected:
            raise DataError(self.url, f"its SHA-256 is {actual[:12]}…, so nothing was stored", allowed=expected)
        try:
            write_whole(destination, content, again="the same command")
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            fault = f"it is missing, and {destination.parent} cannot be written"
            raise DataError(destination, fault, hint=f"to put the file there, or {folders}") from error
        return destination

    def _published(self) -> bytes:
        with urllib.request.urlopen(self.url, timeout=_TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read()
        if self.member is None:
            return content
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                if Path(member.name).name == self.member and (file := archive.extractfile(member)):
                    return file.read()
        raise tarfile.TarError(f"no {self.member} in {self.url}")


def public_files(homes: Mapping[str, str]) -> dict[str, PublicFile]:
    """Files by their path in the data folder, with their home; an archive there has the file by its name.

    `checksums.txt`, which `sha256sum --check` reads too, has the sum of each file and of the text in each gzip.
    """
    lines = resources.files("magna.data").joinpath("checksums.txt").read_text().splitlines()
    sums = {path: checksum for checksum, path in (line.split("  ") for line in lines)}
    files = {}
    for path, url in homes.items():
        text_sum = sums.get(path.removesuffix(".gz")) if path.endswith(".gz") else None
        member = Path(path).stem if url.endswith(".tar.gz") else None
        files[path] = PublicFile(path, sums[path], url, text_sum, member)
    return files


def data_folder(data_dir: str | Path | None = None) -> Path:
    """`data_dir`, else `MAGNA_DATA_DIR`, else the user's cache folder."""
    chosen = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(chosen).expanduser() if chosen else cache_folder()


def cache_folder() -> Path:
    """The data folder of a user who names none."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "magna"


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
