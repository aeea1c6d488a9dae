"""Finding, fetching and checking files, without a network."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from magna.data import DATASETS, store
from magna.data.store import PublicFile

TEXT = b"a\tr\tb\n"


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


FILE = PublicFile("x/f", _sum(TEXT), "https://home/f")


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A little internet: address → content."""
    pages: dict[str, bytes] = {}

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        if url not in pages:
            raise urllib.error.URLError("no network")
        return io.BytesIO(pages[url])

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return pages


def test_the_folder_is_the_argument_then_the_variable_then_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNA_DATA_DIR", "/variable")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert store.data_folder("/argument") == Path("/argument")
    assert store.data_folder() == Path("/variable")
    monkeypatch.delenv("MAGNA_DATA_DIR")
    assert store.data_folder() == Path("/cache/magna")


def test_a_missing_file_is_fetched_once(tmp_path: Path, published: dict[str, bytes]) -> None:
    published[FILE.url] = TEXT
    assert FILE.present(tmp_path) is None
    assert FILE.locate(tmp_path).read_bytes() == TEXT
    published.clear()
    assert FILE.locate(tmp_path) == tmp_path / "x" / "f"
    assert [child.name for child in (tmp_path / "x").iterdir()] == ["f"]


def test_a_member_of_an_archive_is_stored_as_published(tmp_path: Path, published: dict[str, bytes]) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        entry = tarfile.TarInfo("./train.txt")
        entry.size = len(TEXT)
        tar.addfile(entry, io.BytesIO(TEXT))
    zipped, plain = gzip.compress(TEXT), tmp_path / "x" / "train.txt"
    file = PublicFile("x/train.txt.gz", _sum(zipped), "https://home/a.tar.gz", _sum(TEXT), member="train.txt")
    published[file.url] = archive.getvalue()
    assert file.locate(tmp_path) == plain
    # A folder that holds the gzip is taken as it is.
    packed = plain.rename(tmp_path / "x" / "train.txt.gz")
    packed.write_bytes(zipped)
    assert file.locate(tmp_path) == packed


def test_no_network_and_other_content_are_refused(tmp_path: Path, published: dict[str, bytes]) -> None:
    place = tmp_path / "x" / "f"
    with pytest.raises(ValueError, match=f"{place}: .*no network.*{FILE.url} .*MAGNA_DATA_DIR"):
        FILE.locate(tmp_path)
    published[FILE.url] = b"something else"
    with pytest.raises(ValueError, match="nothing was stored"):
        FILE.locate(tmp_path)
    assert not place.parent.exists()
    place.parent.mkdir()
    place.write_bytes(b"something else")
    with pytest.raises(ValueError, match="SHA-256"):
        FILE.locate(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    published[FILE.url] = TEXT
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match="cannot be written; try to put the file there, or another data_dir"):
        FILE.locate(tmp_path / "file")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"f could not be written \(No space .*make room, then the same command"):
        FILE.locate(tmp_path)
    assert list((tmp_path / "x").iterdir()) == []


def test_the_table_is_complete() -> None:
    numbers = {name: len(dataset.files) for name, dataset in DATASETS.items()}
    expected = {"cora": 8, "citeseer": 8, "pubmed": 8, "wn18rr": 3, "fb15k-237": 3, "digits": 0, "families": 0}
    expected |= {"wn18rr-v1": 3, "fb15k-237-v1": 3}
    assert numbers.items() >= expected.items() | {("ogbn-arxiv", 5)}
    assert not DATASETS["cora"].is_present("nowhere") and DATASETS["digits"].is_present("nowhere")
