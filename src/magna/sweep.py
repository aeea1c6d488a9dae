"""A search over a recipe's space: trials are drawn in batches, train together and are judged by validation alone."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from magna.config import SEARCH_SEEDS, Config, ExpectedConfig, SourceConfig, split_key
from magna.run import pick_device
from magna.study import GRACE_SECONDS, Sampler, Study, refusal, safe
from magna.tasks import LinkPrediction, Task, make_task
from magna.trials import OnReport, TrialResult, train_trials
from magna.turns import train_in_turn
from magna.whole import make_folder, write_whole

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial
    from rich.console import Console

Say = Callable[[str], None]

STATES = ("complete", "pruned", "refused", "fail")
# A trial reports this often on its way. After a quarter and after half of it only the better half goes on.
REPORTS, RUNGS = 8, (2, 4)
FEWEST_PEERS = 8  # fewer than these are no measure for a trial
BATCH = {"random": {"cpu": 8, "cuda": 256}, "tpe": {"cpu": 8, "cuda": 32}}  # TPE learns from batch to batch
WAIT_SECONDS, SAY_SECONDS = 2.0, 5.0


@dataclass(frozen=True)
class Plan:
    """How to search.

    Args:
        trials: finished trials in total, those of earlier calls and of other machines included; settings that give no
            model are among them.
        sampler: "random", or "tpe", which learns from the trials so far.
        seed: of the sampler.
        seeds_per_trial: each setting is trained with so many search seeds; their mean counts.
        batch: trials drawn and trained at once; None: as `BATCH` says.
        prune: stop the worse half of the trials after a quarter of the epochs, and again after half.
        confirm: train so many of the best again, with further search seeds, and choose by those; 0: choose by the
            search itself. A good result with one seed on a few hundred nodes is often luck.
        confirm_seeds: how many further seeds.
    """

    trials: int
    sampler: Sampler = "random"
    seed: int = 0
    seeds_per_trial: int = 1
    batch: int | None = None
    prune: bool = True
    confirm: int = 10
    confirm_seeds: int = 4

    def __post_init__(self) -> None:
        least = {"trials": 1, "seeds_per_trial": 1, "batch": 1, "confirm": 0, "confirm_seeds": 1, "seed": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name.replace('_', '-')} is {value}; allowed: {low} or more")
        if self.seeds_per_trial + self.confirm_seeds > len(SEARCH_SEEDS):
            raise ValueError(f"more seeds are asked for than the {len(SEARCH_SEEDS)} that are kept for searching")

    @property
    def search_seeds(self) -> Sequence[int]:
        return SEARCH_SEEDS[: self.seeds_per_trial]

    @property
    def further_seeds(self) -> Sequence[int]:
        return SEARCH_SEEDS[self.seeds_per_trial : self.seeds_per_trial + self.confirm_seeds]


def sweep(
    config: Config,
    plan: Plan,
    *,
    out: str | Path,
    storage: str | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    top: int = 5,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Search a config's space, write `best.toml`, `trials.csv` and `trials.json`, and return what `--json` prints.

    The study is kept in `out/study.db` or at the URL `storage`. Called again, it goes on to `plan.trials` trials.
    """
    if not config.search:
        raise ValueError(f"recipe {config.recipe} has nothing to search; try a recipe with a [search] table")
    where = torch.device(pick_device(device))
    task = make_task(config, data_dir, where)
    folder = make_folder(out, "--out")
    url = storage or f"sqlite:///{folder / 'study.db'}"
    study = Study(
        url,
        config.recipe,
        config.search,
        _comparable(config, plan),
        sampler=plan.sampler,
        seed=plan.seed,
    )
    # Trials of link prediction share no batch: the next one may learn from the last.
    batch = 1 if isinstance(task, LinkPrediction) else plan.batch or BATCH[plan.sampler][where.type]
    there = len(study.finished())
    say(f"{task.dataset} on {where.type}: {there} of {plan.trials} trials are there · {safe(url)}")
    _search(config, plan, task, study, batch, say)
    _confirm(config, plan, task, study, batch, say)

    seeds = list(plan.further_seeds) if plan.confirm else []
    confirmed = {number: held["valid"] for number, held in study.confirmed.items() if held["seeds"] == seeds}
    rows = [_row(trial, confirmed.get(trial.number)) for trial in study.trials()]
    ranked = sorted((row for row in rows if row["state"] == "complete"), key=_rank, reverse=True)
    states = {state: sum(row["state"] == state for row in rows) for state in STATES}
    refused = next((row["refused"] for row in rows if row["refused"] is not None), None)
    if states["refused"] and states["refused"] == len(study.finished()):
        raise ValueError(f"{_count_refused(states, refused)}; try other settings, with another --out")
    if not ranked:
        raise RuntimeError(f"no trial of {config.recipe} came to its end; try more --trials")
    result = {
        "task": config.task.name,
        "dataset": task.dataset,
        "recipe": config.recipe,
        "device": where.type,
        "out": str(folder),
        "storage": safe(url),
        "sampler": plan.sampler,
        "search_seeds": list(plan.search_seeds),
        "confirm_seeds": seeds,
        "states": states,
        "refused": refused,
        "seconds": sum(row["seconds"] for row in rows),
        "best": ranked[0],
        "top": ranked[:top],
        "importances": study.importances(),
    }
    _write(folder, best_recipe(config, plan, result), rows, result)
    return result


