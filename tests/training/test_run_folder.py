"""The run folder and its checkpoint: complete, never half-written, never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import torch
from tests.support.running import SUMMARY, sign

from magna import MAGNA
from magna.config.schema import Config
from magna.errors import DataError
from magna.training.checkpoint import load_checkpoint, save_checkpoint
from magna.training.run_folder import FORMAT, SUMS, RunFolder

CPU = torch.device("cpu")


def test_a_new_folder_holds_what_is_needed_to_repeat(tmp_path: Path) -> None:
    config = Config.from_dict({"recipe": "mine", "model": {"K": 3}})
    run = RunFolder.create(tmp_path / "run", config, CPU)
    assert RunFolder.open(run.path).config == config
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["device"] == "cpu"
    assert run.summary is None


@pytest.mark.parametrize(
    "name", ["model/thesis.tex", "checkpoint/state", "metrics.jsonl", "environment.json", "schema.json"]
)
def test_files_of_others_are_not_taken_for_a_run_s_own(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=rf"it has {name.split('/')[0]} but no run .*try another run_dir"):
        RunFolder.create(tmp_path, Config(), CPU)
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ['{"mine": 1}']


def test_a_run_that_was_killed_before_it_was_one_begins_again(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, Config(), CPU, {"classes": []})
    (tmp_path / "config.toml").unlink()
    RunFolder.create(tmp_path, Config(), CPU, {"classes": []})
    # What comes later than that would be the start of another training.
    (tmp_path / "config.toml").unlink()
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(ValueError, match="it has checkpoint but no run"):
        RunFolder.create(tmp_path, Config(), CPU)


def test_a_place_where_no_folder_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"run_dir is .*; allowed: a folder that can be made"):
        RunFolder.create(tmp_path / "file" / "run", Config(), CPU)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run"):
        RunFolder.open(tmp_path)
    RunFolder.create(tmp_path / "seed-3", Config(), CPU)
    with pytest.raises(ValueError, match="runs inside: seed-3"):
        RunFolder.open(tmp_path)


def test_metrics_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, Config(), CPU)
    for epoch in range(3):
        run.log({"epoch": epoch})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')  # killed while it wrote
    run.keep_metrics(2)
    assert [json.loads(line)["epoch"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [0, 1]


def test_the_saved_model_is_the_model(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, Config(), CPU)
    model = MAGNA(4, 8, 1, 3, heads=2, K=2).eval()
    with pytest.raises(ValueError, match="has not ended"):
        run.load_model()
    run.finish(model, SUMMARY)
    loaded = RunFolder.open(tmp_path).load_model().eval()
    x, edge_index = torch.randn(5, 4), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    assert torch.equal(loaded(x, edge_index), model(x, edge_index))
    assert run.summary == SUMMARY
    assert {"config.json", "model.safetensors"} <= {child.name for child in (tmp_path / "model").iterdir()}


def test_nothing_in_a_run_is_a_pickle(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, Config(), CPU)
    run.log({"epoch": 0})
    save_checkpoint(run.checkpoint, {"model": {"x": torch.zeros(1)}}, {"epoch": 1})
    run.finish(MAGNA(4, 8, 1, 3, heads=2, K=2), SUMMARY)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".toml", ".json", ".jsonl", ".safetensors", ""}
    assert not any(path.read_bytes().startswith((b"\x80", b"PK")) for path in files)


def test_a_run_of_a_later_format_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, Config(), CPU)
    file = tmp_path / "environment.json"
    environment = json.loads(file.read_text())
    assert environment["format"] == FORMAT
    file.write_text(json.dumps(environment | {"format": FORMAT + 1, "packages": {"magna": "9.0"}}))
    sign(tmp_path, file.name)
    with pytest.raises(ValueError, match=rf"run format {FORMAT + 1}, written by magna 9\.0; allowed: up to {FORMAT}"):
        RunFolder.open(tmp_path)


FILES = ("environment.json", "config.toml", "schema.json", "summary.json", "model/config.json")


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path / "run", Config(), CPU, {"class_names": ["a"]})
    run.log({"epoch": 0})
    run.finish(MAGNA(4, 8, 1, 3, heads=2, K=2), SUMMARY)
    return run


def _read_everything(folder: Path) -> None:
    run = RunFolder.open(folder)
    assert run.schema is not None
    run.load_model()


@pytest.mark.parametrize("name", [*FILES, "model/model.safetensors"])
def test_a_changed_file_is_one_line_that_names_it(finished: RunFolder, name: str) -> None:
    _read_everything(finished.path)
    file = finished.path / name
    content = file.read_bytes()
    changed = [content[:-1], content + b"\n", b"", bytes([content[0] ^ 1]) + content[1:]]
    for each in changed:
        file.write_bytes(each)
        with pytest.raises(DataError, match=rf"{re.escape(str(file))}: it has changed since .*; try a copy of the run"):
            _read_everything(finished.path)
    file.write_bytes(content)
    _read_everything(finished.path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_one_line(finished: RunFolder, name: str) -> None:
    (finished.path / name).unlink()
    with pytest.raises(DataError, match=r"holds no run|is missing|has not ended"):
        _read_everything(finished.path)


def test_the_hashes_are_in_the_format_of_sha256sum(finished: RunFolder) -> None:
    lines = (finished.path / SUMS).read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums.keys() == {*FILES, "model/model.safetensors", "metrics.jsonl"}
    for name, digest in sums.items():
        assert hashlib.sha256((finished.path / name).read_bytes()).hexdigest() == digest


def test_a_full_disk_under_a_model_is_one_line(finished: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MAGNA, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MAGNA, "save_pretrained", full)
    words = r"model could not be written \(No space left on device\); what was there before is"
    with pytest.raises(OSError, match=words):
        finished.finish(MAGNA(4, 8, 1, 3, heads=2, K=2), {**SUMMARY, "seed": 1})
    finished.load_model()
    assert finished.summary == SUMMARY


def test_others_may_read_a_run(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = RunFolder.create(tmp_path / "run", Config(), CPU)
        run.finish(MAGNA(4, 8, 1, 3, heads=2, K=2), SUMMARY)
    finally:
        os.umask(before)
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    assert load_checkpoint(file) is None
    groups = {"model": {"a.x": torch.randn(3, 2), "step": torch.tensor(3.0)}, "random": {"cpu": torch.get_rng_state()}}
    save_checkpoint(file, groups, {"epoch": 3, "bests": [{"accuracy": 0.1 + 0.2}]})
    stored = load_checkpoint(file)
    assert stored is not None
    loaded, progress = stored
    assert progress == {"epoch": 3, "bests": [{"accuracy": 0.1 + 0.2}]}
    assert {name: values.keys() for name, values in loaded.items()} == {n: v.keys() for n, v in groups.items()}
    assert all(torch.equal(loaded[group][name], x) for group, values in groups.items() for name, x in values.items())


@pytest.mark.parametrize("part", [0, 4, 50, -1])
def test_a_damaged_checkpoint_says_what_to_do(tmp_path: Path, part: int) -> None:
    file = tmp_path / "state.safetensors"
    save_checkpoint(file, {"model": {"x": torch.zeros(100)}}, {"epoch": 1})
    file.write_bytes(file.read_bytes()[:part])
    with pytest.raises(DataError, match=r"is damaged.*delete it: resume=True"):
        load_checkpoint(file)
