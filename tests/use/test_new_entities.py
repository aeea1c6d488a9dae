"""Entities that a training has not seen: encoded by their triples, nothing else is trained."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from tests.support.data import write_texts
from tests.support.running import Program

import magna
from magna.config.schema import load_recipe
from magna.training import train as training
from magna.training.run_folder import MEMBERS, RunFolder
from magna.use.links import open_links, predict_links
from magna.use.predict import evaluate

SETTINGS = [
    *("model.hidden_channels=16", "model.num_layers=1", "model.heads=4", "model.entity_channels=16", "model.K=2"),
    *("task.batch_size=64", "train.epochs=40", "train.lr=0.02"),
]


def _towns(folder: Path, count: int) -> Path:
    """Towns in a ring, each in a land of ten; of the last ones only two facts are in training."""
    rows = [(f"town {i:02}", "beside", f"town {(i + 1) % count:02}") for i in range(count)]
    rows += [(tail, "behind", head) for head, _, tail in rows]
    lands = [(f"town {i:02}", "in", f"land {min(i, 39) // 10}") for i in range(count)]
    random.Random(0).shuffle(rows)
    asked = lands[:4] if count == 40 else lands[40:]
    texts = {"train": rows + [row for row in lands if row not in asked[:2]], "valid": asked, "test": asked}
    return write_texts(folder, ".tsv", **{s: "".join("\t".join(r) + "\n" for r in part) for s, part in texts.items()})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("towns")
    data = _towns(root / "old", 40)
    training.train(load_recipe(str(data)).with_values(SETTINGS), run_dir=root / "run", device="cpu")
    return root / "run"


def test_old_vectors_stay_and_new_ones_follow_from_triples(run: Path, tmp_path: Path) -> None:
    new = _towns(tmp_path / "new", 44)
    task, model, notes = open_links(RunFolder.open(run), new, None, "cpu", ("test",))
    assert notes[0].startswith("'town 40' and 3 others are new: vectors follow from the train triples")
    before, old = RunFolder.open(run).load_model().state_dict(), RunFolder.open(run).schema["entities"]
    after = model.state_dict()
    places = torch.tensor([task.graph.triples.entity_id(name) for name in old])
    assert torch.equal(after["deep.entity_table"][places], before["deep.entity_table"])
    assert all(torch.equal(after[name], value) for name, value in before.items() if len(value) != len(old))
    again = open_links(RunFolder.open(run), new, None, "cpu", ("test",))[1].state_dict()
    assert torch.equal(again["deep.entity_table"], after["deep.entity_table"])
    # They make their own triples more likely than the mean of all entities does.
    fresh = [e for e in range(task.num_nodes) if task.graph.triples.entities[e] not in set(old)]
    rows = task.graph.triples.train
    rows = rows[torch.isin(rows[:, 0], torch.tensor(fresh))]
    fitted = _log_likelihood(task, model, rows)
    with torch.no_grad():
        model.get_parameter("deep.entity_table")[fresh] = before["deep.entity_table"].mean(0)
    assert fitted > _log_likelihood(task, model, rows) + 0.5


def _log_likelihood(task: object, model: object, rows: torch.Tensor) -> float:
    with torch.no_grad():
        scores = model.scores(task.states(model), rows[:, 0], rows[:, 1])  # type: ignore[attr-defined]
    return float(scores.log_softmax(1).gather(1, rows[:, 2:]).mean())


def test_new_entities_are_asked_and_answered_by_name(run: Path, tmp_path: Path, program: Program) -> None:
    new = _towns(tmp_path / "new", 44)
    loaded = magna.load(run, device="cpu")
    answers = predict_links(run, [(None, "in", "land 3")], new, top=44, device="cpu")
    assert "town 43" in {answer.entity for answer in answers.answers[0]}
    assert loaded.embed(["town 41", "town 00"], new).vectors.shape == (2, 16)
    assert evaluate(run, data=new, device="cpu")["metrics"]["mrr"] > 0.15
    out, error = program("predict", run, "--data", new, "--head", "town 41", "--relation", "in", "--json")
    assert json.loads(out)["queries"][0]["answers"][0]["entity"] and error == ""


def test_members_of_a_portfolio_get_them_as_well(run: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(run, tmp_path / "whole")
    shutil.copytree(run, whole / "members" / "01")
    (whole / MEMBERS).write_text(json.dumps({"members": [{"run": "members/01", "weight": 1.0}]}))
    new, query = _towns(tmp_path / "new", 44), ("town 40", "in", None)
    one, other = (predict_links(folder, [query], new, device="cpu").answers[0] for folder in (run, whole))
    assert [answer.entity for answer in one] == [answer.entity for answer in other]


def test_a_new_relation_and_a_missing_entity_are_refused(run: Path, tmp_path: Path) -> None:
    new = _towns(tmp_path / "new", 44)
    with (new / "train.tsv").open("a") as file:
        file.write("town 00\tabove\ttown 01\n")
    with pytest.raises(ValueError, match="it has other relations than the run was trained on, 'above' is new"):
        predict_links(run, [("town 40", "in", None)], new, device="cpu")
    with (new / "test.tsv").open("a") as file:
        file.write("town 50\tin\tland 0\n")
    (new / "train.tsv").write_text((new / "train.tsv").read_text().replace("above", "in"))
    notes = predict_links(run, [("town 50", "in", None)], new, device="cpu").notes
    assert notes[0].endswith("nothing else is trained; 1 without one have the mean vector")
    with pytest.raises(ValueError, match=r"it has other entities .*'town 39' is missing"):
        predict_links(run, [("town 00", "in", None)], _towns(tmp_path / "few", 39), device="cpu")
