"""A finished run put to use: probabilities, ids, files, and a new graph."""

from __future__ import annotations

import csv
import json
import os
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.data import write_texts
from tests.support.running import Program, node_task, sign

from magna.config.schema import Config, load_recipe
from magna.config.tables import NodeDataOptions
from magna.data import load_digits, load_user_graph, prepare
from magna.training import train as training
from magna.training.run_folder import RunFolder
from magna.use.files import read_ids
from magna.use.links import Query, predict_links
from magna.use.nodes import predict_nodes
from magna.use.predict import evaluate

SETTINGS = ["model.hidden_channels=16", "model.num_layers=1", "model.heads=4", "model.K=2", "train.epochs=20"]
FEATURES = ("height", "weight")
KINDS = ("cat", "dog")


def _write_graph(
    folder: Path, order: Sequence[int], columns: Sequence[str] = FEATURES, *, typed: bool = True, labels: bool = True
) -> Path:
    """40 animals in a ring, in any order of rows and columns, always with the same ids."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(7)) + 3 * (torch.arange(40) % 2)[:, None]
    rows = {"nodes": [["id", *columns, "label", "split"]], "edges": [["source", "target", "type"]]}
    for node in order:
        split = "train" if node < 20 else "valid" if node < 30 else "test"
        features = [f"{float(x[node, FEATURES.index(name)]):.6f}" for name in columns]
        rows["nodes"].append([f"animal-{node}", *features, KINDS[node % 2], split])
        rows["edges"].append([f"animal-{node}", f"animal-{(node + 2) % 40}", "likes" if node % 3 else "knows"])
    widths = {"nodes": None if labels else -2, "edges": None if typed else -1}
    texts = {name: "".join(",".join(row[: widths[name]]) + "\r\n" for row in rows[name]) for name in rows}
    return write_texts(folder, ".csv", **texts)


def _trained(folder: Path, data: Path) -> Path:
    training.train(load_recipe(str(data)).with_values(SETTINGS), run_dir=folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on typed data of one's animals, and that data."""
    root = tmp_path_factory.mktemp("animals")
    data = _write_graph(root / "animals", range(40))
    return _trained(root / "run", data), data


