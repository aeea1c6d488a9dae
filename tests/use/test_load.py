"""`magna.load`: one object with names that predicts, embeds and scores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.running import small

import magna
from magna import MAGNA
from magna.config.schema import load_recipe
from magna.data import load_digits
from magna.training import train as training
from magna.training.run_folder import MEMBERS
from magna.use.embeddings import Embeddings
from magna.use.links import predict_links
from magna.use.load import LoadedLinks, LoadedNodes
from magna.use.nodes import predict_nodes


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    training.train(small("data.standardise_features=true"), run_dir=folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families") / "run"
    few = ["model.hidden_channels=16", "model.entity_channels=16", "model.heads=4", "model.K=2", "train.epochs=4"]
    training.train(load_recipe("families").with_values(few), run_dir=folder, device="cpu")
    return folder


def test_a_loaded_run_agrees_with_predict_and_the_saved_model(digits: Path) -> None:
    run = magna.load(digits, device="cpu")
    assert isinstance(run, LoadedNodes)
    answers, raw = run.predict(), load_digits().with_self_loops()
    assert torch.equal(answers.probabilities, predict_nodes(digits, device="cpu").probabilities)
    model = MAGNA.from_pretrained(digits / "model")
    with torch.no_grad():
        temperature = run.run.calibration["temperature"]
        probabilities = (model(raw.x, raw.edge_index).double() / temperature).softmax(1)
        states = run.embed(["17", 3])
        classified = (model.classifier(states.vectors).double() / temperature).softmax(1)
    torch.testing.assert_close(probabilities, answers.probabilities, rtol=0, atol=1e-6)
    assert states.ids == ["17", "3"] and states.vectors.shape == (2, 16)
    torch.testing.assert_close(classified, answers.probabilities[[17, 3]], rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="try predict, for this run on nodes"):
        run.score([("a", "b", "c")])


def test_the_name_of_a_loaded_run_says_what_it_is(digits: Path, families: Path, tmp_path: Path) -> None:
    assert repr(magna.load(digits)) == f"LoadedNodes('{digits}'): labels of nodes on digits, one model, magna"
    assert repr(magna.load(families)) == f"LoadedLinks('{families}'): links on families, one model, magna"
    whole = shutil.copytree(digits, tmp_path / "whole")
    shutil.copytree(digits, whole / "members" / "01")
    (whole / MEMBERS).write_text(json.dumps({"members": [{"run": "members/01", "weight": 1}]}))
    assert repr(magna.load(whole)).endswith("a portfolio of 1 members, the best one magna")
    assert torch.equal(magna.load(whole).embed(["3"]).vectors, magna.load(digits).embed(["3"]).vectors)


def test_data_is_read_once(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = magna.load(digits, device="cpu")
    assert isinstance(run, LoadedNodes)
    before = run.predict(["3"])
    monkeypatch.setattr("magna.use.nodes.open_nodes", None)
    assert torch.equal(before.probabilities, run.predict(["3"]).probabilities)


def test_entities_have_states_by_name(families: Path) -> None:
    run = magna.load(families, device="cpu")
    assert isinstance(run, LoadedLinks)
    task, model, _ = run.opened(None)
    names = task.graph.triples.entities
    assert torch.equal(run.embed().vectors, task.states(model)) and run.embed().ids == list(names)
    assert torch.equal(run.embed([names[5], names[2]]).vectors, task.states(model)[[5, 2]])
    with pytest.raises(ValueError, match="entity is 'nobody'"):
        run.embed(["nobody"])
    query = (names[0], "aunt_of", None)
    assert run.predict([query], top=3).answers == predict_links(families, [query], top=3, device="cpu").answers
    with pytest.raises(ValueError, match="model is 'Identity'; allowed: none for a run of link prediction"):
        magna.load(families, model=torch.nn.Identity())


def test_embeddings_have_files(tmp_path: Path) -> None:
    some = Embeddings("some", ["a\tb", "ü"], torch.tensor([[0.5, 1.0], [2.0, 1 / 3]]))
    assert some.write(tmp_path / "x.npy") == [tmp_path / "x.npy", tmp_path / "x.names.json"]
    assert np.array_equal(np.load(tmp_path / "x.npy"), some.vectors.numpy())
    assert json.loads((tmp_path / "x.names.json").read_text()) == some.ids
    some.write(tmp_path / "x.tsv")
    assert (tmp_path / "x.tsv").read_text() == "0.5\t1\n2\t0.33333334\n"
    assert (tmp_path / "x.metadata.tsv").read_text() == "a b\nü\n"
    with pytest.raises(ValueError, match=r"allowed: a file that ends in .npy or .tsv"):
        some.write(tmp_path / "x.csv")
