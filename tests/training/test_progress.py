"""Progress goes to stderr: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from tests.support.running import SMALL

from magna.config.schema import Config, load_recipe
from magna.training import progress as progressing
from magna.training.loop import Epoch
from magna.training.progress import TrainingProgress, seldom
from magna.training.train import train


def _epoch(number: int, run: int = 0, runs: int = 1) -> Epoch:
    return Epoch(f"seed {run}", number, 3, 0.5, {"accuracy": 0.25}, {"accuracy": 0.75}, run, runs)


class Clock:
    """Two seconds pass between looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 2
        return self.now


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress() as progress:
        progress.say("[loading]")
        for number in (1, 2, 3):
            progress.epoch(_epoch(number))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[loading]",
        "seed 0 · epoch 1/3 · loss 0.500 · valid 25.0 % · best 75.0 %",
        "seed 0 · epoch 3/3 · loss 0.500 · valid 25.0 % · best 75.0 %",
    ]


def test_the_time_left_counts_all_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progressing, "time", Clock())
    monkeypatch.setattr(progressing, "_LINE_SECONDS", 0.0)
    with TrainingProgress() as progress:
        for run in range(2):
            for number in (1, 2, 3):
                progress.epoch(_epoch(number, run, 2))
    left = [line.partition(" · best 75.0 %")[2] for line in capsys.readouterr().err.splitlines()]
    # Two looks at the clock for each epoch make four seconds; nothing is known after the first epoch.
    assert left == ["", " · 16 s left", " · 12 s left", " · 8.0 s left", " · 4.0 s left", ""]


def test_seeds_that_train_together_have_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress() as progress:
        progress.epoch(Epoch("5 seeds together", 10, 10, None, None, {"accuracy": 0.5}))
    assert capsys.readouterr().err == "5 seeds together · epoch 10/10 · best 50.0 %\n"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with TrainingProgress() as progress:
        progress.say("[loading]")
        for run in range(2):
            for number in (1, 2, 3):
                progress.epoch(_epoch(number, run, 2))
    shown = terminal.getvalue()
    assert "[loading]" in shown and "3/3" in shown and "━" in shown
    # The first seed has moved up as text, the bar is the second's.
    assert "seed 0 · 3 epochs · loss 0.500 · valid 25.0 % · best 75.0 %" in shown
    assert capsys.readouterr().out == ""


def test_lines_about_the_same_training_are_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = 0.0, list[str]()
    monkeypatch.setattr("magna.training.progress.time.monotonic", lambda: now)
    say = seldom(lines.append, 10)
    for second in range(30):
        now = float(second)
        say(str(second))
    assert lines == ["11", "22"]


def test_training_from_python_shows_progress_if_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.from_dict(SMALL).with_settings({"train.epochs": 1})
    train(config, run_dir=tmp_path / "silent", device="cpu")
    assert capsys.readouterr() == ("", "")
    started: list[str] = []
    train(
        config, run_dir=tmp_path / "run", device="cpu", progress=True, on_start=lambda *facts: started.append("started")
    )
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and lines[0].startswith("digits: 1,797 nodes") and "epoch 1/1" in lines[-1]
    assert started == ["started"]


def test_data_of_the_user_gets_a_note_on_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_graph = Path(__file__).parents[2] / "examples" / "own_graph"
    train(own_graph, settings={"train.epochs": 1}, run_dir=tmp_path / "run", device="cpu", progress=True)
    assert "those of the recipe digits; none were searched for this data; try magna sweep" in capsys.readouterr().err


def test_a_model_without_encoder_is_described_as_one() -> None:
    config = load_recipe("families").with_values(["model.num_layers=0"], drop_idle=True)
    assert progressing._model(config).startswith("no encoder, decoder=")
