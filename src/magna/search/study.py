"""The study of a search: Optuna keeps its trials in a database, for one process or for many machines.

Optuna is an optional package (the extra `search`) and imported when a study is opened.
"""

from __future__ import annotations

import json
import re
import threading
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote

from magna.config.spaces import split_key
from magna.config.toml import Range
from magna.errors import ArgumentError, DataError, MissingExtra
from magna.typing import Sampler

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, Trial

Refusal = Literal["refused", "too_large"]  # settings that give no model, or one that does not fit in memory

# A trial without a heartbeat for this long is drawn again.
HEARTBEAT_SECONDS, GRACE_SECONDS = 10, 45
FEWEST_TO_COMPARE = 10
_ATTEMPTS, _PAUSE_SECONDS = 4, 0.5
# Optuna warns that its heartbeats are new and meant for its own loop; they work with `ask` and `tell`.
_quiet = partial(warnings.catch_warnings, action="ignore")


class Study:
    """The trials of one search. Several processes may open the same study: none touches a running trial of another.

    Args:
        url: database, such as sqlite:///study.db or postgresql://user@host/name; made if it is new.
        name: name of the search in the database.
        space: key → list of values or `Range`.
        settings: everything that all trials share; a study with other settings is refused, except for drawn keys.
        sampler: "random" or "tpe".
        seed: seed of the sampler. The settings of a random trial depend on it and on the trial's number alone.
    """

    def __init__(
        self,
        url: str,
        name: str,
        space: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        sampler: Sampler = "random",
        seed: int = 0,
    ) -> None:
        self._optuna = import_optuna()
        self._space, self._sampler, self._seed = space, sampler, seed
        self._storage = self._open(url)
        with _quiet():
            self._study = self._optuna.create_study(
                storage=self._storage, study_name=name, direction="maximize", load_if_exists=True
            )
        self._study.sampler = self._make_sampler(len(self.trials()))
        settings = json.loads(json.dumps(settings))
        before = self._study.user_attrs.get("settings", settings)
        drawn = {part for key in space for part in split_key(key)}
        if differing := set(_differences(before, settings)) - drawn:
            fault = f"the study {name} was started with another {', '.join(sorted(differing))}"
            raise DataError(safe(url), fault, hint="the settings it was started with, or another out or storage")
        self._study.set_user_attr("settings", settings)

    def trials(self, *states: str) -> list[FrozenTrial]:
        """All trials, or those in the given states, in the order of their numbers."""
        trials = self._study.get_trials(deepcopy=False)
        return [trial for trial in trials if not states or trial.state.name in states]

    def finished(self) -> list[FrozenTrial]:
        """The trials that need no further work: complete, stopped early or refused."""
        return [trial for trial in self.trials() if is_finished(trial)]

    def counts(self) -> tuple[int, int]:
        """Numbers of finished and of running trials at the same moment."""
        trials = self.trials()
        # A process that was killed before it drew its settings leaves a trial without heartbeat, which never ends.
        running = [trial for trial in trials if trial.state.name == "RUNNING" and trial.params]
        return sum(map(is_finished, trials)), len(running)

    def best(self) -> list[FrozenTrial]:
        """The complete trials, best first."""
        return sorted(self.trials("COMPLETE"), key=lambda trial: (-(trial.value or 0.0), trial.number))

    def ask(self) -> Trial:
        """A trial to run: one that was given up, or a new one with its settings drawn."""
        with _quiet():
            trial: Trial = self._study.ask()
        self._storage.record_heartbeat(trial._trial_id)
        # Each number is given out once, so that no two processes draw the same; the next `ask` starts from it too.
        self._study.sampler = self._make_sampler(trial.number)
        for key, space in self._space.items():
            if not isinstance(space, Range):
                trial.suggest_categorical(key, space)
            elif isinstance(space.low, int):
                trial.suggest_int(key, space.low, int(space.high), step=int(space.step or 1), log=space.log)
            else:
                trial.suggest_float(key, space.low, space.high, step=space.step, log=space.log)
        return trial

    def report(self, trial: Trial, value: float, epoch: int) -> None:
        with self._unless_taken_over():
            trial.report(value, epoch)

    def values_at(self, epoch: int) -> list[float]:
        """Reported values of an epoch, without those of trials that were given up."""
        reports = (trial.intermediate_values for trial in self.trials() if trial.state.name != "FAIL")
        return [values[epoch] for values in reports if epoch in values]

    def end(self, trial: Trial, state: str, value: float | None = None, **attributes: Any) -> None:
        """Record the end of a trial; one that stopped early has its last reported value."""
        with self._unless_taken_over():
            for name, attribute in attributes.items():
                trial.set_user_attr(name, attribute)
            self._study.tell(trial, value, self._optuna.trial.TrialState[state], skip_if_finished=True)

    def give_up(self, trials: Iterable[Trial], again: bool) -> None:
        """Record trials that did not end; with `again` their settings will be asked for again."""
        for trial in trials:
            if again:
                self._study.enqueue_trial(trial.params)
            self.end(trial, "FAIL")

    def take_over(self) -> None:
        """Give up the trials of processes that have fallen silent; their settings will be asked for again."""
        with _quiet():
            self._optuna.storages.fail_stale_trials(self._study)

    @contextmanager
    def alive(self, trials: Sequence[Trial]) -> Iterator[None]:
        """Send heartbeats of running trials from a thread; trials may be added to the sequence."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(HEARTBEAT_SECONDS):
                # A database that is away for a moment does not end the beat.
                with suppress(self._optuna.exceptions.OptunaError, OSError):
                    for trial in list(trials):
                        self._storage.record_heartbeat(trial._trial_id)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @property
    def confirmed(self) -> dict[int, dict[str, list[Any]]]:
        """Number of a trial → its further seeds and their validation scores."""
        prefix = "confirmed-"
        attributes = self._study.user_attrs.items()
        return {int(key.removeprefix(prefix)): value for key, value in attributes if key.startswith(prefix)}

    def confirm(self, number: int, seeds: Sequence[int], valid: Sequence[float]) -> None:
        self._study.set_user_attr(f"confirmed-{number}", {"seeds": list(seeds), "valid": list(valid)})

    def importances(self) -> dict[str, float]:
        """Share of each searched key in the differences between trials; empty if the trials are too few."""
        values = [trial.value for trial in self.trials("COMPLETE")]
        if len(values) < FEWEST_TO_COMPARE or len(set(values)) == 1:
            return {}
        with _quiet():
            return dict(self._optuna.importance.get_param_importances(self._study))

    def _open(self, url: str) -> RDBStorage:
        from sqlalchemy.exc import DatabaseError

        # SQLite has one writer at a time: the others wait. Servers close connections that were idle during a batch.
        options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
        for attempt in range(_ATTEMPTS):
            try:
                with _quiet():
                    storage: RDBStorage = self._optuna.storages.RDBStorage(
                        url,
                        engine_kwargs=options,
                        heartbeat_interval=HEARTBEAT_SECONDS,
                        grace_period=GRACE_SECONDS,
                        heartbeat_stale_trial_callback=lambda study, trial: study.enqueue_trial(trial.params),
                    )
                return storage
            except Exception as error:  # a wrong URL, a missing driver, no database: each has a class of its own
                # Of processes that open a new database at the same moment, one makes its tables.
                if isinstance(error, DatabaseError) and attempt + 1 < _ATTEMPTS:
                    time.sleep(_PAUSE_SECONDS)
                    continue
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                allowed = "the URL of a database, such as sqlite:///study.db or postgresql://user:password@host/name"
                raise ArgumentError("storage", safe(url), f"{allowed} (it cannot be opened: {reason})") from error
        raise AssertionError

    def _make_sampler(self, number: int) -> BaseSampler:
        seed = zlib.crc32(f"{self._seed}/{number}".encode())
        name = "RandomSampler" if self._sampler == "random" else "TPESampler"
        sampler: BaseSampler = getattr(self._optuna.samplers, name)(seed=seed)
        return sampler

    def _unless_taken_over(self) -> suppress:
        # A process that slept too long finds its trials given up; another process runs their settings.
        return suppress(self._optuna.exceptions.UpdateFinishedTrialError)


def is_finished(trial: FrozenTrial) -> bool:
    return trial.state.name in ("COMPLETE", "PRUNED") or refusal_of(trial) is not None


def refusal_of(trial: FrozenTrial) -> tuple[Refusal, str] | None:
    """Kind and reason of the refusal of a trial; None if its settings could be trained."""
    return next(((kind, trial.user_attrs[kind]) for kind in get_args(Refusal) if kind in trial.user_attrs), None)


def file_url(path: Path) -> str:
    """The URL of an SQLite file, with letters quoted that mean something else in a URL.

    >>> file_url(Path("my sweep?/study.db"))
    'sqlite:///my sweep%3F/study.db'
    """
    return "sqlite:///" + re.sub(r"[%?{}]", lambda letter: quote(letter[0]), str(path))


def safe(url: str) -> str:
    """A URL without its password, and without its query, which may hold another.

    >>> safe("postgresql://me:p@ss@host:1/name?password=s@cret"), safe("postgresql://host:1/name?password=s@cret")
    ('postgresql://me:***@host:1/name', 'postgresql://host:1/name')
    """
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    user, _, host = place.rpartition("@")
    if not user and "@" in rest and "/" not in place:  # the question mark may be one of a password
        return f"{scheme}://***"
    name, colon, _ = user.partition(":")
    return f"{scheme}://{name}:***@{host}" if colon else f"{scheme}://{place}"


def import_optuna() -> Any:
    """Optuna, or the refusal that names its extra."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("a search", "Optuna", "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Keys at which two nested tables differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before.keys() | now.keys():
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}".lstrip("."))
    elif before != now:
        yield key