def without(config: Config, fixed: Collection[str]) -> Config:
    """The config with these settings left out of its search space.

    >>> config = Config(search={"model.K, model.heads": [2, 4], "train.lr": [0.1]})
    >>> without(config, ["model.K", "train.lr"]).search
    {'model.heads': [2, 4]}
    """
    space = {}
    for key, values in config.search.items():
        if left := [name for name in split_key(key) if name not in fixed]:
            space[", ".join(left)] = values
    return replace(config, search=space)


def best_recipe(config: Config, plan: Plan, result: Mapping[str, Any]) -> Config:
    """The recipe with the settings that the search chose, and the story of the choice."""
    best, states, refused = result["best"], result["states"], result["states"]["refused"]
    metric = "MRR" if config.task.name == "link_prediction" else "accuracy"
    story = (
        f"magna sweep {config.recipe}, {datetime.date.today().isoformat()}, on {result['device']}: "
        f"{states['complete'] + states['pruned']} trials ({states['pruned']} of them stopped early"
        f"{f', beside {refused} that could not be built' if refused else ''}) drawn by the "
        f"{plan.sampler} sampler with seed {plan.seed} from the space under [search], trained with search "
        f"{_seeds(plan.search_seeds)}. Trial {best['number']}, validation {metric} {best['value']:.4f}"
    )
    if best["confirmed"] is not None:
        story += (
            f"; chosen among the {min(plan.confirm, states['complete'])} best by the mean validation {metric} with "
            f"{_seeds(plan.further_seeds)}, {best['confirmed']:.4f}"
        )
    story += ". No test label took part. What was not searched is as in the recipe."
    return replace(
        _chosen(config, best["params"]),
        search=config.search,
        recipe=f"{config.recipe}-best",
        source=SourceConfig(story),
        expected=ExpectedConfig(paper=config.expected.paper),
    )


