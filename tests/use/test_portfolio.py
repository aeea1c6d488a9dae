"""Portfolios: the weighted mean of the probabilities of their members."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.support.running import Program

from magna.config.schema import load_recipe
from magna.training import train as training
from magna.training.run_folder import MEMBERS, RunFolder
from magna.use.links import open_links, predict_links
from magna.use.nodes import predict_nodes, probabilities_of
from magna.use.portfolio import LinkPortfolio
from magna.use.predict import evaluate

SMALL = ("model.hidden_channels=16", "model.num_layers=1", "model.heads=4", "model.K=2", "train.epochs=4")
SETTINGS = {
    "digits": [SMALL, (*SMALL, "model.alpha=0.5", "data.self_loops=false", "data.standardise_features=true")],
    "families": [(*SMALL, "model.entity_channels=16"), (*SMALL[-1:], "model.num_layers=0")],
}
WEIGHTS = {"members/01-small": 3.0, "members/02-other": 1.0}


def _portfolio(recipe: str, folder: Path) -> Path:
    """Two small runs of a recipe with weights .75 and .25."""
    for name, settings in zip(WEIGHTS, SETTINGS[recipe], strict=True):
        training.train(load_recipe(recipe).with_values(settings), run_dir=folder / name, device="cpu")
    shutil.copytree(folder / next(iter(WEIGHTS)), folder, dirs_exist_ok=True)
    members = [{"run": name, "weight": weight} for name, weight in WEIGHTS.items()]
    (folder / MEMBERS).write_text(json.dumps({"format": 1, "members": members}))
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _portfolio("digits", tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _portfolio("families", tmp_path_factory.mktemp("families"))


def test_probabilities_are_the_weighted_mean_of_the_members(digits: Path) -> None:
    run = RunFolder.open(digits)
    parts = [predict_nodes(member, device="cpu").probabilities for member, _ in run.members]
    assert [weight for _, weight in run.members] == [0.75, 0.25] and not torch.allclose(parts[0], parts[1], atol=0.05)
    _, probabilities, _ = probabilities_of(run, device="cpu")
    torch.testing.assert_close(probabilities, 0.75 * parts[0] + 0.25 * parts[1])
    answers = predict_nodes(digits, [3, 17], device="cpu")
    assert torch.equal(answers.probabilities, probabilities[[3, 17]]) and answers.classes == list("0123456789")


def test_a_portfolio_of_nodes_is_evaluated_by_its_mean(program: Program, digits: Path) -> None:
    answers, report = predict_nodes(digits, device="cpu"), evaluate(digits, device="cpu")
    task_nodes = torch.tensor([answers.labels[i] == answers.truth[i] for i in range(len(answers.ids))])
    graph, probabilities, _ = probabilities_of(RunFolder.open(digits), device="cpu")
    assert report["metrics"]["accuracy"] == pytest.approx(float(task_nodes[graph.test].double().mean()))
    loss = -probabilities[graph.test, graph.y[graph.test]].log().mean()
    assert report["metrics"]["loss"] == pytest.approx(float(loss))
    assert json.loads(program("evaluate", digits, "--json")[0])["metrics"] == report["metrics"]


def test_a_portfolio_of_links_averages_the_softmax_of_each_query(families: Path) -> None:
    run = RunFolder.open(families)
    task, model, _ = open_links(run, None, None, "cpu", ("test",))
    assert isinstance(model, LinkPortfolio)
    queries = torch.tensor([[0, 1], [5, 20]])
    _, scores, _ = next(task.blocks(model, queries))
    expected = torch.zeros(2, task.num_nodes, dtype=torch.float64)
    for member, weight in run.members:
        alone, network, _ = open_links(member, None, None, "cpu")
        temperature = (member.summary or {})["temperature"]
        expected += weight * (next(alone.blocks(network, queries))[1].double() / temperature).softmax(1)
    torch.testing.assert_close(scores.exp(), expected)
    tails = torch.tensor([[3, 4], [0, 9]])
    assert torch.equal(model.scores(task.states(model), queries[:, 0], queries[:, 1], tails), scores.gather(1, tails))


def test_a_portfolio_of_links_answers_and_is_ranked(families: Path) -> None:
    triples = open_links(RunFolder.open(families), None, None, "cpu")[0].graph.triples
    answers = predict_links(families, [(triples.entities[0], triples.relations[1], None)], top=3, device="cpu")
    assert [answer.score for answer in answers.answers[0]] == sorted(
        (a.score for a in answers.answers[0]), reverse=True
    )
    report = evaluate(families, device="cpu")
    assert 0 < report["metrics"]["mrr"] < 1 and {"head", "tail", "relations"} <= report.keys()


def test_the_model_of_a_portfolio_is_its_best_member(digits: Path, tmp_path: Path) -> None:
    run = RunFolder.open(digits)
    first = RunFolder.open(digits / "members/01-small")
    assert all(map(torch.equal, run.load_model().parameters(), first.load_model().parameters()))
    assert run.is_done() and first.members == []
    with pytest.raises(ValueError, match="model is 'Identity'; allowed: none for a portfolio"):
        predict_nodes(digits, model=torch.nn.Identity(), device="cpu")


def test_a_portfolio_that_has_not_ended_is_its_best_member_so_far(digits: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(digits / "members/01-small", tmp_path / "copy")
    (copy / MEMBERS).write_text(json.dumps({"format": 1, "state": "running"}))
    before, after = (predict_nodes(folder, [3], device="cpu") for folder in (digits / "members/01-small", copy))
    assert RunFolder.open(copy).members == [] and torch.equal(before.probabilities, after.probabilities)
