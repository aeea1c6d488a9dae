"""The file of a cell: what was trained, what came of each seed, where and when."""

from __future__ import annotations

import datetime
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from magna.config.atomic_files import write_whole
from magna.config.schema import Config
from magna.paper.experiments import Cell, same_training
from magna.tasks.metrics import Spread, spread
from magna.training.run_folder import environment

SAY_SECONDS = 10  # between two lines about what is still training, at least
# Of a config, what a cell keeps: the recipe itself tells the rest.
_TRAINED = ("recipe", "data", "model", "task", "train")
# Of a run, what mean and deviation are taken of where it is there, and what is no result.
_SCORED = ("valid", "test", "test_head", "test_tail", "test_encoder", "test_skip")
_UNREPORTED = ("loss",)


@dataclass(frozen=True)
class Job:
    """What all cells of one command share."""

    out: Path
    seeds: int
    data_dir: str | Path | None
    device: torch.device
    stamp: dict[str, Any]
    say: Callable[[str], None]

    @property
    def origin(self) -> dict[str, Any]:
        """Where a run is from: those of one file may come from several commands."""
        return {"device": self.stamp["environment"]["device"], **{key: self.stamp[key] for key in ("commit", "date")}}

    def seldom(self) -> Callable[[str], None]:
        """As `say`, for what goes on for long: most lines are left out."""
        said = time.monotonic()

        def say(line: str) -> None:
            nonlocal said
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                self.say(line)

        return say


def recorded_runs(path: Path, config: Config) -> list[dict[str, Any]]:
    """The runs that a file holds of a cell; none where it was trained with other settings."""
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        before = Config.from_dict(found["config"])
        return list(found["runs"]) if same_training(before, config.with_seed(before.train.seed)) else []
    except (ValueError, KeyError, TypeError):
        return []


def is_done(path: Path, config: Config, seeds: int) -> bool:
    """Whether a file holds this cell: trained with these settings and at least so many seeds."""
    return len(recorded_runs(path, config)) >= seeds


def write_cell(path: Path, cell: Cell, runs: Sequence[dict[str, Any]], stamp: dict[str, Any]) -> None:
    record = {
        "dataset": cell.dataset,
        "row": cell.row,
        "recipe": cell.config.recipe,
        "changes": list(cell.changes),
        "split": cell.split,
        "mean": _over(runs, lambda found: found.mean),
        "std": _over(runs, lambda found: found.std),
        "runs": list(runs),
        "config": {part: value for part, value in cell.config.to_dict().items() if part in _TRAINED},
    }
    text = json.dumps(record | stamp, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, text.encode(), again="the same command")


def _over(runs: Sequence[dict[str, Any]], statistic: Callable[[Spread], float]) -> dict[str, dict[str, float]]:
    return {
        split: {
            metric: statistic(spread([run[split][metric] for run in runs]))
            for metric in runs[0][split]
            if metric not in _UNREPORTED
        }
        for split in _SCORED
        if split in runs[0]
    }


def make_stamp(device: torch.device) -> dict[str, Any]:
    """Where and when."""
    return {
        "environment": environment(device),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
    }


def _commit() -> str | None:
    """The commit of this source, None where it is installed without its history."""
    here = Path(__file__)
    try:
        # Installed into a folder of somebody's repository, it is none of its files.
        _git("ls-files", "--error-unmatch", here.name, cwd=here.parent)
        return _git("describe", "--always", "--dirty", cwd=here.parent)
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str, cwd: Path) -> str:
    return subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()
