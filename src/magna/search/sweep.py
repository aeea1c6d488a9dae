"""A search over a recipe's space: trials are drawn in batches, train together and are judged by validation alone."""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from magna.config.atomic_files import check_free, make_folder
from magna.config.schema import SEARCH_SEEDS, Config, split_key
from magna.search.pruning import Watch, validated_seldom
from magna.search.report import FILES, judge, name_seeds, recipe_of, trial_rows, write_files
from magna.search.study import GRACE_SECONDS, Sampler, Study, file_url, safe, telling_full_disk
from magna.tasks import LinkPrediction, Task, make_task
from magna.tasks.metrics import headline
from magna.training.run_folder import pick_device
from magna.training.sequential import train_in_turn
from magna.training.trial_batch import OnReport, TrialResult
from magna.training.trials import train_trials

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

Say = Callable[[str], None]
OnTrial = Callable[[int, list[TrialResult] | str], None]

BATCH = {"random": {"cpu": 8, "cuda": 256}, "tpe": {"cpu": 8, "cuda": 32}}  # TPE learns from batch to batch
WAIT_SECONDS = 2.0
_CONTENT = "content of its data"  # which may change where its name does not


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
        prune: stop the worse half of the trials after an eighth of the epochs, after a quarter and after half.
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
    if config.task.name == "link_prediction" and plan.batch not in (None, 1):
        raise ValueError(f"batch is {plan.batch}; allowed for link prediction: 1, as its trials train in turn")
    where = torch.device(pick_device(device))
    task = make_task(config, data_dir, where)
    folder = make_folder(out, "--out")
    if storage is None and not (folder / "study.db").exists():
        check_free(folder, FILES, "no study (no study.db)", "--out")
    if (other := recipe_of(folder)) not in (None, config.recipe):
        raise ValueError(
            f"{folder} holds what a search of {other} found, and this is one of {config.recipe}; allowed: a folder for "
            "each; try another --out"
        )
    url = storage if storage is not None else file_url(folder / "study.db")
    # Trials of link prediction share no batch: the next one may learn from the last.
    batch = 1 if isinstance(task, LinkPrediction) else plan.batch or BATCH[plan.sampler][where.type]
    comparable = _comparable(config, plan, task)
    with telling_full_disk(url):
        study = Study(
            url,
            config.recipe,
            config.search,
            comparable,
            # A study of before the content of its data was kept is taken for one of the same.
            defaults=_trained(Config()) | {_CONTENT: comparable[_CONTENT]},
            sampler=plan.sampler,
            seed=plan.seed,
        )
        there = len(study.finished())
        say(f"{task.dataset} on {where.type}: {there} of {plan.trials} trials are there · {safe(url)}")
        if plan.prune and (seldom := validated_seldom(config.train)):
            say(f"note: {seldom}")
        _search(config, plan, task, study, batch, say)
        _confirm(config, plan, task, study, batch, say)

    seeds = list(plan.further_seeds) if plan.confirm else []
    rows = trial_rows(study, seeds)
    result = {
        "task": config.task.name,
        "dataset": task.dataset,
        "notes": list(task.notes),
        "recipe": config.recipe,
        "device": where.type,
        "out": str(folder),
        "storage": safe(url),
        "sampler": plan.sampler,
        "seed": plan.seed,
        "search_seeds": list(plan.search_seeds),
        "confirm_seeds": seeds,
        **judge(rows, top),
        "importances": study.importances(),
    }
    write_files(folder, config, rows, result)
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
    ended: set[int] = set()  # places in the batch

    def record(place: int, runs: list[TrialResult] | str) -> None:
        ended.add(place)
        if isinstance(runs, str):
            study.refuse(trials[place], "too_large", runs)
            return
        valid = [run.score[task.METRIC] for run in runs]
        found = {
            "valid": valid,
            "epochs": max(run.epochs for run in runs),
            "seconds": sum(run.seconds for run in runs),
        }
        if place in watch.stopped:
            study.prune(trials[place], found)
        else:
            study.complete(trials[place], statistics.fmean(valid), found)

    try:
        with study.alive(trials):
            given_up = len(study.trials("WAITING"))
            for place in range(count):
                trial = study.ask(new=place >= given_up)
                if (reason := _refusal(config, trial.params, task)) is None:
                    trials.append(trial)
                else:
                    study.refuse(trial, "refused", reason)
            # Every run of a trial stands beside the others of that trial, as `Watch` expects.
            configs = _with_seeds(config, (trial.params for trial in trials), plan.search_seeds)
            watch = Watch(study, trials, plan.seeds_per_trial, config.train.epochs, plan.prune, say, task.METRIC)
            _train(configs, task, plan.seeds_per_trial, record, watch.every, watch)
    except BaseException as error:
        left = [trial for place, trial in enumerate(trials) if place not in ended]
        study.give_up(left, again=isinstance(error, KeyboardInterrupt))
        raise
    finished, best = len(study.finished()), study.best()
    so_far = f"best {headline({task.METRIC: best[0].value or 0.0})} (trial {best[0].number}) · " if best else ""
    say(f"{finished}/{plan.trials} trials · {so_far}{len(trials)} in {time.monotonic() - started:.1f} s")