def show(result: Mapping[str, Any], console: Console) -> None:
    """The best trials side by side, one column each."""
    from rich.table import Table

    states, top = result["states"], result["top"]
    table = Table(title=f"{result['recipe']}: the best of {states['complete'] + states['pruned']} trials")
    table.add_column("trial")
    for row in top:
        table.add_column(str(row["number"]), justify="right")
    table.add_column("weight", justify="right")
    metric = "MRR, %" if result["task"] == "link_prediction" else "%"
    table.add_row(f"valid, {metric}", *(f"{100 * row['value']:.1f}" for row in top), "")
    if any(row["confirmed"] is not None for row in top):
        table.add_row(f"valid, further seeds, {metric}", *(_percent(row["confirmed"]) for row in top), "")
    for key in top[0]["params"]:
        weight = result["importances"].get(key)
        name, *tied = split_key(key)
        name += f" +{len(tied)}" if tied else ""
        table.add_row(name, *(_brief(row["params"][key]) for row in top), "" if weight is None else f"{weight:.2f}")
    console.print(table)
    lines = [
        f"{states['pruned']} trials were stopped early, {states['fail']} failed; weight: share of a setting in the "
        "differences",
        *([_count_refused(states, result["refused"])] if states["refused"] else []),
        f"all trials: {result['out']}/trials.csv",
        f"train the best: magna train {result['out']}/best.toml",
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _search(config: Config, plan: Plan, task: Task, study: Study, batch: int, say: Say) -> None:
    """Run trials until there are enough, and wait for those that run elsewhere."""
    waiting = False
    while True:
        study.take_over()
        finished, elsewhere = study.counts()
        left = plan.trials - finished - elsewhere
        if left > 0:
            waiting = False
            _run_batch(config, plan, task, study, min(left, batch), say)
        elif elsewhere:
            if not waiting:
                count = "1 trial" if elsewhere == 1 else f"{elsewhere} trials"
                say(f"waiting for {count} of another process; taken over after {GRACE_SECONDS} s of its silence")
            waiting = True
            time.sleep(WAIT_SECONDS)
        else:
            return


def _run_batch(config: Config, plan: Plan, task: Task, study: Study, count: int, say: Say) -> None:
    started = time.monotonic()
    trials: list[Trial] = []
    try:
        with study.alive(trials):
            given_up = len(study.trials("WAITING"))
            for place in range(count):
                trial = study.ask(new=place >= given_up)
                if (reason := _refusal(config, trial.params, task)) is None:
                    trials.append(trial)
                else:
                    study.refuse(trial, reason)
            # Every run of a trial stands beside the others of that trial, as `_Watch` expects.
            configs = _with_seeds(config, (trial.params for trial in trials), plan.search_seeds)
            every = max(1, round(config.train.epochs / REPORTS))
            watch = _Watch(study, trials, plan.seeds_per_trial, {rung * every for rung in RUNGS if plan.prune}, say)
            results = _train(configs, task, every, watch)
    except BaseException as error:
        study.give_up(trials, again=isinstance(error, KeyboardInterrupt))
        raise
    for place, (trial, runs) in enumerate(zip(trials, _by_trial(results, plan.seeds_per_trial), strict=True)):
        valid = [run.valid[task.METRIC] for run in runs]
        record = {
            "valid": valid,
            "epochs": max(run.epochs for run in runs),
            "seconds": sum(run.seconds for run in runs),
        }
        if place in watch.stopped:
            study.prune(trial, record)
        else:
            study.complete(trial, statistics.fmean(valid), record)
    finished, best = len(study.finished()), study.best()
    so_far = f"best {100 * (best[0].value or 0):.1f} % (trial {best[0].number}) · " if best else ""
    say(f"{finished}/{plan.trials} trials · {so_far}{len(trials)} in {time.monotonic() - started:.1f} s")


@dataclass
class _Watch:
    """Hears the runs of a batch on their way and stops trials at the rungs."""

    study: Study
    trials: Sequence[Trial]
    runs_per_trial: int
    rungs: Collection[int]
    say: Say
    stopped: set[int] = field(default_factory=set)  # places in the batch
    seen: dict[int, dict[int, float]] = field(default_factory=dict)  # run → epoch → score
    last_said: float = field(default_factory=time.monotonic)

    def __call__(self, epoch: int, which: list[int], scores: list[float]) -> list[int]:
        for run, score in zip(which, scores, strict=True):
            self.seen.setdefault(run, {})[epoch] = score
        running = {run // self.runs_per_trial for run in which} - self.stopped
        means = {place: mean for place in running if (mean := self._mean(place, epoch)) is not None}
        for place, mean in means.items():
            self.study.report(self.trials[place], mean, epoch)
        if epoch in self.rungs:
            peers = self.study.values_at(epoch)
            self.stopped |= {place for place, mean in means.items() if not goes_on(mean, peers)}
        if time.monotonic() - self.last_said >= SAY_SECONDS:
            self.last_said = time.monotonic()
            self.say(f"epoch {epoch} · {len(running)} running · best {100 * max(scores):.1f} %")
        return [run for run in which if run // self.runs_per_trial in self.stopped]

    def _mean(self, place: int, epoch: int) -> float | None:
        """Over the runs of a trial; of one that ended earlier, its last. None while one has not begun."""
        runs = [self.seen.get(place * self.runs_per_trial + i) for i in range(self.runs_per_trial)]
        if any(run is None for run in runs):
            return None
        return statistics.fmean(run.get(epoch, max(run.values())) for run in runs if run is not None)


def goes_on(score: float, peers: Sequence[float]) -> bool:
    """Whether a score is in the better half of all that came as far (successive halving); equal ones are.

    Optuna's own pruners take one trial after the other, so that the first of a batch would always pass.

    >>> [goes_on(score, range(10)) for score in (4, 5)]
    [False, True]
    """
    better = sum(peer > score for peer in peers)
    return len(peers) < FEWEST_PEERS or better < math.ceil(len(peers) / 2)


def _confirm(config: Config, plan: Plan, task: Task, study: Study, batch: int, say: Say) -> None:
    """Train the best trials again with further seeds."""
    seeds, held = list(plan.further_seeds), study.confirmed
    candidates = study.best()[: plan.confirm]
    pending = [trial for trial in candidates if held.get(trial.number, {}).get("seeds") != seeds]
    if pending:
        say(f"training the {len(candidates)} best again with {_seeds(seeds)}")
    size = max(1, batch // len(seeds))
    for start in range(0, len(pending), size):
        part = pending[start : start + size]
        results = _train(_with_seeds(config, (trial.params for trial in part), seeds), task)
        for trial, runs in zip(part, _by_trial(results, len(seeds)), strict=True):
            study.confirm(trial.number, seeds, [run.valid[task.METRIC] for run in runs])


def _refusal(config: Config, settings: Mapping[str, Any], task: Task) -> str | None:
    """Why settings give no model; None where they do."""
    try:
        one = _chosen(config, settings)
        task = task.with_config(one) if isinstance(task, LinkPrediction) else task
        with torch.device("meta"):  # takes no memory, draws no number
            task.make_model(one.model)
    except ValueError as error:
        return str(error)
    return None


def _train(
    configs: Sequence[Config], task: Task, report_every: int = 25, on_report: OnReport | None = None
) -> list[TrialResult]:
    if isinstance(task, LinkPrediction):
        return train_in_turn(configs, task, report_every=report_every, on_report=on_report)
    return train_trials(configs, task, report_every=report_every, on_report=on_report)


def _with_seeds(config: Config, settings: Iterable[Mapping[str, Any]], seeds: Sequence[int]) -> list[Config]:
    return [one.with_seed(seed) for one in (_chosen(config, each) for each in settings) for seed in seeds]


def _chosen(config: Config, settings: Mapping[str, Any]) -> Config:
    """One point of a space; it is no matter whether the others would go together with it."""
    return replace(config, search={}).with_settings(settings)


def _by_trial(results: Sequence[TrialResult], runs_per_trial: int) -> list[Sequence[TrialResult]]:
    return [results[start : start + runs_per_trial] for start in range(0, len(results), runs_per_trial)]


def _row(trial: FrozenTrial, confirmed: Sequence[float] | None) -> dict[str, Any]:
    record, refused = trial.user_attrs.get("record", {}), refusal(trial)
    return {
        "number": trial.number,
        "state": trial.state.name.lower() if refused is None else "refused",
        "value": trial.value,
        "confirmed": statistics.fmean(confirmed) if confirmed else None,
        "epochs": record.get("epochs", 0),
        "seconds": record.get("seconds", 0.0),
        "refused": refused,
        "params": trial.params,
    }


def _rank(row: Mapping[str, Any]) -> tuple[float, float, int]:
    """Larger is better: confirmed ones first, by the mean of their further seeds; of equals the earlier one."""
    return (-1.0 if row["confirmed"] is None else row["confirmed"], row["value"], -row["number"])


def _comparable(config: Config, plan: Plan) -> dict[str, Any]:
    """What all trials of a study have in common."""
    settings = {key: value for key, value in config.to_dict().items() if key not in ("recipe", "source", "expected")}
    return settings | {"seeds-per-trial": plan.seeds_per_trial}


def _write(folder: Path, best: Config, rows: list[dict[str, Any]], result: Mapping[str, Any]) -> None:
    flat = [{key: value for key, value in row.items() if key != "params"} | row["params"] for row in rows]
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(dict.fromkeys(key for row in flat for key in row)))
    writer.writeheader()
    writer.writerows(flat)
    texts = {
        "trials.csv": table.getvalue(),
        "trials.json": json.dumps({**result, "trials": rows}, indent=1) + "\n",
        "best.toml": best.to_toml(),
    }
    for name, text in texts.items():
        write_whole(folder / name, text.encode(), again="the same command")


def _count_refused(states: Mapping[str, int], reason: str | None) -> str:
    finished = sum(states[state] for state in STATES if state != "fail")
    return f"{states['refused']} of {finished} trials could not be built: {reason}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
