"""A training that starts from the weights of another run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.support.data import write_texts
from tests.support.running import Program, small

from magna.config.schema import load_recipe
from magna.training.run_folder import RunFolder
from magna.training.train import train

FEW = ["model.hidden_channels=16", "model.entity_channels=16", "model.heads=4", "model.K=2", "train.epochs=1"]
ROWS = [("a", "r", "b"), ("b", "s", "c"), ("c", "r", "d"), ("d", "s", "a"), ("a", "s", "c"), ("b", "r", "d")]


def _triples(folder: Path, rows: list[tuple[str, str, str]]) -> Path:
    lines = ["\t".join(row) + "\n" for row in rows]
    return write_texts(folder, ".tsv", train="".join(lines), valid=lines[0], test=lines[1])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    train(small("train.epochs=6"), run_dir=folder, device="cpu")
    return folder


def test_weights_are_those_of_the_run(digits: Path, tmp_path: Path) -> None:
    still = small("train.epochs=1", "train.lr=0", "train.min_lr=0")
    result = train(still, start=digits, run_dir=tmp_path / "run", device="cpu")
    before, after = (RunFolder.open(folder).load_model() for folder in (digits, tmp_path / "run"))
    assert all(map(torch.equal, before.parameters(), after.parameters()))
    assert result["runs"][0]["valid"] == (RunFolder.open(digits).summary or {})["valid"]
    count = len(before.state_dict())
    assert result["start"] == f"{count} of {count} weights start as those of {digits}"


def test_what_does_not_fit_is_named(digits: Path, tmp_path: Path, program: Program) -> None:
    words = [f"--set={key}" for key in ("model.hidden_channels=16", "model.heads=4", "model.K=2", "train.epochs=1")]
    words += ["--set=model.num_layers=2", "--run-dir", str(tmp_path / "run"), "--device", "cpu"]
    out, _ = program("train", "digits", *words, "--from", digits)
    assert f"weights start as those of {digits}; new: 'blocks.1." in out
    with pytest.raises(ValueError, match=r"no weight of it has the name and shape of one of this model"):
        train(load_recipe("families").with_values(FEW), start=digits, run_dir=tmp_path / "links", device="cpu")
    assert not (tmp_path / "links").exists()
    with pytest.raises(ValueError, match="it holds no run"):
        train(small(), start=tmp_path / "nothing", run_dir=tmp_path / "other", device="cpu")


def test_entities_and_relations_keep_their_vectors_by_name(tmp_path: Path) -> None:
    old, new = _triples(tmp_path / "old", ROWS), _triples(tmp_path / "new", [("0", "q", "b"), *ROWS])
    settings = [*FEW, "model.num_layers=1"]
    train(load_recipe(str(old)).with_values(settings), run_dir=tmp_path / "first", device="cpu")
    still = load_recipe(str(new)).with_values([*settings, "train.lr=0", "train.min_lr=0"])
    train(still, start=tmp_path / "first", run_dir=tmp_path / "second", device="cpu")
    first, second = (RunFolder.open(tmp_path / name).load_model().state_dict() for name in ("first", "second"))
    assert torch.equal(second["deep.entity_table"][1:], first["deep.entity_table"])
    # r, s → q, r, s with their inverses and the loop
    assert torch.equal(second["deep.relation_table"][[1, 2, 4, 5, 6]], first["deep.relation_table"])


def test_a_resumed_run_goes_on_from_its_checkpoint(digits: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(digits, tmp_path / "copy")
    result = train(start=digits, run_dir=copy, resume=True, device="cpu")
    assert "start" not in result
