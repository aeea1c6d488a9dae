"""Training of link predictors, resuming, ranks from files, and answers by name."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.data import write_texts
from tests.support.running import Program, sign
from typer import Exit

from magna import LinkPredictor
from magna.cli import main
from magna.cli.command import fail, finish
from magna.cli.options import show_notes
from magna.cli.predict import show_links, show_nodes
from magna.config.schema import Config, load_recipe
from magna.errors import Diverged
from magna.training import loop
from magna.training import train as training
from magna.use.links import Query, predict_links, read_queries
from magna.use.predict import evaluate

SETTINGS = [
    *("model.hidden_channels=16", "model.num_layers=1", "model.heads=4", "model.entity_channels=16", "model.K=2"),
    *("task.batch_size=64", "train.epochs=6", "train.eval_every=2"),
]
QUERY, WORDS = Query("town 05", "in", None), ("--head", "town 05", "--relation", "in")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Towns in a ring, each next to two others; the road back is left out now and then."""
    rows = [(f"town {i:02}", "beside", f"town {(i + 1) % 60:02}") for i in range(60)]
    rows += [(tail, "behind", head) for head, _, tail in rows]
    rows += [(f"town {i:02}", "in", f"land {i // 10}") for i in range(60)]
    random.Random(0).shuffle(rows)
    lines = ["\t".join(row) + "\n" for row in rows]
    texts = {"train": lines[40:], "valid": lines[:20], "test": lines[20:40]}
    folder = tmp_path_factory.mktemp("data") / "towns"
    return write_texts(folder, ".tsv", **{split: "".join(part) for split, part in texts.items()})


@pytest.fixture(scope="module")
def config(folder: Path) -> Config:
    return load_recipe(str(folder)).with_values(SETTINGS)


@pytest.fixture(scope="module")
def run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "towns"
    training.train(config, run_dir=path, device="cpu")
    return path


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "run")


def _first(folder: Path, split: str = "train") -> tuple[str, str, str]:
    head, relation, tail = (folder / f"{split}.tsv").read_text().splitlines()[0].split("\t")
    return head, relation, tail


def _with_line(folder: Path, place: Path, line: str) -> Path:
    """A copy of the data with more lines in training."""
    shutil.copytree(folder, place)
    with (place / "train.tsv").open("a") as train:
        train.write(line)
    return place


def test_a_run_folder_holds_metrics_and_temperature(run: Path, config: Config, folder: Path) -> None:
    assert config.task.name == "link_prediction" and config.data.name == str(folder) and config.recipe == "towns"
    assert 1 / 16 <= json.loads((run / "summary.json").read_text())["temperature"] <= 16
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if "valid" in row] == [1, 3, 5]
    assert len(rows) == config.train.epochs and rows[-1]["loss"] < rows[0]["loss"]


