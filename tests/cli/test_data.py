"""Data on the command line: the audit, your own graph from training to its run folder, and wrong data in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.running import Program

from magna.config.path_kind import kind_of
from magna.config.schema import load_recipe
from magna.config.tables import NodeDataOptions
from magna.data import from_anywhere
from magna.training.run_folder import RunFolder

OWN = Path(__file__).parents[2] / "examples" / "own_graph"
SMALL = ["model.hidden_channels=8", "model.heads=2", "train.epochs=40"]
FAST = ["--recipe", "digits", *(word for setting in SMALL for word in ("--set", setting)), "--device", "cpu"]


@pytest.fixture
def clubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example's graph, as `clubs` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(OWN, tmp_path / "clubs")
    return tmp_path / "clubs"


def test_a_folder_is_a_recipe(clubs: Path) -> None:
    config = load_recipe("clubs")
    assert (config.recipe, config.data.name) == ("clubs", str(clubs.resolve()))
    assert isinstance(config.data, NodeDataOptions) and config.expected.seeds == 0
    assert config.data.standardise_features and config.data.undirected
    with pytest.raises(ValueError, match="or a folder with your data"):
        load_recipe("club")


def test_a_dot_in_the_name_of_a_folder_is_part_of_it(clubs: Path) -> None:
    clubs.rename(clubs.with_name("clubs.v2"))
    assert load_recipe("clubs.v2").recipe == "clubs.v2"


def test_a_table_of_nodes_says_what_a_folder_is(clubs: Path) -> None:
    for name in ("train.tsv", "train.txt.bak"):
        (clubs / name).write_text("a\tr\tb\n")
        assert load_recipe("clubs").task.name == "node_classification" and kind_of(clubs) == "graph"


def test_your_own_graph_is_trained_and_scored_again(
    clubs: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json.loads(program("train", "clubs", *FAST, "--json")[0])
    assert (result["dataset"], result["recipe"]) == ("clubs", "clubs")
    assert result["runs"][0]["test"]["accuracy"] >= 0.5
    # From another folder too: the run knows where its data is.
    monkeypatch.chdir(clubs.parent / "runs")
    again = json.loads(program("evaluate", "clubs", "--json", "--device", "cpu")[0])
    assert again["metrics"] == result["runs"][0]["test"]


def test_a_public_name_comes_before_a_folder_of_your_own(clubs: Path, program: Program) -> None:
    triples = clubs.with_name("digits")
    triples.mkdir()
    for split in ("train", "valid", "test"):
        (triples / f"{split}.tsv").write_text("a\tr\tb\n")
    assert json.loads(program("data", "audit", "digits", "--json")[0])["size"]["nodes"] == 1797
    assert json.loads(program("data", "audit", "./digits", "--json")[0])["size"]["entities"] == 2
    # Where other data is given, it is given by its path.
    config = NodeDataOptions(name="digits")
    assert from_anywhere(config) == config and from_anywhere(config, "digits").name == str(triples)
    assert (
        from_anywhere(NodeDataOptions(name="clubs")).name == str(clubs) and from_anywhere(config, "cora").name == "cora"
    )


@pytest.mark.parametrize(
    "setting",
    ["model.K=3", "data.name=cora", "data.split, train.epochs=3", "data.control=none", "data.self_loops=false"],
)
def test_an_audit_takes_settings_of_the_data_alone(program: Program, setting: str) -> None:
    said = program("data", "audit", "digits", "--set", setting, status=2)[1]
    assert "allowed: the settings for reading a graph, data.split, " in said


def test_a_split_that_is_drawn_is_said(clubs: Path, program: Program) -> None:
    lines = (clubs / "nodes.csv").read_text().splitlines()
    (clubs / "nodes.csv").write_text("".join(f"{line.rsplit(',', 1)[0]}\n" for line in lines))
    said = program("train", "clubs", *FAST, "--set", "train.epochs=1", "--set", "data.split_seed=4")[1]
    assert "note: no split given: 60/20/20 drawn at random, seed 4" in said


def test_baselines_do_not_take_typed_edges(clubs: Path, program: Program) -> None:
    settings = [*FAST, *("--set", "model.name=gat", "--set", "model.input_dropout=0", "--set", "model.dropout=0")]
    assert "clubs has typed edges" in program("train", "clubs", *settings, status=2)[1]
    assert not (clubs.parent / "runs").exists()


def test_audit_prints_a_page_or_one_json_object(clubs: Path, program: Program) -> None:
    report = json.loads(program("data", "audit", "clubs", "--json")[0])
    assert report["size"]["nodes"] == 24 and report["size"]["relations"] == 4
    assert [row["class"] for row in report["classes"]] == ["chess", "rowing"]
    assert report["splits"] == {"train": 6, "valid": 6, "test": 6}
    out = program("data", "audit", "clubs", "--set", "data.undirected=false")[0]
    assert out.startswith("clubs\n") and "directed, 2 edge types" in out and "suggested K" in out


def test_a_knowledge_graph_is_audited_too(tmp_path: Path, program: Program) -> None:
    for split, text in {"train": "007\tr\t7\n007\tr\t7\n", "valid": "7\tr\t007\n", "test": "8\tr\t7\n"}.items():
        (tmp_path / f"{split}.tsv").write_text(text)
    report = json.loads(program("data", "audit", str(tmp_path), "--json")[0])
    assert report["size"]["entities"] == 3 and report["duplicates"]["train"] == 1
    assert report["leakage"]["reverse_rule"]["valid"] == {"mrr": 1.0, "answered": 1.0}
    out = program("data", "audit", str(tmp_path))[0]
    assert out.startswith(tmp_path.name) and "test triples with an entity that training never sees: 1" in out
    (tmp_path / "test.tsv").write_text("8\tr\t7\n8\tr\n")
    out, err = program("data", "audit", str(tmp_path), status=2)
    assert out == "" and "test.tsv, line 2: it has 2 columns" in err and len(err.splitlines()) == 1


def test_an_audit_shows_no_control_characters(tmp_path: Path, program: Program) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text("a\x1b[2J\tr\x1b[31m\tb\n")
    out = program("data", "audit", str(tmp_path))[0]
    assert "\x1b" not in out and "a\\x1b[2J (1)" in out and "r\\x1b[31m" in out


def test_a_missing_train_file_is_named(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kin").mkdir()
    for split in ("valid", "test"):
        (tmp_path / "kin" / f"{split}.tsv").write_text("a\tr\tb\n")
    for command in (["train"], ["data", "audit"]):
        said = program(*command, "kin", status=2)[1].splitlines()[-1]
        assert "kin: it has no train file; allowed: one of train.txt, " in said
    # Beside a saved graph a file of another split says nothing.
    (tmp_path / "kin" / "data.pt").touch()
    assert load_recipe("kin").task.name == "node_classification"


def test_families_need_no_download(tmp_path: Path, program: Program) -> None:
    empty = ["--data-dir", str(tmp_path)]
    assert "comes with the installation" in program("data", "get", "families", *empty)[0]
    assert "nothing suspicious was found" in program("data", "audit", "families", *empty)[0]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("nodes.csv", None, "none of nodes.csv, nodes.tsv or nodes.parquet"),
        ("nodes.csv", "id,x\n001,inf\n", "line 2: column 'x' is inf; allowed: finite"),
        ("edges.csv", "source,target\n001,999\n", "line 2: its target is '999'"),
    ],
)
@pytest.mark.parametrize("command", [["train"], ["data", "audit"]], ids=" ".join)
def test_wrong_data_is_one_line_and_status_2(
    clubs: Path, program: Program, command: list[str], file: str, text: str | None, words: str
) -> None:
    if text is None:
        (clubs / file).unlink()
    else:
        (clubs / file).write_text(text)
    out, err = program(*command, "clubs", status=2)
    *progress, line = err.splitlines()
    assert line.startswith("magna: ") and words in line and out == ""
    assert all(text.startswith("recipe ") for text in progress)
    assert not (clubs.parent / "runs").exists()


def test_data_whose_name_no_run_folder_can_hold_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "n\udcff"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no such names on this file system: {error}")
    with pytest.raises(ValueError, match="its name is not UTF-8 text, which a run folder needs; try to"):
        from_anywhere(NodeDataOptions(name=str(folder)))


def test_flags_name_the_columns_and_the_run_repeats_them(clubs: Path, program: Program) -> None:
    """From a CSV as a program exports it to predictions for new people."""
    people = "worker;note;age;team\n" + "".join(
        f"p{row};text {row};{row % 7 if row % 5 else ''};{'red' if row % 2 else 'blue'}\n" for row in range(60)
    )
    edges = "from;to;amount\n" + "".join(f"p{row};p{(row + 2) % 60};{row % 3}\n" for row in range(60))
    folder = clubs / "export"
    folder.mkdir()
    (folder / "nodes.csv").write_text(people)
    (folder / "edges.csv").write_text(edges)
    flags = ["--columns", "id=worker,label=team,source=from,target=to,weight=amount"]
    refused = program("train", "clubs/export", *FAST, *flags, status=2)[1]
    assert "column 'note' is text with 60 different values" in refused and "try --ignore note" in refused
    flags += ["--ignore", "note", "--directed", "--valid", "0.1", "--split-seed", "3"]
    result, said = program("train", "clubs/export", *FAST, *flags, "--json")
    assert "column 'age' has empty cells" in said and "80/10/10 drawn at random, seed 3" in said
    run = RunFolder.open(json.loads(result)["runs"][0]["run_dir"])
    assert isinstance(run.config.data, NodeDataOptions)
    assert (run.config.data.ignore, run.config.data.undirected, run.config.data.valid_share) == ("note", False, 0.1)
    again = json.loads(program("evaluate", str(run.path), "--json", "--device", "cpu")[0])
    assert again["metrics"] == json.loads(result)["runs"][0]["test"]
    new = clubs / "new"
    new.mkdir()
    (new / "nodes.csv").write_text("worker,age\nq1,\nq2,3\n")
    (new / "edges.csv").write_text("from,to,amount\nq1,q2,1\n")
    answers = json.loads(program("predict", str(run.path), "--data", "clubs/new", "--json", "--device", "cpu")[0])
    assert [node["id"] for node in answers["nodes"]] == ["q1", "q2"] and answers["classes"] == ["blue", "red"]


def test_a_split_without_test_nodes_trains_without_a_test_score(clubs: Path, program: Program) -> None:
    nodes = clubs / "nodes.csv"
    nodes.write_text(nodes.read_text().replace(",test", ","))
    result, said = program("train", "clubs", *FAST, "--json")
    assert json.loads(result)["runs"][0]["test"] is None
    assert "note: no test node given: no test score at the end" in said
    assert "clubs: it has no test node" in program("evaluate", "runs/clubs", "--device", "cpu", status=2)[1]