@pytest.fixture
def copied(animals: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies of both that a test may change; the run names the copy of its data."""
    run, data = shutil.copytree(animals[0], tmp_path / "run"), shutil.copytree(animals[1], tmp_path / "animals")
    settings = run / "config.toml"
    settings.write_text(settings.read_text().replace(str(animals[1]), str(data)))
    sign(run, "config.toml")
    return run, data


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    training.train(Config.from_dict({}).with_values(SETTINGS), run_dir=folder, device="cpu")
    return folder


def test_probabilities_are_a_distribution_over_the_users_classes(animals: tuple[Path, Path]) -> None:
    answers = predict_nodes(animals[0], device="cpu")
    assert answers.ids == [f"animal-{node}" for node in range(40)]
    assert answers.classes == list(KINDS) and set(answers.labels) <= set(KINDS) and set(answers.truth) == set(KINDS)
    assert answers.probabilities.shape == (40, 2)
    assert torch.allclose(answers.probabilities.sum(1), torch.ones(40, dtype=torch.float64))
    names = ["id", "label", "probability", "probability_cat", "probability_dog", "true_label", "split"]
    assert list(answers.columns()) == names
    assert answers.split == ["train"] * 20 + ["valid"] * 10 + ["test"] * 10


@pytest.mark.parametrize("recipe", ["digits", "cora"])
def test_predictions_are_those_of_the_task(recipe: str, tmp_path: Path) -> None:
    """Digits have dense features; those of Cora are read as sparse rows."""
    if recipe == "cora" and "MAGNA_DATA_DIR" not in os.environ:
        pytest.skip("MAGNA_DATA_DIR is not set")
    config = load_recipe(recipe).with_values(SETTINGS)
    summary = training.train(config, run_dir=tmp_path, device="cpu")["runs"][0]
    for split in ("valid", "test"):
        assert evaluate(tmp_path, split, device="cpu")["metrics"] == summary[split]
    answers, task = predict_nodes(tmp_path, device="cpu"), node_task(config)
    run = RunFolder.open(tmp_path)
    probabilities = (task.scores(run.load_model().eval()).double() / run.calibration["temperature"]).softmax(1)
    torch.testing.assert_close(answers.probabilities, probabilities, rtol=0, atol=1e-6)
    test = task.nodes("test").tolist()
    right = sum(answers.labels[node] == answers.truth[node] for node in test)
    assert right / len(test) == pytest.approx(summary["test"]["accuracy"], abs=1e-6)


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_command_reads_the_settings_once(
    program: Program, animals: tuple[Path, Path], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, texts = tomllib.loads, list[str]()

    def counted(text: str) -> dict[str, Any]:
        texts.append(text)
        return parse(text)

    monkeypatch.setattr(tomllib, "loads", counted)
    program(command, animals[0])
    assert texts.count((animals[0] / "config.toml").read_text()) == 1


def test_an_ensemble_is_a_run_like_any_other(tmp_path: Path) -> None:
    config = Config().with_values([*SETTINGS, "model.members=2", "train.epochs=3"])
    training.train(config, run_dir=tmp_path, seeds=2, together=True, device="cpu")
    for seed in (0, 1):
        run = tmp_path / f"seed-{seed}"
        summary, answers = RunFolder.open(run).summary, predict_nodes(run, device="cpu")
        assert summary is not None and evaluate(run, device="cpu")["metrics"] == pytest.approx(summary["test"])
        model, data = RunFolder.open(run).load_model(), prepare(load_digits(), NodeDataOptions(name="digits"))
        members = [member.eval()(data.x, data.edge_index).softmax(1) for member in model.members]  # type: ignore[union-attr]
        scores = torch.stack(members).mean(0).log() / summary["temperature"]
        torch.testing.assert_close(answers.probabilities.float(), scores.softmax(1))


def test_some_nodes_are_the_rows_of_all_nodes(animals: tuple[Path, Path]) -> None:
    every, some = (predict_nodes(animals[0], nodes, device="cpu") for nodes in (None, ["animal-7", "animal-2"]))
    assert some.ids == ["animal-7", "animal-2"]
    assert torch.equal(some.probabilities, every.probabilities[[7, 2]])
    with pytest.raises(ValueError, match="node is 'animal7'; allowed: an id of animals, such as 'animal-7'"):
        predict_nodes(animals[0], ["animal7"], device="cpu")
    empty = predict_nodes(animals[0], [], device="cpu")
    assert list(empty.columns()) == list(every.columns())[:-2] and empty.to_dict()["nodes"] == []


def test_ids_of_built_in_data_are_numbers(digits: Path) -> None:
    assert predict_nodes(digits, [3, "17"], device="cpu").ids == ["3", "17"]
    with pytest.raises(ValueError, match="node is '17x'; allowed: 0 to 1796"):
        predict_nodes(digits, ["17x"], device="cpu")


def test_a_permuted_copy_of_the_graph_gives_the_same_answers(animals: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = animals
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1)).tolist()
    copy = _write_graph(tmp_path / "copy", order, FEATURES[::-1])
    before, after = predict_nodes(run, device="cpu"), predict_nodes(run, data=copy, device="cpu")
    assert after.ids == [f"animal-{node}" for node in order] and after.classes == before.classes
    assert torch.allclose(after.probabilities, before.probabilities[order], atol=1e-5)
    loss, again = (evaluate(run, data=data, device="cpu")["metrics"]["loss"] for data in (None, copy))
    assert again == pytest.approx(loss, abs=1e-5)


def test_features_are_scaled_as_in_training(tmp_path: Path) -> None:
    data = _write_graph(tmp_path / "animals", range(40))
    run = _trained(tmp_path / "run", data)
    before = predict_nodes(run, device="cpu").probabilities
    header, first, *rest = (data / "nodes.csv").read_text().splitlines()
    outlier = [first.split(",")[0], "1000", *first.split(",")[2:]]
    (data / "nodes.csv").write_text("\n".join([header, ",".join(outlier), *rest]) + "\n")
    # Animals of odd numbers are in another ring than the outlier, and hear of it by the scale alone.
    for place in (None, data):
        after = predict_nodes(run, data=place, device="cpu").probabilities
        torch.testing.assert_close(after[1::2], before[1::2])
        assert not torch.allclose(after[0], before[0])


def test_a_new_graph_needs_no_labels(animals: tuple[Path, Path], tmp_path: Path) -> None:
    new = _write_graph(tmp_path / "new", range(40), labels=False)
    answers = predict_nodes(animals[0], ["animal-3"], data=new, device="cpu")
    assert answers.truth == [None] and "true_label" not in answers.columns()
    with pytest.raises(ValueError, match="it has no test node"):
        evaluate(animals[0], data=new, device="cpu")


@pytest.mark.parametrize(("old", "new"), [("height,weight", "weight,height"), (",dog,", ",ape,")])
def test_files_that_changed_their_meaning_are_refused(
    animals: tuple[Path, Path], copied: tuple[Path, Path], old: str, new: str
) -> None:
    run, data = copied
    assert evaluate(run, device="cpu") == evaluate(animals[0], device="cpu")
    (data / "nodes.csv").write_text((data / "nodes.csv").read_text().replace(old, new))
    with pytest.raises(ValueError, match="other features, classes or edge types than the run was trained on"):
        evaluate(run, device="cpu")


@pytest.mark.parametrize("column", [True, False], ids=["split", "drawn"])
def test_a_graph_that_has_moved(
    program: Program, tmp_path: Path, column: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, moved, run = tmp_path / "animals", tmp_path / "moved", tmp_path / "run"
    nodes = _write_graph(folder, range(40)) / "nodes.csv"
    if not column:  # the split is drawn, and is not that of a new graph
        nodes.write_text("".join(line.rsplit(",", 1)[0] + "\n" for line in nodes.read_text().splitlines()))
    _trained(run, folder)
    summary = json.loads((run / "summary.json").read_text())
    folder.rename(moved)
    for command in ("evaluate", "predict"):
        _, error = program(command, run, status=2)
        assert error.startswith(f"magna: {run}: it was trained on {folder}, which is missing; try --data")
    for split in ("valid", "test"):
        again = evaluate(run, split, moved, device="cpu")
        assert (again["dataset"], again["metrics"], again["notes"]) == ("moved", summary[split], [])
    # Called as a public data set is, it is still the folder.
    moved.rename(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert predict_nodes(run, ["animal-3"], "digits", device="cpu").labels


def test_a_changed_graph_is_noted(program: Program, copied: tuple[Path, Path]) -> None:
    run, data = copied
    assert evaluate(run, device="cpu")["notes"] == []
    table = (data / "nodes.csv").read_text()
    (data / "nodes.csv").write_text(table.replace("test", "?").replace("train", "test").replace("?", "train"))
    assert "has another split" in evaluate(run, device="cpu")["notes"][0]
    with (data / "edges.csv").open("a") as edges:
        edges.write("animal-0,animal-9,likes\n")
    note = "animals has other nodes, labels or edges than the run was trained on"
    assert evaluate(run, device="cpu")["notes"] == [note]
    assert predict_nodes(run, device="cpu").to_dict()["notes"] == [note]
    assert program("predict", run)[1] == f"note: {note}\n"


def test_a_graph_with_other_features_is_refused(animals: tuple[Path, Path], digits: Path, tmp_path: Path) -> None:
    other = _write_graph(tmp_path / "other", range(40), FEATURES[:1])
    with pytest.raises(ValueError, match="weight"):
        predict_nodes(animals[0], data=other, device="cpu")
    triples = write_texts(tmp_path / "triples", ".tsv", train="a\tr\tb\n")
    with pytest.raises(ValueError, match="triples: it holds triples; allowed: a graph as in training"):
        predict_nodes(animals[0], data=triples, device="cpu")
    few = _write_graph(tmp_path / "few", range(40), typed=False, labels=False)
    with pytest.raises(ValueError, match="it has 2 features; allowed: the 64 that the run was trained on"):
        predict_nodes(digits, data=few, device="cpu")


def test_a_value_far_from_those_of_training_is_cut_and_said(animals: tuple[Path, Path], tmp_path: Path) -> None:
    """A fill value of a table, finite by itself, whose square is not."""
    folder = _write_graph(tmp_path / "filled", range(40), labels=False)
    nodes = [line.split(",") for line in (folder / "nodes.csv").read_text().splitlines()]
    nodes[8][1] = "9.97e36"
    write_texts(folder, ".csv", nodes="\n".join(map(",".join, nodes)))
    predictions = predict_nodes(animals[0], data=folder, device="cpu")
    said = f"1 values are more than 20 deviations from their mean and were cut there: '{nodes[0][1]}'"
    assert predictions.probabilities.isfinite().all() and predictions.notes == (said,)


def test_links_are_not_asked_of_a_run_on_nodes(animals: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"allowed: a run of link prediction; try no head and relation"):
        predict_links(animals[0], [Query("animal-3", "likes", None)], device="cpu")


def test_files(animals: tuple[Path, Path], tmp_path: Path) -> None:
    answers = predict_nodes(animals[0], ["animal-7", "animal-2"], device="cpu")
    answers.write(tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["id"] for row in rows] == answers.ids
    assert float(rows[0]["probability_dog"]) == float(answers.probabilities[0, 1])
    answers.write(tmp_path / "answers", "json")
    assert json.loads((tmp_path / "answers").read_text()) == answers.to_dict()
    answers.write(tmp_path / "a.tsv")
    assert (tmp_path / "a.tsv").read_text().replace("\t", ",") == (tmp_path / "a.csv").read_text()
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    answers.write(tmp_path / "a.parquet")
    assert parquet.ParquetFile(tmp_path / "a.parquet").read().to_pydict() == answers.columns()
    with pytest.raises(ValueError, match="allowed: 'csv', 'tsv', 'json', 'parquet'"):
        answers.write(tmp_path / "a.xls")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("no.csv", "x,y\n1,a\n", "one of them is id"),
        ("none.txt", "\n \n", r"none\.txt: it has no id of a node"),
        ("none.csv", "id\n", r"none\.csv: it has no id of a node"),
        ("open.csv", 'id\n"a\n', r"open\.csv, line 2: it is not CSV"),
    ],
)
def test_a_file_without_ids_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        read_ids(tmp_path / name)


def test_ids_from_a_file_are_those_of_the_nodes(tmp_path: Path) -> None:
    """Blanks, quotes, and characters that end a line for some programs, as in nodes.csv."""
    rows = 'a , 1\n" b", 2\n"c, d",3\n e\x85f,4\n"g\nh",5\n'
    (tmp_path / "nodes.csv").write_text(" id ,x\n" + rows, encoding="utf-8")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    ids = load_user_graph(tmp_path).node_ids
    assert ids == ("a", "b", "c, d", "e\x85f", "g\nh") == tuple(read_ids(tmp_path / "nodes.csv"))
    (tmp_path / "ids.txt").write_bytes("\ufeff a\r\nb \n\nc, d\re\x85f".encode())
    assert read_ids(tmp_path / "ids.txt") == list(ids[:4])
    (tmp_path / "gaps.csv").write_text("x, id\n1, a \n2\n3,b\n", encoding="utf-8-sig")
    assert read_ids(tmp_path / "gaps.csv") == ["a", "b"]
    with pytest.raises(ValueError, match="cannot be read"):
        read_ids(tmp_path / "nowhere")


def test_a_threshold_for_a_precision_is_chosen_on_validation(program: Program, tmp_path: Path) -> None:
    config = Config().with_values([*SETTINGS, "train.epochs=8"])
    training.train(config, run_dir=tmp_path, device="cpu")
    answers = predict_nodes(tmp_path, device="cpu", precision=0.95)
    threshold, valid = answers.threshold, load_digits().valid.tolist()
    assert threshold is not None and threshold.of == len(valid)
    sure = answers.columns()["sure"]
    right = [answers.labels[node] == answers.truth[node] for node in valid if sure[node]]
    assert len(right) == threshold.answers < len(valid)
    assert sum(right) / len(right) == pytest.approx(threshold.precision) and threshold.precision >= 0.95
    assert "validation answers were right" in program("predict", tmp_path, "--precision", "0.95")[1]
    with pytest.raises(ValueError, match=r"precision is 1\.5; allowed: above 0 and below 1"):
        predict_nodes(tmp_path, device="cpu", precision=1.5)