def _confirm(config: Config, plan: Plan, task: Task, study: Study, batch: int, say: Say) -> None:
    """Train the best trials again with further seeds."""
    seeds = list(plan.further_seeds)
    candidates = study.best()[: plan.confirm]
    pending = _unconfirmed(candidates, study, seeds)
    if pending:
        say(f"training the {len(candidates)} best again with {name_seeds(seeds)}")
    size = max(1, batch // len(seeds))
    parts = [pending[start : start + size] for start in range(0, len(pending), size)]
    # Each process begins elsewhere and leaves out what others have done meanwhile.
    for part in random.sample(parts, len(parts)):
        _confirm_part(config, _unconfirmed(part, study, seeds), seeds, task, study, say)


def _confirm_part(
    config: Config, trials: Sequence[FrozenTrial], seeds: Sequence[int], task: Task, study: Study, say: Say
) -> None:
    def record(place: int, runs: list[TrialResult] | str) -> None:
        number = trials[place].number
        if isinstance(runs, str):
            say(f"trial {number} is not confirmed: {runs}")
        else:
            study.confirm(number, seeds, [run.score[task.METRIC] for run in runs])

    _train(_with_seeds(config, (trial.params for trial in trials), seeds), task, len(seeds), record)


def _unconfirmed(trials: Iterable[FrozenTrial], study: Study, seeds: list[int]) -> list[FrozenTrial]:
    """Those that were not yet trained again with these seeds."""
    held = study.confirmed
    return [trial for trial in trials if held.get(trial.number, {}).get("seeds") != seeds]


def _refusal(config: Config, settings: Mapping[str, Any], task: Task) -> str | None:
    """Why settings give no model; None where they do."""
    try:
        one = config.with_settings(settings)
        task = task.with_config(one) if isinstance(task, LinkPrediction) else task
        with torch.device("meta"):  # takes no memory, draws no number
            task.make_model(one.model)
    except ValueError as error:
        return str(error)
    return None


def _train(
    configs: Sequence[Config],
    task: Task,
    runs_per_trial: int,
    on_trial: OnTrial,
    report_every: int = 25,
    on_report: OnReport | None = None,
) -> None:
    """Train the runs of each trial; `on_trial` gets them, or why they do not fit in memory, as soon as all have ended,
    so that a stop costs no trial that was done.
    """
    held: dict[int, TrialResult] = {}
    too_large: dict[int, str] = {}

    def on_results(results: dict[int, TrialResult]) -> None:
        held.update(results)
        for place in sorted({number // runs_per_trial for number in results}):
            runs = [held[number] for number in runs_of(place) if number in held]
            if len(runs) == runs_per_trial:
                on_trial(place, runs)

    def runs_of(place: int) -> range:
        return range(place * runs_per_trial, (place + 1) * runs_per_trial)

    heard: dict[str, Any] = {"report_every": report_every, "on_report": on_report, "on_results": on_results}
    if isinstance(task, LinkPrediction):
        train_in_turn(configs, task, **heard, too_large=too_large)
    else:
        train_trials(configs, task, **heard, too_large=too_large)
    for place in sorted({number // runs_per_trial for number in too_large}):
        on_trial(place, next(too_large[number] for number in runs_of(place) if number in too_large))


def _with_seeds(config: Config, settings: Iterable[Mapping[str, Any]], seeds: Sequence[int]) -> list[Config]:
    return [one.with_seed(seed) for one in (config.with_settings(each) for each in settings) for seed in seeds]


def _comparable(config: Config, plan: Plan, task: Task) -> dict[str, Any]:
    """What all trials of a study have in common."""
    content = hashlib.sha256(json.dumps(task.schema, sort_keys=True).encode()).hexdigest()[:16]
    return _trained(config) | {"seeds-per-trial": plan.seeds_per_trial, _CONTENT: content}


def _trained(config: Config) -> dict[str, Any]:
    return {key: value for key, value in config.to_dict().items() if key not in ("recipe", "source", "expected")}
