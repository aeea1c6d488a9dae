"""The documentation: its code runs, its commands exist, and its reference is complete."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from tools.site import requests_of

import magna.cli  # noqa: F401 (registers the commands)
from magna.cli.command import InputError, app
from magna.tasks.metrics import METRIC_FORMS, RANK_METRICS
from magna.tasks.node_metrics import NODE_METRICS
from tests.support.pages import DOCS, INSTALLS, ROOT, Page, blocks, run_command

PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS, HOW_TOS = (sorted((DOCS / kind).glob("*.md")) for kind in ("tutorial", "howto"))
REFERENCE = DOCS / "reference"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=name_of)
def test_a_tutorial_runs_as_typed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Page(path).run(tmp_path, commands=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", HOW_TOS, ids=name_of)
def test_the_python_of_a_how_to_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Page(path).run(tmp_path, commands=False)


def check_command(words: list[str]) -> None:
    """Parse the words of a `magna` command without running it."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    if not hasattr(command, "commands") and not {"-h", "--help"} & set(words):
        command.make_context(command.name, words)


def magna_lines(text: str) -> list[list[str]]:
    """The words of every `magna` command in the blocks of a page, shell operators and comments left out."""
    lines = []
    for block in blocks(text):
        if block.language in ("", "console", "bash", "sh"):
            for line in re.sub(r"\\\n(> )?", "", block.content).splitlines():
                lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                part: list[str] = []
                for word in [*lexer, "&&"] if line.removeprefix("$ ").startswith(("magna", "python -m")) else []:
                    if set(word) <= set("&|;<>()"):
                        lines += [part[1:]] if part[:1] == ["magna"] else []
                        part = []
                    else:
                        part.append(word)
    return lines


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=name_of)
def test_every_command_has_these_options(path: Path) -> None:
    for words in magna_lines(path.read_text(encoding="utf-8")):
        try:
            check_command(list(words))
        except InputError as error:
            raise AssertionError(f"magna {shlex.join(words)}: {error.format_message()}") from None


def test_commands_of_a_page_are_read() -> None:
    text = "```console\n$ python -m pip install . && magna train \\\n  cora --seeds 3  # a comment\noutput\n```\n"
    assert magna_lines(text + "\n```text\nmagna no\n```\n") == [["train", "cora", "--seeds", "3"]]
    with pytest.raises(AssertionError, match="no command fly"):
        check_command(["fly"])
    with pytest.raises(InputError, match="--sees"):
        check_command(["train", "--sees", "3"])


def test_blocks_of_a_page_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- setup: echo before > log -->\n\n"
        "```{code-block} csv\n:caption: graph/nodes.csv\n\nid\n```\n\n"
        "```console\n$ pip install nothing\n$ echo typed >> log\ntyped\n```\n\n"
        "```python\nx = open('log').read().split()\n```\n\n"
        "```pycon\n>>> x\n['before', 'typed']\n>>> open('graph/nodes.csv').read()\n'id\\n'\n```\n\n"
        "<!-- not run: it fails -->\n\n```python\n1 / 0\n```\n"
    )
    Page(page).run(tmp_path, commands=True)
    page.write_text("```pycon\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        Page(page).run(tmp_path, commands=True)
    with pytest.raises(AssertionError, match="exit 3"):
        run_command("exit 3", tmp_path)
    assert INSTALLS.match("python -m pip install x")


@pytest.mark.parametrize("package", ["magna", "magna.nn", "magna.ops", "magna.data"])
def test_every_public_name_has_a_place_in_the_reference(package: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (REFERENCE / "python").glob("*.md"))
    documented = set(re.findall(r"auto(?:class|function|exception|data):: (\w+)", pages))
    assert set(importlib.import_module(package).__all__) - documented <= {"__version__", "DATASETS"}


@pytest.mark.parametrize(
    "name", ["tools.site", "tools.commands", "tools.recipes", "tools.settings", "tests.support.pages"]
)
def test_examples_of_the_tools(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_a_request_to_another_host_is_noticed() -> None:
    page = '<a href="https://a.org">a</a><img alt="x" src="//b.org/x.png"><link rel="stylesheet" href="https://c.org/c.css">'
    assert requests_of(page) == ["//b.org/x.png", "https://c.org/c.css"]


def first_column(page: Path, heading: str = "") -> set[str]:
    """The names in the first column of the tables under a heading, or of all tables of a page."""
    text = page.read_text(encoding="utf-8")
    if heading:
        text = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_page_of_metrics_has_every_metric() -> None:
    ties = {"mrr_optimistic", "mrr_pessimistic"}
    reports = {"metrics", "calibration", "trivial", "remarks"}
    of_nodes = {name for metrics in NODE_METRICS.values() for name in metrics}
    nodes = first_column(REFERENCE / "metrics.md", "Nodes")
    assert nodes == {*of_nodes, "loss", *reports, "classes", "confusion"}
    names = first_column(REFERENCE / "metrics.md", "Link prediction")
    assert names == {*RANK_METRICS, *ties, *reports, "head", "tail", "relations", "ties", "encoder", "skip"}
    assert set(METRIC_FORMS) <= nodes | names


@pytest.mark.slow
def test_the_page_of_the_run_folder_has_every_file_and_key(tmp_path: Path) -> None:
    from magna import train

    files, keys = set[str](), dict[str, set[str]]()
    short = {"train.epochs": 1, "train.patience": 1, "train.eval_every": 1}
    for recipe in ("digits", "families"):
        run = tmp_path / recipe
        train(recipe, settings=short, run_dir=run, device="cpu")
        files |= {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
        for name in ("summary.json", "metrics.jsonl", "environment.json", "schema.json"):
            content = (run / name).read_text()
            record = json.loads(content.splitlines()[0] if name.endswith("l") else content)
            keys.setdefault(name, set()).update(record)
    keys["summary.json"] |= {"slope", "bias"}  # only of several labels
    keys["schema.json"].add("target_scale")  # only of numbers
    page = REFERENCE / "run_folder.md"
    text = page.read_text(encoding="utf-8").split("\n## ")[0]
    assert {row.split("`")[1] for row in text.splitlines() if row.startswith("| `")} == files
    for name, names in keys.items():
        assert first_column(page, name) == names, name