def test_ranks_from_files_are_those_of_training(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    for split in ("valid", "test"):
        again = evaluate(run, split, device="cpu")
        head = ["task", "dataset", "split", "metrics", "head", "tail", "ties"]
        assert list(again) == [*head, "calibration", "relations", "trivial", "remarks", "notes"]
        assert set(again["trivial"]) == {"frequency", "reverse"}
        assert again["metrics"] == summary[split]
        assert {"mr", "mrr", "hits@1", "hits@3", "hits@10"} <= again["metrics"].keys()
        assert again["metrics"]["mrr"] == pytest.approx((again["head"]["mrr"] + again["tail"]["mrr"]) / 2)
        for tie, metrics in again["ties"].items():
            assert list(metrics) == ["mrr", "mr", "hits@1", "hits@3", "hits@10"]
            assert metrics["mrr"] == again["metrics"][f"mrr_{tie}"]
        assert "mrr_pessimistic" in again["relations"]["beside"]


# Models whose checkpoints hold more: shallow embeddings with their own rate, random states, batch norms.
_FURTHER = {
    "shallow": [
        *("model.skip_channels=8", "task.skip_n3=0.1", "task.skip_relation_prediction=0.5", "train.skip_lr=0.05"),
        *("task.relation_prediction=0.5", "task.n3=0.01", "model.input_dropout=0.2", "model.edge_dropout=0.1"),
    ],
    "ConvE": ["model.decoder=conve", "model.decoder_dropout=0.2"],
}


@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize("further", [None, *_FURTHER])
def test_a_stopped_run_ends_as_if_it_had_never_stopped(
    run: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int, further: str | None
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    if further is not None:
        config, run = config.with_values(_FURTHER[further]), tmp_path / "whole"
        training.train(config, run_dir=run, device="cpu")

    def kill(epoch: loop.Epoch) -> None:
        if epoch.number == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(config, run_dir=tmp_path / "run", device="cpu", on_epoch=kill)
    torch.manual_seed(123)  # a new process would have another state
    training.train(config, run_dir=tmp_path / "run", device="cpu", resume=True)
    for name in ("metrics.jsonl", "model/model.safetensors", "model/config.json", "config.toml", "schema.json"):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_the_best_tails_and_heads(run: Path, folder: Path, split: str) -> None:
    """Triples of all splits are known."""
    head, relation, tail = _first(folder, split)
    result = predict_links(run, [Query(head, relation, None), (None, relation, tail)], top=66, device="cpu")
    assert [len(answers) for answers in result.answers] == [66, 66]
    for answers, entity in zip(result.answers, (tail, head), strict=True):
        scores = [answer.score for answer in answers]
        assert scores == sorted(scores, reverse=True)
        assert next(answer for answer in answers if answer.entity == entity).known


def test_other_data_needs_no_split_that_is_not_ranked(run: Path, folder: Path, tmp_path: Path) -> None:
    other = _with_line(folder, tmp_path / "towns", (folder / "valid.tsv").read_text())
    (other / "valid.tsv").write_text("")
    assert predict_links(run, [QUERY], other, device="cpu").answers[0]
    assert evaluate(run, "test", other, device="cpu")["metrics"]["mrr"] > 0
    with pytest.raises(ValueError, match="it has no valid triple; allowed: at least one in each split"):
        evaluate(run, "valid", other, device="cpu")


@pytest.mark.parametrize("temperature", [0.5, 4.0])
def test_probabilities_are_those_of_the_fitted_temperature(copy: Path, temperature: float) -> None:
    summary = json.loads((copy / "summary.json").read_text()) | {"temperature": temperature}
    (copy / "summary.json").write_text(json.dumps(summary))
    sign(copy, "summary.json")
    (answers,) = predict_links(copy, [QUERY], top=66, device="cpu").answers
    scores = torch.tensor([answer.score for answer in answers if not answer.known], dtype=torch.float64)
    others = (scores / temperature).logsumexp(0)
    for answer in answers:
        score = torch.tensor(answer.score / temperature, dtype=torch.float64)
        total = torch.logaddexp(others, score) if answer.known else others
        assert answer.probability == pytest.approx((score - total).exp().item())


def test_scores_of_nan_come_last(program: Program, copy: Path) -> None:
    model = LinkPredictor.from_pretrained(copy / "model")
    with torch.no_grad():
        model.deep.entity_table[:3] = torch.nan
    model.save_pretrained(copy / "model")
    sign(copy, "model/config.json", "model/model.safetensors")
    shown, _ = program("predict", copy, "--head", "town 50", "--relation", "in", "--top", "66", "--json")
    scores = [answer["score"] for answer in json.loads(shown)["queries"][0]["answers"]]
    lost = scores.index(None)
    assert 0 < lost and set(scores[lost:]) == {None}


def test_a_terminal_of_ascii_shows_the_answers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    monkeypatch.setattr("sys.argv", ["magna", "predict", str(run), *WORDS])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0 and b"town 05 ? in" in shown.getvalue()


def test_a_model_of_another_graph_is_refused(copy: Path) -> None:
    LinkPredictor(67, 3, hidden_channels=16, num_layers=1, heads=4).save_pretrained(copy / "model")
    sign(copy, "model/config.json", "model/model.safetensors")
    with pytest.raises(ValueError, match="model: it is of 67 entities and 3 relations, the run of 66 and 3"):
        evaluate(copy, device="cpu")


def test_a_model_that_diverged_in_its_last_step_is_no_result(config: Config, tmp_path: Path) -> None:
    config = config.with_values(["train.epochs=1", "train.eval_every=1", "train.lr=1e12", "task.batch_size=4096"])
    with pytest.raises(Diverged, match=r"smaller train\.lr"):
        training.train(config, run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "summary.json").exists() and not (tmp_path / "run" / "model").exists()


def test_files_hold_the_printed_answers(run: Path, folder: Path, tmp_path: Path) -> None:
    head, relation, tail = _first(folder)
    (tmp_path / "queries.tsv").write_text(f"head\trelation\ttail\n{head}\t{relation}\t?\n\n\t{relation}\t{tail}\n")
    queries = read_queries(tmp_path / "queries.tsv")
    assert queries == [Query(head, relation, None), Query(None, relation, tail)]
    (tmp_path / "queries.csv").write_text(f'"{head}",{relation}\n')
    assert read_queries(tmp_path / "queries.csv") == queries[:1]
    result = predict_links(run, queries, top=3, device="cpu")
    result.write(tmp_path / "answers.csv")
    rows = list(csv.DictReader((tmp_path / "answers.csv").read_text().splitlines()))
    assert len(rows) == 6 and [row["rank"] for row in rows] == ["1", "2", "3"] * 2
    assert rows[0]["head"] == head and rows[3]["tail"] == tail
    result.write(tmp_path / "answers.json")
    assert json.loads((tmp_path / "answers.json").read_text()) == result.to_dict()


def test_a_random_graph_takes_no_new_triples(config: Config, folder: Path, tmp_path: Path) -> None:
    """One more triple would shuffle all of it again."""
    training.train(config.with_values(["data.control=random-graph"]), run_dir=tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match="allowed: none for a run on a random graph"):
        predict_links(tmp_path / "run", [QUERY], new_triples=folder / "test.tsv", device="cpu")
    assert predict_links(tmp_path / "run", [QUERY], device="cpu").answers


def test_data_from_elsewhere_comes_with_its_notes(run: Path, folder: Path, tmp_path: Path) -> None:
    again, text = shutil.copytree(folder, tmp_path / "again"), (folder / "train.tsv").read_text()
    (again / "train.tsv").write_text(f"head\trelation\ttail\n{text}{text}")
    header, twice = evaluate(run, "test", again, device="cpu")["notes"]
    assert header.startswith("train.tsv begins with a header") and twice.startswith("train repeats 140 triples")
    assert predict_links(run, [QUERY], again, device="cpu").notes == (header, twice)
    assert evaluate(run, "test", device="cpu")["notes"] == []


def test_new_triples_count_without_training(run: Path, folder: Path, tmp_path: Path) -> None:
    rows = [("head", "relation", "tail"), ("town 05", "beside", "town 40"), ("town 05", "in", "land 4"), _first(folder)]
    (tmp_path / "new.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    before, after = (
        predict_links(run, [QUERY], top=66, new_triples=new, device="cpu") for new in (None, tmp_path / "new.tsv")
    )
    known, knew = ({answer.entity: answer.known for answer in each.answers[0]} for each in (after, before))
    assert known["land 4"] and not knew["land 4"]
    assert [answer.score for answer in before.answers[0]] != [answer.score for answer in after.answers[0]]
    header, again = after.notes
    assert "begins with a header" in header and again.startswith("new.tsv repeats 1 triples") and before.notes == ()


def test_seeds_train_one_after_the_other(config: Config, tmp_path: Path) -> None:
    result = training.train(config, run_dir=tmp_path / "run", seeds=2, device="cpu")
    assert [run["seed"] for run in result["runs"]] == [0, 1]
    assert result["runs"][0]["test"] != result["runs"][1]["test"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--head", "town 5", "--relation", "in"], "did you mean|nearest|town 05"),
        (["--head", "town 05", "--relation", "inn"], "in"),
        (["--head", "town 05"], "--relation is missing"),
        (["--relation", "in"], "query is (None, 'in', None); allowed: head or tail"),
        ([*WORDS, "--tail", "land 0"], "allowed: head or tail and not both"),
        (["--node", "3"], "is a run of link prediction"),
        (["--node", "3", "--relation", "in"], "nodes and links are asked for at once"),
    ],
)
def test_a_wrong_query_is_one_line(program: Program, run: Path, arguments: list[str], text: str) -> None:
    _, line = program("predict", run, *arguments, status=2)
    assert len(line.splitlines()) == 1 and any(part in line for part in text.split("|"))


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        (["town 05"], r"^query is 'town 05'; allowed: Query\(head, relation, None\)"),
        ([QUERY, ("town 05", "in")], r"^query 2 of 2: query is .*; allowed: Query\(head, relation, None\)"),
        ([["town 05", "in", None]], r"^query is .*; allowed: Query\(head, relation, None\)"),
        ([QUERY, Query("town 5", "in", None)], r"^query 2 of 2: entity is 'town 5'.*nearest"),
    ],
)
def test_of_many_queries_the_wrong_one_is_named(run: Path, queries: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        predict_links(run, queries, device="cpu")


def test_the_commands(program: Program, run: Path, tmp_path: Path) -> None:
    assert "town" in program("predict", run, "--tail", "land 0", "--relation", "in", "--top", "4")[0]
    answer = json.loads(program("predict", run, *WORDS, "--top", "2", "--json")[0])
    assert [len(query["answers"]) for query in answer["queries"]] == [2]
    assert "5 answers in" in program("predict", run, *WORDS, "--top", "5", "--out", tmp_path / "answers.csv")[0]
    shown, _ = program("evaluate", run)
    assert all(side in shown for side in ("both sides", "heads", "tails"))
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert json.loads(program("evaluate", run, "--split", "valid", "--json")[0])["split"] == "valid"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\tc\td\n", "line 1: it has 4 columns"),
        ("a\tr\tb\n", "line 1: query is .*; allowed: head or tail and not both"),
        ("a\tr\t?\n?\t\tb\n", "line 2: it has no relation"),
        (" \n", "line 1: it has 1 columns"),
        ("head\trelation\ttail\n\n", r"queries\.tsv: it has no query; allowed: lines of head, relation and tail"),
    ],
)
def test_faults_of_query_files_are_located(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "queries.tsv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_queries(tmp_path / "queries.tsv")


def test_queries_are_read_as_triples(tmp_path: Path) -> None:
    text = "Subject\tPredicate\tObject\r\na \tr\u2028s\t?\r\n\r\n\t r\tb\x85\n"
    for name in ("queries.tsv", "queries.tsv.gz", "queries.TSV.GZ"):
        content = text.encode() if name.endswith("tsv") else gzip.compress(text.encode())
        (tmp_path / name).write_bytes(content)
        assert read_queries(tmp_path / name) == [Query("a ", "r\u2028s", None), Query(None, " r", "b\x85")]
    # A CSV may have blanks around commas, and a comma in a quoted name.
    (tmp_path / "queries.csv.gz").write_bytes(gzip.compress(b'head, relation, tail\n"a, b", r\n'))
    assert read_queries(tmp_path / "queries.csv.gz") == [Query("a, b", "r", None)]
    for name in ("queries.tsv.gz", "queries.csv.gz"):
        (tmp_path / name).write_bytes(text.encode())
        with pytest.raises(ValueError, match=f"{name}: it is not a whole gzip file"):
            read_queries(tmp_path / name)
    (tmp_path / "queries.csv").write_text('a,"' + 200_000 * "r")
    with pytest.raises(ValueError, match=r"queries\.csv, line 1: it is not CSV"):
        read_queries(tmp_path / "queries.csv")


@pytest.mark.parametrize(("name", "comma"), [("queries.tsv", "\t"), ("queries.csv", ",")])
def test_an_unknown_name_is_located_in_its_file(run: Path, tmp_path: Path, name: str, comma: str) -> None:
    (tmp_path / name).write_text("head,relation,tail\ntown 05,in,\n\ntown 5,in,?\n".replace(",", comma))
    with pytest.raises(ValueError, match=rf"{name}, line 4: entity is 'town 5'"):
        predict_links(run, [QUERY, *read_queries(tmp_path / name)], device="cpu")


def test_data_that_has_moved(
    program: Program, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, metrics = tmp_path / "families", evaluate(run, "test", device="cpu")["metrics"]
    folder.rename(moved)
    try:
        for command in (["evaluate", run], ["predict", run, *WORDS, "--json"]):
            _, error = program(*command, status=2)
            assert error.startswith(f"magna: {run}: it was trained on {folder}, which is missing; try --data")
            assert "note" not in program(*command, "--data", moved)[1]
        _, error = program("train", "--resume", "--run-dir", run, status=2)
        line = f"magna: {run}: it was trained on {folder}, which is missing; try to move it back"
        assert error.splitlines()[-1].startswith(line)
        # Called as a public knowledge graph is, it is still the folder.
        monkeypatch.chdir(tmp_path)
        assert evaluate(run, "test", "families", device="cpu")["metrics"] == metrics
    finally:
        moved.rename(folder)


def test_changed_triples_are_noted(program: Program, run: Path, folder: Path, tmp_path: Path) -> None:
    changed = _with_line(folder, tmp_path / "changed", "town 05\tbeside\ttown 40\n")
    note = "changed has other triples in train than the run was trained on"
    report = evaluate(run, "test", changed, device="cpu")
    assert report["notes"] == [note] and evaluate(run, device="cpu")["notes"] == []
    assert predict_links(run, [QUERY], changed, device="cpu").to_dict()["notes"] == [note]
    ask = ["predict", run, *WORDS]
    for command in (["evaluate", run], ask, [*ask, "--out", tmp_path / "answers.csv"]):
        assert program(*command, "--data", changed)[1] == f"note: {note}\n"


@pytest.mark.parametrize("split", ["valid", "test"])
def test_training_needs_every_split(tmp_path: Path, split: str) -> None:
    texts = {"train": "a\tr\tb\n", "valid": "b\tr\ta\n", "test": "b\tr\tb\n"} | {split: ""}
    config = load_recipe(str(write_texts(tmp_path / "towns", ".tsv", **texts))).with_values(SETTINGS)
    with pytest.raises(ValueError, match=f"towns: it has no {split} triple; allowed: at least one in each split; try"):
        training.train(config, run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_other_relations_than_those_of_training_are_refused(run: Path, folder: Path, tmp_path: Path) -> None:
    towns = _with_line(folder, tmp_path / "towns", "town 05\tabove\tland 0\n")
    with pytest.raises(ValueError, match="it has other relations than the run was trained on, 'above' is"):
        predict_links(run, [QUERY], towns, device="cpu")


def test_a_run_of_links_takes_no_module(run: Path) -> None:
    with pytest.raises(ValueError, match="model is 'Linear'; allowed: none for a run of link prediction"):
        evaluate(run, model=torch.nn.Linear(1, 1))


def test_a_terminal_gets_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"entity": "b\x1b[2J", "score": 1.0, "probability": 0.5, "known": False}
    query = {"head": "a\x1b[2J", "relation": "r\x07", "tail": None, "answers": [answer]}
    finish(lambda: {"dataset": "towns", "queries": [query]}, verbose=False, as_json=False, show=show_links)
    with pytest.raises(Exit):
        fail("entity is none; nearest: b\x1b[2J", 2, verbose=False)
    row = {"id": "n\x1b[2J", "label": "a", "probability": 0.5, "true_label": None}
    row["probabilities"] = {"a": 0.5, "b\x1b[2J": 0.5}
    finish(lambda: {"dataset": "towns", "nodes": [row]}, verbose=False, as_json=False, show=show_nodes)
    finish(lambda: {"notes": ["\x1b[2J is listed again"]}, verbose=False, as_json=False, show=show_notes)
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err and "\x07" not in shown.out
    assert shown.out.count("\\x1b[2J") == 4 and shown.err.count("\\x1b[2J") == 2
