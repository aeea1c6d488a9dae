"""The command predict: what is asked, and the files that it writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.data import write_texts
from tests.support.running import Program, small

import magna
from magna.config.schema import load_recipe
from magna.training import train as training
from magna.use.load import LoadedLinks


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a ring of 30 nodes, the last six without a label."""
    folder = tmp_path_factory.mktemp("ring")
    words = ["a" if i % 2 else "b" for i in range(24)] + [""] * 6
    nodes = "id,x,label\n" + "".join(f"n{i},{i % 2},{word}\n" for i, word in enumerate(words))
    edges = "source,target\n" + "".join(f"n{i},n{(i + 2) % 30}\n" for i in range(30))
    data = write_texts(folder / "data", ".csv", nodes=nodes, edges=edges)
    training.train(small(f"data.name={data}", "train.epochs=3"), run_dir=folder / "run", device="cpu")
    return folder / "run"


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families") / "run"
    few = ["model.hidden_channels=16", "model.entity_channels=16", "model.heads=4", "model.K=2", "train.epochs=1"]
    training.train(load_recipe("families").with_values(few), run_dir=folder, device="cpu")
    return folder


def test_nodes_without_a_label(program: Program, ring: Path) -> None:
    answers = json.loads(program("predict", ring, "--unlabelled", "--json")[0])["nodes"]
    assert [row["id"] for row in answers] == [f"n{i}" for i in range(24, 30)]
    assert "--unlabelled, or --node" in program("predict", ring, "--unlabelled", "--node", "n3", status=2)[1]


def test_embeddings_of_nodes_and_entities(program: Program, ring: Path, families: Path, tmp_path: Path) -> None:
    out, _ = program("predict", ring, "--embeddings", tmp_path / "x.npy", "--node", "n3", "--node", "n1")
    assert out == f"data: 2 x 16 in {tmp_path / 'x.npy'} and {tmp_path / 'x.names.json'}\n"
    assert np.load(tmp_path / "x.npy").shape == (2, 16)
    assert json.loads((tmp_path / "x.names.json").read_text()) == ["n3", "n1"]
    program("predict", families, "--embeddings", tmp_path / "e.tsv")
    names = (tmp_path / "e.metadata.tsv").read_text().splitlines()
    assert len(names) == 1560 == len((tmp_path / "e.tsv").read_text().splitlines())


def test_files_are_replaced_by_force_alone(program: Program, ring: Path, tmp_path: Path) -> None:
    (tmp_path / "x.names.json").write_text("mine")
    words = ("predict", ring, "--embeddings", tmp_path / "x.npy")
    assert "x.names.json'; allowed: a new file, because this one exists; try --force" in program(*words, status=2)[1]
    assert (tmp_path / "x.names.json").read_text() == "mine" and not (tmp_path / "x.npy").exists()
    program(*words, "--force")
    assert len(json.loads((tmp_path / "x.names.json").read_text())) == 30
    assert "without --embeddings" in program(*words, "--out", tmp_path / "y.csv", status=2)[1]
    assert "ends in .npy or .tsv" in program("predict", ring, "--embeddings", tmp_path / "x.csv", status=2)[1]


def test_triples_are_scored_from_a_file(program: Program, families: Path, tmp_path: Path) -> None:
    run = magna.load(families)
    assert isinstance(run, LoadedLinks)
    data = run.opened(None)[0].graph.triples
    rows = [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in data.test[:3].tolist()]
    asked = write_texts(tmp_path, ".tsv", asked="head\trelation\ttail\n" + "".join("\t".join(r) + "\n" for r in rows))
    program("predict", families, "--score", asked / "asked.tsv", "--out", tmp_path / "s.csv")
    with (tmp_path / "s.csv").open() as file:
        scored = list(csv.DictReader(file))
    assert [(row["head"], row["relation"], row["tail"]) for row in scored] == rows
    assert float(scored[1]["score"]) == pytest.approx(run.score(rows).links[1].score, abs=1e-5)
    (tmp_path / "bad.csv").write_text("a,b\n")
    assert (
        "bad.csv, line 1: it is no triple" in program("predict", families, "--score", tmp_path / "bad.csv", status=2)[1]
    )


def test_relations_of_a_pair_and_missing_links(program: Program, families: Path, ring: Path) -> None:
    names = magna.load(families).opened(None)[0].graph.triples.entities
    pair = json.loads(program("predict", families, "--pair", names[0], names[1], "--json")[0])["links"]
    assert len(pair) == 16 and pair[0]["score"] == max(row["score"] for row in pair)
    missing = json.loads(program("predict", families, "--missing", "aunt_of", "--top", 7, "--json")[0])["links"]
    assert len(missing) == 7 and not any(row["known"] for row in missing)
    assert "p(tail)" in program("predict", families, "--missing", "aunt_of", "--top", 3)[0]
    assert "relation is 'ant_of'" in program("predict", families, "--missing", "ant_of", status=2)[1]
    assert "allowed: a run of link prediction" in program("predict", ring, "--missing", "aunt_of", status=2)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pair", "a", "b", "--missing", "r"), "--pair and --missing are asked for at once"),
        (("--node", "3", "--head", "a"), "are asked for at once"),
        (("--top", "3"), "allowed: with --head, --tail or --queries, or with --missing"),
        (("--embeddings", "x.npy", "--pair", "a", "b"), "allowed: alone, or with --node"),
        (("--head", "a"), "--relation is missing"),
        (("--new-triples", "x.tsv", "--pair", "a", "b"), "allowed: with --head, --tail or --queries"),
    ],
)
def test_questions_that_do_not_go_together(
    program: Program, families: Path, words: tuple[str, ...], message: str
) -> None:
    assert message in program("predict", families, *words, status=2)[1]
