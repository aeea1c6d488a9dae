"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from magna.config.atomic_files import forget_parts, make_folder, write_whole
from magna.errors import ArgumentError


def test_a_folder_that_cannot_be_made_names_the_argument(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "a" / "b", "out").is_dir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, words in (
        ("link", "File exists"),
        ("n\udcff", "'utf-8' codec can't encode"),
        ("file", "File exists"),
        ("file/below", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("a\0b", "(mkdir: )?embedded null"),  # Python 3.13 names mkdir too
    ):
        with pytest.raises(ArgumentError, match=rf"allowed: a folder that can be made \({words}") as caught:
            make_folder(tmp_path / name, "out")
        assert caught.value.name == "out"


def test_a_full_disk_is_not_a_wrong_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="No space left"):
        make_folder(tmp_path / "new", "out")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for content in (b"first", b"second"):
        write_whole(path, content)
        assert path.read_bytes() == content and os.listdir(path.parent) == ["file"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "elsewhere" / "file"
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"


def test_an_error_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"first")

    def fails(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(PermissionError, match=r"file could not be written \(Permission denied\).*then try again"):
        write_whole(path, b"second", again="try again")
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["file"]


def test_two_processes_do_not_share_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fsync, other = tmp_path / "file", os.fsync, os.getpid() + 1

    def meanwhile(descriptor: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            patch.setattr(os, "getpid", lambda: other)
            write_whole(path, b"theirs")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_whole(path, b"ours")
    assert path.read_bytes() == b"ours" and os.listdir(tmp_path) == ["file"]


def test_parts_of_a_killed_process_are_forgotten(tmp_path: Path) -> None:
    for name in ("checkpoint/.state.1.part", "checkpoint/state", ".config.1.part", "metrics", ".film.1.part"):
        write_whole(tmp_path / name, b"")
    forget_parts(tmp_path / name for name in ("checkpoint/state", "config", "metrics", "gone/summary"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".film.1.part", "checkpoint", "metrics", "state"]
