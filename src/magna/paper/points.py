"""Points of a figure: a choice on validation with search seeds, then the test on report seeds; a file each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from magna.config.atomic_files import write_whole
from magna.config.schema import REPORT_SEEDS, SEARCH_SEEDS, Config
from magna.errors import ArgumentError, Diverged
from magna.paper.records import PROTOCOL, settings_of
from magna.paper.study import StudyJob
from magna.tasks import NodeClassification
from magna.tasks.metrics import Spread, spread
from magna.training.environment import environment
from magna.training.loop import TrialResult
from magna.training.progress import seldom
from magna.training.trials import train_trials

COMMITTED = "points"  # folder of the results
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class Point:
    """A model at one place of a figure.

    Args:
        path: its file below the folder of the job, such as `fig4b/gcn-6-layers.json`.
        config: its settings.
        choices: changes of them, as `key=value`, one of which validation chooses.
    """

    path: str
    config: Config
    choices: tuple[tuple[str, ...], ...]

    def chosen(self, choice: int) -> Config:
        """The settings with one of the choices."""
        return self.config.with_values(self.choices[choice])


@dataclass(frozen=True)
class Measured:
    """A point that has been trained: mean validation accuracy of each choice, the best one, and its report runs."""

    valid: tuple[float, ...]  # of each choice over the search seeds; 0 for a run that diverged
    runs: tuple[dict[str, Any], ...]
    device: str

    @property
    def choice(self) -> int:
        """The first choice with the best validation."""
        return self.valid.index(max(self.valid))

    @property
    def accuracy(self) -> Spread | None:
        """Test accuracy in %; None without runs or if one diverged: a mean of the others is too good."""
        if not self.runs or any(run["test"] is None for run in self.runs):
            return None
        return spread([100 * run["test"] for run in self.runs])


def report_count(job: StudyJob, full: int, quick: int) -> int:
    """The number of report seeds of a job; more than there are is refused."""
    count = job.count(full, quick)
    if not 1 <= count <= len(REPORT_SEEDS):
        raise ArgumentError("seeds", count, f"1 to {len(REPORT_SEEDS)}")
    return count


def measure_point(
    point: Point, task: Callable[[], NodeClassification], job: StudyJob, *, search_seeds: int, seeds: int
) -> Measured:
    """Train what the file of a point lacks: first all choices and search seeds, then the report seeds, in a batch each.

    A stop loses the batch that runs. A file of other settings is replaced. A committed point in the results counts as
    one of the job.
    """
    path, name = job.run_dir / point.path, Path(point.path).stem
    identity = _identity(point, search_seeds)
    content = _read(path, identity)
    if job.results is not None and not job.quick:
        content = max(content, _read(job.results / COMMITTED / point.path, identity), key=_progress)
    if not content["valid"]:
        trials = [
            point.chosen(choice).with_seed(seed)
            for choice, seed in product(range(len(point.choices)), SEARCH_SEEDS[:search_seeds])
        ]
        results = _train(trials, task(), job, f"{name}, search")
        scores = [result.valid["accuracy"] for result in results]
        content["valid"] = [fmean(scores[at : at + search_seeds]) for at in range(0, len(scores), search_seeds)]
        _write(path, content, task())
    choice = Measured(tuple(content["valid"]), (), "").choice
    missing = [seed for seed in REPORT_SEEDS[:seeds] if seed not in {run["seed"] for run in content["runs"]}]
    if missing:
        trials = [point.chosen(choice).with_seed(seed) for seed in missing]
        content["runs"] += map(_run, _train(trials, task(), job, f"{name}, report", read_test=True))
        _write(path, content, task())
    runs = [run for run in content["runs"] if run["seed"] in REPORT_SEEDS[:seeds]]
    return Measured(tuple(content["valid"]), tuple(runs), content["device"])


def read_point(point: Point, results: Path, *, search_seeds: int) -> Measured:
    """The committed part of a point; empty for a file of other settings."""
    content = _read(results / COMMITTED / point.path, _identity(point, search_seeds))
    return Measured(tuple(content["valid"]), tuple(content["runs"]), content.get("device", ""))


def _identity(point: Point, search_seeds: int) -> dict[str, Any]:
    """Everything that decides the result of a point besides the seeds of the report."""
    return {
        "protocol": PROTOCOL,
        "settings": list(settings_of(point.config)),
        "choices": [list(choice) for choice in point.choices],
        "search_seeds": search_seeds,
    }


def _progress(content: dict[str, Any]) -> tuple[int, int]:
    return len(content["runs"]), len(content["valid"])


def _read(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Content of the file of a point; a new one without it, or if it is damaged or of other settings."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {key: content[key] for key in identity} == identity and {"valid", "runs", "device"} <= content.keys():
            return content
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return identity | {"valid": [], "runs": []}


def _write(path: Path, content: dict[str, Any], task: NodeClassification) -> None:
    content["device"] = environment(task.device)["device"]
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, text.encode(), again="the same command")


def _train(
    trials: Sequence[Config], task: NodeClassification, job: StudyJob, name: str, *, read_test: bool = False
) -> list[TrialResult]:
    say, started = seldom(job.say, _PROGRESS_SECONDS), time.perf_counter()

    def on_report(epoch: int, running: list[int], _: list[float]) -> Collection[int]:
        say(f"  {name}: epoch {epoch} of {trials[0].train.epochs}, {len(running)} runs at once")
        return ()

    results = train_trials(trials, task, read_test=read_test, on_report=on_report)
    job.say(f"{name}: {len(results)} runs ({time.perf_counter() - started:.0f} s)")
    return results


def _run(result: TrialResult) -> dict[str, Any]:
    run: dict[str, Any] = {
        "seed": result.config.train.seed,
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "seconds": round(result.seconds, 3),
    }
    try:
        result.check()
    except Diverged:
        return run | {"valid": None, "test": None}
    assert result.test is not None
    return run | {"valid": result.valid["accuracy"], "test": result.test["accuracy"]}
