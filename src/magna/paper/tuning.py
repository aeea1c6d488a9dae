"""Search of a cell's settings: draws from the common space, halving, and the best again with further seeds."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from magna.config.atomic_files import write_whole
from magna.config.schema import SEARCH_SEEDS, Config
from magna.errors import ArgumentError, Diverged
from magna.paper.node_systems import Draw, Effort, Space, assignments, settings_of_draw
from magna.paper.records import settings_of
from magna.search.runs import REPORTS, RUNGS, continues, fault_of
from magna.tasks import NodeClassification
from magna.training.loop import TrialResult
from magna.training.trials import train_trials

PER_STRUCTURE = 8  # trials that share a structure, and so a batch
SEEDS = SEARCH_SEEDS[:3]  # the first of every trial, the others of the confirmed ones
FURTHER_TRIALS = 16  # in each widened space

TaskOf = Callable[[Config], NodeClassification]


@dataclass
class Trial:
    """Settings that were tried, and their validation accuracy."""

    draw: Draw
    valid: list[float] = field(default_factory=list)  # by the seeds of `SEEDS`
    epochs: int = 0
    seconds: float = 0.0
    rungs: dict[str, float] = field(default_factory=dict)  # epoch → best accuracy so far
    stopped: bool = False
    refused: str = ""

    @property
    def mean(self) -> float:
        return fmean(self.valid) if self.valid else -1.0


@dataclass
class NodeSearch:
    """Trials of one row, in the order of their draws; what a file keeps of them."""

    key: str  # names the space, so that trials of another one are not joined
    trials: list[Trial] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)  # knobs at whose ends the best value lay
    chosen: list[str] = field(default_factory=list)  # settings of the best trial; empty before the end
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Trial:
        """The best of the trials with all seeds, or of all trials before any has them."""
        return best_of(self.trials)

    @property
    def seconds(self) -> float:
        return sum(trial.seconds for trial in self.trials)


def best_of(trials: Sequence[Trial]) -> Trial:
    """The best of the trials with the most seeds, the first one if several are level.

    A mean over three seeds is no match for the best of many single seeds, which is often luck.
    """
    most = max(len(trial.valid) for trial in trials)
    return max((trial for trial in trials if len(trial.valid) == most), key=lambda trial: trial.mean)


def read_node_search(path: Path) -> NodeSearch | None:
    """The search of a file; None if there is none, or a damaged one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return NodeSearch(**content | {"trials": [Trial(**trial) for trial in content["trials"]]})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_node_search(path: Path, search: NodeSearch) -> None:
    """Write the file of a search as a whole: a stop leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(search), ensure_ascii=False, separators=(",", ":")) + "\n"
    write_whole(path, text.encode(), again="the same command")


def search_key(config: Config, space: Space, effort: Effort, protocol: int) -> str:
    """A fingerprint of everything that a search depends on, besides the row; a new setting at its default keeps it."""
    text = json.dumps([settings_of(config), space.text(), effort.trials, PER_STRUCTURE, protocol])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def search_settings(
    config: Config,
    space: Space,
    effort: Effort,
    name: str,
    path: Path,
    task_of: TaskOf,
    origin: Mapping[str, Any],
    protocol: int,
    say: Callable[[str], None],
) -> NodeSearch:
    """Search the settings of a row, or continue the search of a file, and return it with its chosen settings.

    Trials are drawn by `name` alone. Trials of one structure share a batch; after an eighth, a quarter and half of the
    epochs the worse half of all trials so far stops. The five best train again with two further seeds, and the best
    mean wins. Where it lies at an end of a range, that range is widened and the search goes on, twice at most.
    """
    key = search_key(config, space, effort, protocol)
    stored = read_node_search(path)
    search = stored if stored is not None and stored.key == key else NodeSearch(key, origin=dict(origin))
    if search.chosen:
        return search
    runner = _Runner(config, task_of, search, path, say)
    runner.run(space.draws(f"{name}/0", effort.trials, PER_STRUCTURE))
    if search.best.mean <= 0:
        raise Diverged(f"none of {effort.trials} trials has a result: {search.best.refused or 'no loss is finite'}")
    for number in range(1, effort.widenings + 1):
        # A search that continues holds trials of wider spaces, which have no say in how they came about.
        before = effort.trials + (number - 1) * FURTHER_TRIALS
        runner.confirm(effort.confirmed, before)
        space, keys = space.widened(best_of(search.trials[:before]).draw, config)
        if not keys:
            break
        search.widened += [each for each in keys if each not in search.widened]
        say(f"  the best {', '.join(keys)} lies at an end: {FURTHER_TRIALS} further trials in a wider range")
        runner.run(space.draws(f"{name}/{number}", FURTHER_TRIALS, PER_STRUCTURE), first=before)
    runner.confirm(effort.confirmed, len(search.trials))
    search.chosen = list(assignments(settings_of_draw(search.best.draw)))
    write_node_search(path, search)
    return search


@dataclass
class _Runner:
    """Trains trials and keeps their search on disk."""

    config: Config
    task_of: TaskOf
    search: NodeSearch
    path: Path
    say: Callable[[str], None]

    def run(self, draws: Sequence[Draw], first: int = 0) -> None:
        """Train the draws that the search does not hold yet; `first` is the number of the first one."""
        for start in range(0, len(draws), PER_STRUCTURE):
            if first + start >= len(self.search.trials):
                self.search.trials += self._train(draws[start : start + PER_STRUCTURE])
                write_node_search(self.path, self.search)
                best, done = self.search.best, len(self.search.trials)
                self.say(f"  {done} trials, best {best.mean:.4f}, {self.search.seconds:.0f} s of training")

    def confirm(self, count: int, before: int) -> None:
        """Train the best of the first trials with the seeds that they lack; `before` is the number of these trials."""
        ranked = sorted(self.search.trials[:before], key=lambda trial: -trial.valid[0] if trial.valid else 1)
        lacking = [trial for trial in ranked[:count] if 0 < len(trial.valid) < len(SEEDS)]
        for trial in lacking:
            config = self._config(trial.draw)
            runs = [config.with_seed(seed) for seed in SEEDS[1:]]
            results = train_trials(runs, self.task_of(config))
            trial.valid += [_accuracy(result) for result in results]
            trial.seconds += sum(result.seconds for result in results)
            write_node_search(self.path, self.search)

    def _config(self, draw: Draw) -> Config:
        return self.config.with_settings(settings_of_draw(draw), drop_idle=True).with_seed(SEEDS[0])

    def _train(self, draws: Sequence[Draw]) -> list[Trial]:
        """Train draws of one structure in a batch."""
        trials = [Trial(dict(draw)) for draw in draws]
        try:
            configs = [self._config(draw) for draw in draws]
            task = self.task_of(configs[0])
            refused = fault_of(self.config, settings_of_draw(draws[0]), task)
        except ArgumentError as error:  # not of data that is missing
            refused = str(error)
        if refused:
            for trial in trials:
                trial.refused = refused
            return trials
        every = max(1, round(self.config.train.epochs / REPORTS))

        def on_report(epoch: int, running: list[int], scores: list[float]) -> Collection[int]:
            if epoch not in [rung * every for rung in RUNGS]:
                return ()
            for place, score in zip(running, scores, strict=True):
                trials[place].rungs[str(epoch)] = score
            known = (trial.rungs.get(str(epoch)) for trial in (*self.search.trials, *trials))
            peers = [score for score in known if score is not None]
            worse = [place for place, score in zip(running, scores, strict=True) if not continues(score, peers)]
            for place in worse:
                trials[place].stopped = True
            return worse

        too_large: dict[int, str] = {}
        started = time.perf_counter()

        def on_results(results: dict[int, TrialResult]) -> None:
            for place, result in results.items():
                trials[place].valid, trials[place].epochs = [_accuracy(result)], result.epochs

        train_trials(configs, task, report_every=every, on_report=on_report, on_results=on_results, too_large=too_large)
        for trial in trials:
            trial.seconds = round((time.perf_counter() - started) / len(trials), 3)
        for place, reason in too_large.items():
            trials[place].refused = reason
        return trials


def _accuracy(result: TrialResult) -> float:
    """Validation accuracy of a run, 0 if it diverged."""
    try:
        result.check()
    except Diverged:
        return 0.0
    return round(result.valid["accuracy"], 6)
