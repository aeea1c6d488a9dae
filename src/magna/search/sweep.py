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
from magna.config.schema import SEARCH_SEEDS, Config, make_config
from magna.config.spaces import split_key
from magna.errors import ArgumentError, DataError
from magna.search.report import FILES, judge, name_seeds, recipe_of, trial_rows, write_files
from magna.search.runs import Watch, fault_of, note_on_validation, train_runs, with_seeds
from magna.search.study import GRACE_SECONDS, Study, file_url, import_optuna, safe
from magna.tasks import Task, make_task
from magna.tasks.metrics import METRIC_FORMS
from magna.training.loop import TrialResult
from magna.training.run_folder import pick_device
from magna.typing import Sampler

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

Say = Callable[[str], None]

BATCH = {"random": {"cpu": 8, "cuda": 256}, "tpe": {"cpu": 8, "cuda": 32}}  # TPE learns from batch to batch
WAIT_SECONDS = 2.0
_LEAST = {"trials": 1, "seeds_per_trial": 1, "batch": 1, "confirm": 0, "confirm_seeds": 1, "seed": 0}


@dataclass(frozen=True)
class Plan:
    """Options of a search.

    Args:
        trials: finished trials in total, with those of earlier calls, of other machines, and of refused settings.
        sampler: "random", or "tpe", which learns from the trials so far.
        seed: seed of the sampler.
        seeds_per_trial: search seeds of each trial; their mean counts.
        batch: trials drawn and trained at once; None: as `BATCH` says.
        prune: stop the worse half of the trials after an eighth of the epochs, after a quarter and after half.
        confirm: number of the best trials that train again with further search seeds, which decide; 0: none. A good
            result with one seed on a few hundred nodes is often luck.
        confirm_seeds: number of further seeds.
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
        for name, low in _LEAST.items():
            if (value := getattr(self, name)) is not None and value < low:
                raise ArgumentError(name, value, f"{low} or more")
        most = len(SEARCH_SEEDS) - self.seeds_per_trial
        if self.confirm_seeds > most:
            raise ArgumentError("confirm_seeds", self.confirm_seeds, f"up to {most}, the search seeds that are left")

    @property
    def search_seeds(self) -> Sequence[int]:
        return SEARCH_SEEDS[: self.seeds_per_trial]

    @property
    def further_seeds(self) -> Sequence[int]:
        return SEARCH_SEEDS[self.seeds_per_trial : self.seeds_per_trial + self.confirm_seeds]


@dataclass(frozen=True)
class _Search:
    """Arguments that all steps of a search share."""

    config: Config
    plan: Plan
    task: Task
    study: Study
    batch: int
    say: Say


def sweep(
    what: Config | str | Path | None,
    plan: Plan,
    *,
    settings: Mapping[str, Any] | None = None,
    out: str | Path,
    storage: str | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    top: int = 5,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Search a recipe's space, write `best.toml`, `trials.csv` and `trials.json`, and return the best trials.

    `what` and `settings` are those of :func:`magna.train`.

    The study is kept in `out/study.db` or at the URL `storage`. Called again, it continues to `plan.trials` trials.
    """
    config = make_config(what, settings=settings)
    _check(config, plan)
    import_optuna()  # refuses a missing package before the data is read
    where = torch.device(pick_device(device))
    task = make_task(config, data_dir, where)
    folder = _folder(config, out, storage)
    url = storage if storage is not None else file_url(folder / "study.db")
    shared = _comparable(config, plan, task)
    study = Study(url, config.recipe, config.search, shared, sampler=plan.sampler, seed=plan.seed)
    say(f"{task.dataset} on {where.type}: {len(study.finished())} of {plan.trials} trials are done · {safe(url)}")
    if plan.prune and (note := note_on_validation(config.train)):
        say(f"note: {note}")
    # Where trials share no batch, the next one may learn from the last.
    batch = plan.batch or BATCH[plan.sampler][where.type] if config.task.SHARES_BATCH else 1
    search = _Search(config, plan, task, study, batch, say)
    _run_trials(search)
    _confirm(search)

    seeds = list(plan.further_seeds) if plan.confirm else []
    rows = trial_rows(study, seeds)
    result = {
        "task": config.task.name,
        "metric": task.metric,
        "dataset": task.dataset,
        "notes": list(task.notes(config)),
        "recipe": config.recipe,
        "device": where.type,
        "out": str(folder),
        "storage": safe(url),
        "sampler": plan.sampler,
        "seed": plan.seed,
        "search_seeds": list(plan.search_seeds),
        "confirm_seeds": seeds,
        **judge(rows, top, task.metric),
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
        if searched := [name for name in split_key(key) if name not in fixed]:
            space[", ".join(searched)] = values
    return replace(config, search=space)


def _check(config: Config, plan: Plan) -> None:
    if not config.search:
        raise ArgumentError("recipe", config.recipe, "a recipe with a [search] table; this one has nothing to search")
    if not config.task.SHARES_BATCH and plan.batch not in (None, 1):
        raise ArgumentError("batch", plan.batch, f"1 for {config.task.title()}, whose trials train in turn")


def _folder(config: Config, out: str | Path, storage: str | None) -> Path:
    """The folder of the results; one with the files of others is refused."""
    folder = make_folder(out, "out")
    if storage is None and not (folder / "study.db").exists():
        check_free(folder, FILES, "no study (no study.db)", "out")
    if (other := recipe_of(folder)) not in (None, config.recipe):
        fault = f"holds the results of a search of {other}, and this is one of {config.recipe}"
        raise DataError(folder, fault, allowed="a folder for each", hint="another out")
    return folder


def _run_trials(search: _Search) -> None:
    """Run trials until there are enough, and wait for those that run elsewhere."""
    waiting = False
    while True:
        search.study.take_over()
        finished, elsewhere = search.study.counts()
        missing = search.plan.trials - finished - elsewhere
        if missing > 0:
            _run_batch(search, min(missing, search.batch))
        elif not elsewhere:
            return
        else:
            if not waiting:
                count = "1 trial" if elsewhere == 1 else f"{elsewhere} trials"
                search.say(f"waiting for {count} of another process, or {GRACE_SECONDS} s without its heartbeat")
            time.sleep(WAIT_SECONDS)
        waiting = missing <= 0


def _run_batch(search: _Search, count: int) -> None:
    config, plan, task, study = search.config, search.plan, search.task, search.study
    started = time.monotonic()
    trials: list[Trial] = []
    ended: set[int] = set()  # places in the batch

    def record(place: int, runs: list[TrialResult] | str) -> None:
        ended.add(place)
        if isinstance(runs, str):
            study.end(trials[place], "FAIL", too_large=runs)
            return
        valid = _scores(runs, task)
        seconds, epochs = sum(run.seconds for run in runs), max(run.epochs for run in runs)
        state, value = ("PRUNED", None) if place in watch.stopped else ("COMPLETE", statistics.fmean(valid))
        study.end(trials[place], state, value, record={"valid": valid, "epochs": epochs, "seconds": seconds})

    try:
        with study.alive(trials):
            for _ in range(count):
                trial = study.ask()
                if (reason := fault_of(config, trial.params, task)) is None:
                    trials.append(trial)
                else:
                    study.end(trial, "FAIL", refused=reason)
            # The runs of a trial follow one another, as `Watch` expects.
            configs = with_seeds(config, (trial.params for trial in trials), plan.search_seeds)
            watch = Watch(study, trials, plan.seeds_per_trial, config.train.epochs, plan.prune, search.say, task.metric)
            train_runs(configs, task, plan.seeds_per_trial, record, watch.every, watch)
    except BaseException as error:
        running = [trial for place, trial in enumerate(trials) if place not in ended]
        study.give_up(running, again=isinstance(error, KeyboardInterrupt))
        raise
    finished, best = len(study.finished()), study.best()
    form = METRIC_FORMS[task.metric]
    so_far = f"best {form.text(form.score(best[0].value or 0.0))} (trial {best[0].number}) · " if best else ""
    search.say(f"{finished}/{plan.trials} trials · {so_far}{len(trials)} in {time.monotonic() - started:.1f} s")


def _scores(runs: Iterable[TrialResult], task: Task) -> list[float]:
    """The validation score of each run, larger is better; a run that diverged has no other metric."""
    form = METRIC_FORMS[task.metric]
    return [form.score(run.valid[task.metric]) for run in runs]


def _confirm(search: _Search) -> None:
    """Train the best trials again with further seeds."""
    seeds = list(search.plan.further_seeds)
    candidates = search.study.best()[: search.plan.confirm]
    pending = _unconfirmed(candidates, search.study, seeds)
    if pending:
        search.say(f"training the {len(candidates)} best again with {name_seeds(seeds)}")
    size = max(1, search.batch // len(seeds))
    parts = [pending[start : start + size] for start in range(0, len(pending), size)]
    # Each process takes the parts in an order of its own, and leaves out what others have finished.
    for part in random.sample(parts, len(parts)):
        trials = _unconfirmed(part, search.study, seeds)

        def record(place: int, runs: list[TrialResult] | str, trials: Sequence[FrozenTrial] = trials) -> None:
            number = trials[place].number
            if isinstance(runs, str):
                search.say(f"trial {number} is not confirmed: {runs}")
            else:
                search.study.confirm(number, seeds, _scores(runs, search.task))

        configs = with_seeds(search.config, (trial.params for trial in trials), seeds)
        train_runs(configs, search.task, len(seeds), record)


def _unconfirmed(trials: Iterable[FrozenTrial], study: Study, seeds: list[int]) -> list[FrozenTrial]:
    """Trials that were not yet trained again with these seeds."""
    confirmed = study.confirmed
    return [trial for trial in trials if confirmed.get(trial.number, {}).get("seeds") != seeds]


def _comparable(config: Config, plan: Plan, task: Task) -> dict[str, Any]:
    """Settings that all trials of a study share, and a mark of the data behind their name."""
    trained = {key: value for key, value in config.to_dict().items() if key not in ("recipe", "source", "expected")}
    content = hashlib.sha256(json.dumps(task.schema, sort_keys=True).encode()).hexdigest()[:16]
    return trained | {"seeds_per_trial": plan.seeds_per_trial, "content of its data": content}
