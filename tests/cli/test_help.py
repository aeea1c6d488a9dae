"""The help as a newcomer reads it: examples that are valid calls, panels, 80 columns, no colour, completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.support.running import Program

from magna.cli.command import FIRST_STEPS, app
from magna.cli.completion import complete_experiment, complete_recipe, complete_run
from magna.cli.options import LINKS, NODES, OTHER, PANELS

VERBS: Any = typer.main.get_command(app)
COMMANDS = {name: verb for name, verb in VERBS.commands.items() if name != "data"}
COMMANDS |= {f"data {name}": verb for name, verb in VERBS.commands["data"].commands.items()}
EXAMPLES = [
    (name, line) for name, verb in COMMANDS.items() for line in verb.epilog.splitlines() if line.startswith("magna")
]


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_every_example_is_a_valid_call_of_its_command(name: str, example: str) -> None:
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["magna", *name.split()] and len(example) < 80
    assert COMMANDS[name].make_context(name, words[1 + len(name.split()) :]).params


def test_every_command_has_an_example() -> None:
    assert {name for name, _ in EXAMPLES} == set(COMMANDS)


@pytest.mark.slow
def test_the_first_steps_run_as_they_are_written(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in FIRST_STEPS.splitlines()[1:]:
        program(*shlex.split(line)[1:])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_panel_and_every_help_ends_with_help(name: str) -> None:
    context = COMMANDS[name].make_context(name, [], resilient_parsing=True)
    options = [option for option in COMMANDS[name].get_params(context) if option.opts[0].startswith("-")]
    assert {option.rich_help_panel for option in options} <= set(PANELS)
    assert options[-1].opts == ["-h", "--help"] or options[-1].rich_help_panel == OTHER


def _magna(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NO_COLOR", "FORCE_COLOR"))}
    return subprocess.run(
        [sys.executable, "-m", "magna", *arguments], capture_output=True, text=True, env=inherited | environment
    )


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}], ids=["piped", "NO_COLOR"])
def test_help_fits_80_columns_without_colour(environment: Mapping[str, str]) -> None:
    done = _magna("predict", "--help", **environment, COLUMNS="80")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    titles = re.findall(r"╭─ (.*?) ─", done.stdout)
    assert titles == ["Arguments", NODES, LINKS, "Data", "Training", "Output", OTHER]


def test_the_first_help_shows_the_way() -> None:
    text = _magna("--help").stdout
    places = [text.index(f"│ {name} ") for name in ("train", "evaluate", "predict", "sweep", "doctor", "data")]
    assert places == sorted(places)
    assert "Train → evaluate → predict" in text and "magna predict runs/digits --node 3" in text


def _completed(*words: str) -> list[str]:
    shell = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "_MAGNA_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['magna']; from magna.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | shell)
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_recipes_runs_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for run in ("runs/one", "runs/many/seed-0", "elsewhere/two"):
        Path(run).mkdir(parents=True)
        (Path(run) / "config.toml").touch()
    assert _completed("magna", "train", "cite") == [name for name in complete_recipe("") if name.startswith("cite")]
    assert _completed("magna", "evaluate", "runs/") == ["runs/many/seed-0", "runs/one"]
    assert _completed("magna", "ev") == ["evaluate"]
    assert complete_run("") == ["runs/many/seed-0", "runs/one"]
    assert complete_run("elsewhere/t") == ["elsewhere/two"] and complete_run("nowhere/") == []
    assert complete_run("runs/o") == ["runs/one"]
    assert complete_experiment("table") == ["table1", "table2", "table3", "table6", "table7"]


def test_completion_can_be_installed() -> None:
    shown = _magna("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_MAGNA_COMPLETE=complete_bash" in shown.stdout
