"""The run folder: complete, never half-written, never a pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from tests.support.running import SUMMARY

from magna import MAGNA
from magna.config.schema import Config
from magna.training.checkpoint import save_checkpoint
from magna.training.run_folder import FORMAT, RunFolder

CPU = torch.device("cpu")


def test_a_new_folder_holds_what_is_needed_to_repeat(tmp_path: Path) -> None:
    config = Config.from_dict({"recipe": "mine", "model": {"K": 3}})
    run = RunFolder.create(tmp_path / "run", config, CPU)
    assert RunFolder.open(run.path).config == config
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["device"] == "cpu"
    assert run.summary is None


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, Config(), CPU)
    with pytest.raises(ValueError, match="--resume"):
        RunFolder.create(tmp_path, Config(), CPU)


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
    with pytest.raises(ValueError, match="run_dir is .*; allowed: a folder that can be made"):
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
    with pytest.raises(ValueError, match="unfinished"):
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
    assert {path.suffix for path in files} <= {".toml", ".json", ".jsonl", ".safetensors", ".md"}
    assert not any(path.read_bytes().startswith((b"\x80", b"PK")) for path in files)


def test_a_run_of_a_later_format_is_refused(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, Config(), CPU)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["format"] == FORMAT
    later = environment | {"format": FORMAT + 1, "packages": {"magna": "9.0"}}
    (tmp_path / "environment.json").write_text(json.dumps(later))
    with pytest.raises(ValueError, match=rf"run format {FORMAT + 1}, written by magna 9\.0; allowed: up to {FORMAT}"):
        RunFolder.open(tmp_path)
    # Folders from before there was a number, and those without an environment, are read as they are.
    del environment["format"]
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    assert RunFolder.open(tmp_path).config == run.config
    (tmp_path / "environment.json").unlink()
    assert RunFolder.open(tmp_path).schema is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("environment.json", b'{"format"', "environment.json is damaged"),
        ("config.toml", b'recipe = "di', "config.toml is not TOML"),
        ("config.toml", b"[model]\nK = true\n", "model.K is True"),
        ("config.toml", b"", "config.toml is damaged: it is empty; try a copy of it, or train again"),
        ("summary.json", b"", "summary.json is damaged"),
        ("summary.json", b"[1]", "holds no JSON object"),
        ("summary.json", b'{"seed": 0}', "summary.json is damaged: it has no 'seconds'"),
        ("summary.json", b"\xff\xfe", "summary.json is damaged"),
        ("summary.json", json.dumps(SUMMARY | {"test": 3}).encode(), "summary.json is damaged: 'test' holds no scores"),
        (
            "environment.json",
            b'{"format": 99, "packages": "all"}',
            "run format 99, written by magna of a later version",
        ),
        ("model/config.json", b"{", "model is damaged"),
        ("model/config.json", b'{"K": 3}', "model is damaged"),
        ("config.toml", b"[model]\nmembers = 2\n", "model is damaged"),
        ("model/model.safetensors", b"", "model is damaged"),
        ("model/model.safetensors", None, "model.safetensors is missing"),
        ("model/config.json", None, "config.json is missing"),
    ],
)
def test_damaged_files_are_one_line(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    RunFolder.create(tmp_path, Config(), CPU).finish(MAGNA(4, 8, 1, 3, heads=2, K=2), SUMMARY)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        RunFolder.open(tmp_path).load_model()


@pytest.mark.parametrize("name", ["environment.json", "schema.json", "summary.json"])
def test_a_folder_in_place_of_a_file_is_one_line(tmp_path: Path, name: str) -> None:
    run = RunFolder.create(tmp_path, Config(), CPU)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"{name} is damaged: it is a folder; try a copy of it, or train again"):
        _ = RunFolder.open(tmp_path).schema, run.summary


@pytest.mark.parametrize(
    "content", [{"entities": 5}, {"class_names": "abc"}, {"feature_shift": [None]}, {"feature_scale": ["a"]}]
)
def test_a_damaged_schema_is_one_line(tmp_path: Path, content: dict[str, object]) -> None:
    run = RunFolder.create(tmp_path, Config(), CPU, content)
    with pytest.raises(ValueError, match=rf"schema.json is damaged: '{next(iter(content))}' is no list; try a copy"):
        _ = run.schema


def test_a_full_disk_names_the_file_and_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path, Config(), CPU)
    run.finish(MAGNA(4, 8, 1, 3, heads=2, K=2), SUMMARY)
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()

    def full(self: MAGNA, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MAGNA, "save_pretrained", full)
    with pytest.raises(
        OSError, match=r"model could not be written \(No space left on device\); what was there before is"
    ):
        run.finish(MAGNA(4, 8, 1, 3, heads=2, K=2), {**SUMMARY, "seed": 1})
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights
    assert run.summary == SUMMARY


def test_others_may_read_a_run(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = RunFolder.create(tmp_path / "run", Config(), CPU)
        run.finish(MAGNA(4, 8, 1, 3, heads=2, K=2), SUMMARY)
    finally:
        os.umask(before)
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with RunFolder(tmp_path).alone(), pytest.raises(ValueError, match="is being trained by another process"):  # noqa: SIM117
        with RunFolder(tmp_path).alone():
            pass
    with RunFolder(tmp_path).alone():
        pass
