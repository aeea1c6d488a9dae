"""Progress goes to stderr: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import io
import sys

import pytest

from magna.progress import TrainingProgress
from magna.train import Epoch


def _epoch(number: int) -> Epoch:
    return Epoch(seed=0, number=number, of=3, loss=0.5, valid={"accuracy": 0.25}, best={"accuracy": 0.75})


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
        for number in (1, 2, 3):
            progress.epoch(_epoch(number))
    shown = terminal.getvalue()
    assert "[loading]" in shown and "3/3" in shown and "━" in shown
    assert capsys.readouterr().out == ""
