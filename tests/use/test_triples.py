"""Scores of full triples, relations of a pair and missing links, against all pairs at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import magna
from magna.config.schema import load_recipe
from magna.training import train as training
from magna.use import triples as module
from magna.use.links import predict_links
from magna.use.load import LoadedLinks
from magna.use.portfolio import LinkPortfolio
from magna.use.triples import TripleScores

FEW = ["model.hidden_channels=16", "model.entity_channels=16", "model.heads=4", "model.K=2", "train.epochs=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families") / "run"
    training.train(load_recipe("families").with_values(FEW), run_dir=folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> LoadedLinks:
    loaded = magna.load(folder, device="cpu")
    assert isinstance(loaded, LoadedLinks)
    return loaded


def _log_probabilities(run: LoadedLinks, relation: int) -> torch.Tensor:
    """Mean log probability [N, N] of every pair, from all scores at once."""
    task, model, _ = run.opened(None)
    temperature = (run.run.summary or {})["temperature"]
    every, states = torch.arange(task.num_nodes), task.states(model)
    with torch.no_grad():
        forward, back = (
            model.scores(states, every, torch.full_like(every, r)).double() / temperature
            for r in (relation, relation + task.graph.num_relations)
        )
    mean: torch.Tensor = (forward.log_softmax(1) + back.log_softmax(1).T) / 2
    return mean


def test_full_triples_have_scores_probabilities_and_ranks(run: LoadedLinks) -> None:
    task = run.opened(None)[0]
    data = task.graph.triples
    h, r, t = data.test[0].tolist()
    known, new = (
        (data.entities[h], data.relations[r], data.entities[t]),
        (data.entities[1], "aunt_of", data.entities[2]),
    )
    first, second = run.score([known, new]).links
    assert (first.head, first.relation, first.tail) == known and first.known and not second.known
    assert first.score == pytest.approx(float(_log_probabilities(run, r)[h, t]), abs=1e-5)
    answers = predict_links(run.run, [(new[0], new[1], None)], top=task.num_nodes, device="cpu").answers[0]
    place = next(answer for answer in answers if answer.entity == new[2])
    assert second.tail_probability == pytest.approx(place.probability)
    better = sum(answer.score > place.score and not answer.known for answer in answers)
    assert second.tail_rank == better + 1
    with pytest.raises(ValueError, match="triple 2 of 2: entity is 'nobody'"):
        run.score([known, ("nobody", "aunt_of", new[2])])
    with pytest.raises(ValueError, match=r"triple 1 is \('a', 'b'\); allowed: \(head, relation, tail\), three names"):
        run.score([("a", "b")])  # type: ignore[list-item]


def test_ranks_are_those_of_the_evaluation(run: LoadedLinks) -> None:
    task, model, _ = run.opened(None)
    rows = task.graph.triples.test[:20]
    links = TripleScores(task, model, 1.0).of(rows)
    ranking = task.graph.ranking("test")
    with torch.no_grad():
        scores = model.scores(task.states(model), *ranking.queries[ranking.query[:20]].unbind(1))
    for at, link in enumerate(links):
        first = int(ranking.known.ptr[ranking.query[at]])
        others = ranking.known.index[first : int(ranking.known.ptr[ranking.query[at] + 1])]
        row, goal = scores[at].double(), scores[at, ranking.target[at]].double()
        row[others] = -torch.inf
        assert link.tail_rank == 1 + int((row > goal).sum()) + int((row == goal).sum()) / 2


def test_the_relations_of_a_pair_are_all_of_them_best_first(run: LoadedLinks) -> None:
    data = run.opened(None)[0].graph.triples
    h, r, t = data.train[0].tolist()
    links = run.relations(data.entities[h], data.entities[t]).links
    assert sorted(link.relation for link in links) == sorted(data.relations)
    assert [link.score for link in links] == sorted((link.score for link in links), reverse=True)
    assert next(link for link in links if link.relation == data.relations[r]).known


@pytest.mark.parametrize("form", ["product", "portfolio"])
def test_missing_links_are_the_best_of_all_pairs(run: LoadedLinks, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 100 heads, by the product of a model, or by its scores alone."""
    task, model, _ = run.opened(None)
    monkeypatch.setattr(module, "_PAIRS", 100 * task.num_nodes)
    scorer = TripleScores(task, model, (run.run.summary or {})["temperature"])
    if form == "portfolio":
        scorer = TripleScores(task, LinkPortfolio([(model, 1.0, scorer.temperature)]), 1.0)
    number = task.graph.triples.relation_id("aunt_of")
    scores = _log_probabilities(run, number).fill_diagonal_(-torch.inf)
    for split in ("train", "valid", "test"):
        rows = task.graph.triples.split(split)
        rows = rows[rows[:, 1] == number]
        scores[rows[:, 0], rows[:, 2]] = -torch.inf
    links, expected = scorer.missing("aunt_of", 30), scores.flatten().topk(30)
    assert [link.score for link in links] == pytest.approx(expected.values.tolist(), abs=1e-4)
    names = task.graph.triples.entities
    pairs = {(names[place // len(names)], names[place % len(names)]) for place in expected.indices.tolist()}
    assert len(pairs & {(link.head, link.tail) for link in links}) >= 29
    assert not any(link.known or link.head == link.tail for link in links)
