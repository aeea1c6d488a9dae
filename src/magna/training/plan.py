"""Memory and time of a run before it starts: a forecast, and a few real steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch

from magna.config.schema import Config, make_config
from magna.tasks import Task, make_task
from magna.tasks.base import can_share_batch
from magna.training.capture import matmul_precision, own_stream
from magna.training.loop import Training
from magna.training.run_folder import pick_device
from magna.training.step_memory import forecast, objective_of
from magna.training.train import shares_batch
from magna.training.trials import train_trials

# Steps are watched for a second at least, and none is begun after this time; evaluations likewise.
MOST_SECONDS = 10.0
# A step that took longer than this leaves no time for an evaluation.
_SLOW_STEP = 40.0
_WARM_UP, _LEAST, _LEAST_SECONDS = 2, 4, 1.0


@dataclass(frozen=True)
class Pace:
    """Seconds of the repeated parts of a run."""

    measured: int = 0  # steps
    step: float | None = None  # of seeds that share a batch: of all of them, evaluation included
    evaluation: float | None = None  # not measured: counted like a step, which takes longer
    turns: int = 1  # trainings one after the other


def plan(
    what: Config | str | Path | None = None,
    /,
    *,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    seeds: int = 1,
    data_dir: str | Path | None = None,
    device: str = "auto",
    together: bool | None = None,
    measure: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Memory and time of a training, before it starts; `what`, `recipe` and `settings` as for :func:`magna.train`.

    Memory is a forecast: one step of the real model on the real graph is traced on tensors that have a shape but no
    memory. Time is measured: the loop itself runs for a few steps, then a few evaluations, and early stopping is left
    out. Where the run would not fit, or with `measure=False`, there is no time. Of seeds that train together as many
    share a batch as there is memory; the forecast is that of one. `say` gets a line before the steps: one of them may
    take minutes.
    """
    config = make_config(what, recipe, settings)
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; allowed: 1 or more")
    where = pick_device(device)
    task = make_task(config, data_dir, where)
    memory = forecast(task, config, where)
    share = can_share_batch(task) and shares_batch(seeds, where, together)
    pace = Pace()
    if measure and memory.fits:
        say(f"peak memory {memory.peak / 1e9:.2f} GB (forecast); timing a few steps, which --no-measure leaves out")
        pace = _pace_together(config, task, seeds) if share else _pace_in_turn(config, task, seeds)
    return {
        "task": config.task.name,
        "dataset": task.dataset,
        "notes": list(task.notes(config)),
        "recipe": config.recipe,
        "device": where.type,
        "nodes": task.num_nodes,
        "edges": task.num_edges,
        "together": share,
        "parameters": memory.parameters // 4,
        "memory": asdict(memory) | {"fits": memory.fits},
        "advice": [] if memory.fits else _advice(task, config, where),
        "time": _time(config, objective_of(task, config).num_batches, seeds, pace),
    }


def _time(config: Config, steps: int, seeds: int, pace: Pace) -> dict[str, Any]:
    """Times of the whole run at a pace, without early stopping."""
    epochs, epoch, whole = config.train.epochs, None, None
    # On the way, and of the chosen weights on validation and test.
    evaluations = -(-epochs // config.train.eval_every) + 2
    if pace.step is not None:
        epoch, evaluation = steps * pace.step, pace.step if pace.evaluation is None else pace.evaluation
        whole = pace.turns * (epochs * epoch + evaluations * evaluation)
    return {
        "measured": pace.measured,
        "step_seconds": pace.step,
        "steps": steps,
        "epoch_seconds": epoch,
        "epochs": epochs,
        "evaluation_seconds": pace.evaluation,
        "evaluations": evaluations,
        "seeds": seeds,
        "turns": pace.turns,
        "seconds": whole,
    }


def _pace_in_turn(config: Config, task: Task, seeds: int) -> Pace:
    """Of seeds one after the other: steps as the loop takes them, then evaluations."""
    with own_stream(task.device), matmul_precision(config.train.precision):
        torch.manual_seed(config.train.seed)
        training = Training(config, task, task.make_model(config.model).to(task.device))
        training.prepare()
        steps, batches = _Laps(task.device), cycle(enumerate(training.batches))
        while not steps.counted or not steps.enough:
            training.step(*next(batches))
            steps.add()
        evaluations = _Laps(task.device)
        while steps.typical < _SLOW_STEP and not evaluations.enough:
            task.evaluate(training.network, "valid")
            evaluations.add()
    return Pace(len(steps.counted), steps.typical, evaluations.typical if evaluations.counted else None, seeds)


def _pace_together(config: Config, task: Any, seeds: int) -> Pace:
    """Of seeds that share a batch, in as many batches as memory asks for; from one validation to the next."""
    rounds, sizes, every = _Laps(task.device), [], min(config.train.eval_every, config.train.epochs)

    def on_report(number: int, running: list[int], _best: list[float]) -> Collection[int]:
        rounds.add()
        sizes.append(len(running))
        if number == every:
            rounds.begin = time.perf_counter()  # a GPU compiles and captures before the first epoch
        if rounds.enough:
            raise _Enough
        return ()

    with suppress(_Enough):
        configs = [config.with_seed(config.train.seed + number) for number in range(seeds)]
        train_trials(configs, task, report_every=every, on_report=on_report)
    return Pace(len(rounds.counted), rounds.typical / every, 0.0, turns=-(-seeds // sizes[0]))


def _advice(task: Task, config: Config, device: torch.device) -> list[str]:
    """Settings that make the run smaller, with the memory of each; none that its model refuses."""
    heads = getattr(config.model, "heads", 1)
    half = heads * max(1, config.model.hidden_channels // heads // 2)
    lines = []
    for words in ("model.memory=recompute", f"model.hidden_channels={half}"):
        with suppress(ValueError):
            memory = forecast(task, config.with_values([words]), device)
            lines.append(f"--set {words}: {memory.peak / 1e9:.1f} GB{', which fits' if memory.fits else ''}")
    return lines


class _Enough(Exception):
    """Raised to end a batch once enough has been measured."""


class _Laps:
    """Seconds of repeated work, until enough have been measured."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._seconds = device, list[float]()
        self.begin = self._last = time.perf_counter()

    def add(self) -> None:
        """Measure the time since the last lap."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self._seconds.append(now - self._last)
        self._last = now

    @property
    def enough(self) -> bool:
        spent = time.perf_counter() - self.begin
        return spent >= MOST_SECONDS or (spent >= _LEAST_SECONDS and len(self._seconds) >= _WARM_UP + _LEAST)

    @property
    def counted(self) -> list[float]:
        """The seconds after the warm-up."""
        return self._seconds[_WARM_UP:] or self._seconds[-1:]

    @property
    def typical(self) -> float:
        return median(self.counted)
