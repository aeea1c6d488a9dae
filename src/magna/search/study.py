"""The study behind a search: Optuna keeps its trials in a database, for one process or for many machines.

Optuna is an optional package (the extra `search`): it is imported only where a study is opened.
"""

from __future__ import annotations

import errno
import json
import re
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote

from magna.config.schema import Range, split_key
from magna.errors import MissingExtra

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

Sampler = Literal["random", "tpe"]
Refusal = Literal["refused", "too_large"]  # settings that give no model, or one that does not fit in memory

# A trial whose process has not been heard of for so long is given up and drawn again.
HEARTBEAT_SECONDS, GRACE_SECONDS = 10, 45
FEWEST_TO_COMPARE = 10
_OPEN_AGAIN, _OPEN_SECONDS = 3, 0.5


class Study:
    """The trials of one search. Several processes may hold the same study: none touches a trial that another runs.

    Args:
        url: database, such as sqlite:///study.db or postgresql://user@host/name; made where it is new.
        name: name of the search inside the database.
        space: key → list of values or `Range`.
        settings: everything that makes trials comparable; a study with other ones is refused, but for what is drawn.
        defaults: what settings stand for that a study lacks because it is older than they are.
        sampler: "random" or "tpe".
        seed: of the sampler. The settings of a random trial depend on it and on the trial's number alone.
    """

    def __init__(
        self,
        url: str,
        name: str,
        space: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        defaults: Mapping[str, Any] | None = None,
        sampler: Sampler = "random",
        seed: int = 0,
    ):
        self._optuna = _import_optuna()
        self._space, self._sampler, self._seed = space, sampler, seed
        self._storage = self._open(url)
        self._undrawn: dict[int, float] = {}  # number of a trial without settings → when it was seen first
        given = json.loads(json.dumps(settings))
        held = self._find_or_make(name)
        self._study.sampler = self._make_sampler(len(self.trials()))
        differing = set() if held is None else set(_differences(_completed(held, defaults or {}), given))
        differing -= {drawn for key in space for drawn in split_key(key)}  # what a trial draws, it draws anyway
        if differing:
            raise ValueError(
                f"the study {name} in {safe(url)} was started with another {', '.join(sorted(differing))}; "
                "try the settings it was started with, or another --out or --storage"
            )
        self._study.set_user_attr("settings", given)

    def trials(self, *states: str) -> list[FrozenTrial]:
        """All trials, or those in the given states, in the order of their numbers."""
        found = self._study.get_trials(deepcopy=False)
        return [trial for trial in found if not states or trial.state.name in states]

    def finished(self) -> list[FrozenTrial]:
        """The trials that need no further work: complete, stopped early or refused."""
        return [trial for trial in self.trials() if is_finished(trial)]

    def counts(self) -> tuple[int, int]:
        """How many trials are finished and how many are being run, at one and the same moment."""
        trials = self.trials()
        return sum(map(is_finished, trials)), sum(trial.state.name == "RUNNING" for trial in trials)

    def best(self) -> list[FrozenTrial]:
        """The complete trials, best first."""
        return sorted(self.trials("COMPLETE"), key=lambda trial: (-(trial.value or 0.0), trial.number))

    def ask(self, new: bool = False) -> Trial:
        """A trial to run: one that was given up, or, always with `new`, a new one with its settings drawn."""
        while True:
            trial = self._begin(new)
            # Another process may have taken it for abandoned, so slow was this one: then the next.
            with self._unless_taken_over():
                self._draw(trial)
                return trial

    def report(self, trial: Trial, value: float, epoch: int) -> None:
        with self._unless_taken_over():
            trial.report(value, epoch)

    def values_at(self, epoch: int) -> list[float]:
        """What every trial that came as far as an epoch had reached there; one that was given up is tried again."""
        reports = (trial.intermediate_values for trial in self.trials() if trial.state.name != "FAIL")
        return [values[epoch] for values in reports if epoch in values]

    def complete(self, trial: Trial, value: float, record: Mapping[str, Any]) -> None:
        self._tell(trial, "COMPLETE", record, value)

    def prune(self, trial: Trial, record: Mapping[str, Any]) -> None:
        """Stopped early; its value is what it had reported last."""
        self._tell(trial, "PRUNED", record)

    def refuse(self, trial: Trial, kind: Refusal, reason: str) -> None:
        """Settings that cannot be trained; they are not asked for again."""
        with self._unless_taken_over():
            trial.set_user_attr(kind, reason)
        self._tell(trial, "FAIL", {})

    def give_up(self, trials: Iterable[Trial], again: bool) -> None:
        """Trials that did not come to an end; `again`: their settings will be asked for again."""
        for trial in trials:
            if again:
                self._study.enqueue_trial(trial.params)
            self._tell(trial, "FAIL", {})

    def take_over(self) -> None:
        """Give up the trials of processes that have fallen silent; their settings will be asked for again."""
        with _quiet():
            self._optuna.storages.fail_stale_trials(self._study)
        # Killed between being made and the first heartbeat, before anything was drawn: there is no beat to miss. When
        # it was made is written in the time of another machine, so what counts is how long this one has seen it.
        now, undrawn = time.monotonic(), [trial.number for trial in self.trials("RUNNING") if not trial.params]
        self._undrawn = {number: self._undrawn.get(number, now) for number in undrawn}
        for number, since in self._undrawn.items():
            if now - since > GRACE_SECONDS:
                self._study.tell(number, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)

    @contextmanager
    def alive(self, trials: Sequence[Trial]) -> Iterator[None]:
        """Let other processes know, from a thread, that these trials are being run; more may be added to them."""
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
        """Number of a trial → the further seeds it was trained with, and its validation accuracies."""
        prefix = "confirmed-"
        found = self._study.user_attrs
        return {int(key.removeprefix(prefix)): found[key] for key in found if key.startswith(prefix)}

    def confirm(self, number: int, seeds: Sequence[int], valid: Sequence[float]) -> None:
        self._study.set_user_attr(f"confirmed-{number}", {"seeds": list(seeds), "valid": list(valid)})

    def importances(self) -> dict[str, float]:
        """Share of each searched key in the differences between trials; empty where there are too few to tell."""
        values = [trial.value for trial in self.trials("COMPLETE")]
        if len(values) < FEWEST_TO_COMPARE or len(set(values)) == 1:
            return {}
        with _quiet():
            return dict(self._optuna.importance.get_param_importances(self._study))

    def _open(self, url: str) -> Any:
        again: Callable[[Any, FrozenTrial], None] = lambda study, trial: study.enqueue_trial(trial.params)  # noqa: E731
        # SQLite has one writer at a time: the others wait. Servers close connections that were idle during a batch.
        options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
        connect = partial(
            self._optuna.storages.RDBStorage,
            url,
            engine_kwargs=options,
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=again,
        )
        try:
            with _quiet():
                storage = _open_with_others(connect)
            if url.startswith("sqlite"):
                _write_ahead(storage.engine)
            return storage
        except Exception as error:  # a wrong URL, a missing driver, no connection, no database: each has its own class
            if _is_full(error):
                raise _no_room(url) from error
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"storage {safe(url)} cannot be opened ({reason}); allowed: the URL of a database, such as "
                "sqlite:///study.db or postgresql://user:password@host/name"
            ) from error

    def _find_or_make(self, name: str) -> dict[str, Any] | None:
        """Open the study of that name and give the settings it was started with; None where this process starts it."""
        create = partial(self._optuna.create_study, storage=self._storage, study_name=name, direction="maximize")
        with _quiet():
            try:
                # Of processes that start at the same moment one alone makes the study: its settings are the study's.
                self._study = create()
                return None
            except self._optuna.exceptions.DuplicatedStudyError:
                self._study = create(load_if_exists=True)
        for _ in range(_OPEN_AGAIN):
            if "settings" in self._study.user_attrs:
                break
            time.sleep(_OPEN_SECONDS)  # it writes them down next, or was killed before it could
        return self._study.user_attrs.get("settings")

    def _begin(self, new: bool) -> Trial:
        with _quiet():
            if new and self._sampler == "random":
                # What Optuna's `ask` does, without its look at all unfinished trials: there are hundreds in a batch.
                identity = self._study._storage.create_new_trial(self._study._study_id)
                trial = self._optuna.trial.Trial(self._study, identity)
            else:
                trial = self._study.ask()
        self._storage.record_heartbeat(trial._trial_id)
        # Numbers are given out once, so no two processes draw the same; the next `ask` starts from this one too.
        self._study.sampler = self._make_sampler(trial.number)
        return trial

    def _draw(self, trial: Trial) -> None:
        for key, space in self._space.items():
            if not isinstance(space, Range):
                trial.suggest_categorical(key, space)
            elif isinstance(space.low, int):
                trial.suggest_int(key, space.low, int(space.high), step=int(space.step or 1), log=space.log)
            else:
                trial.suggest_float(key, space.low, space.high, step=space.step, log=space.log)

    def _make_sampler(self, number: int) -> BaseSampler:
        seed = zlib.crc32(f"{self._seed}/{number}".encode())
        samplers = self._optuna.samplers
        return samplers.RandomSampler(seed) if self._sampler == "random" else samplers.TPESampler(seed=seed)

    def _tell(self, trial: Trial, state: str, record: Mapping[str, Any], value: float | None = None) -> None:
        with self._unless_taken_over():
            if record:
                trial.set_user_attr("record", dict(record))
            self._study.tell(trial, value, self._optuna.trial.TrialState[state], skip_if_finished=True)

    def _unless_taken_over(self) -> suppress:
        # A process that slept too long finds its trials given up; another one has run their settings.
        return suppress(self._optuna.exceptions.UpdateFinishedTrialError)


def is_finished(trial: FrozenTrial) -> bool:
    return trial.state.name in ("COMPLETE", "PRUNED") or refusal(trial) is not None


def refusal(trial: FrozenTrial) -> tuple[Refusal, str] | None:
    """Why the settings of a trial could not be trained; None where they could."""
    return next(((kind, trial.user_attrs[kind]) for kind in get_args(Refusal) if kind in trial.user_attrs), None)


def file_url(path: Path) -> str:
    """The URL of an SQLite file; what means something else in a URL is written in its code.

    >>> file_url(Path("my sweep?/study.db"))
    'sqlite:///my sweep%3F/study.db'
    """
    return "sqlite:///" + re.sub(r"[%?{}]", lambda found: quote(found[0]), str(path))


def safe(url: str) -> str:
    """A URL without its password, and without the values of its query, as one of them may be a password too.

    >>> safe("postgresql://me:secret@host/name?sslpassword=secret")
    'postgresql://me:***@host/name?sslpassword=***'
    """
    url = re.sub(r"://([^:/]*):.*@", r"://\1:***@", url)
    return re.sub(r"([?&][^=&]*)=[^&]*", r"\1=***", url)


@contextmanager
def telling_full_disk(url: str) -> Iterator[None]:
    """A database that has no room left says so, as any other file does."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or not _is_full(error):
            raise
        raise _no_room(url) from error


def _no_room(url: str) -> OSError:
    words = "could not be written (the disk is full); what was there before is kept: make room, then the same command"
    return OSError(errno.ENOSPC, f"{safe(url)} {words}")


def _is_full(error: BaseException | None) -> bool:
    """Whether an error began with SQLite finding no room."""
    while error is not None:
        if getattr(getattr(error, "orig", None), "sqlite_errorname", "") == "SQLITE_FULL":
            return True
        error = error.__cause__ or error.__context__
    return False


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("a search", "Optuna", "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return sys.modules["optuna"]


def _open_with_others(connect: Callable[[], Any]) -> Any:
    """Of processes that find a new database at the same moment, one makes its tables; the others come again."""
    from sqlalchemy.exc import DatabaseError

    for _ in range(_OPEN_AGAIN):
        try:
            return connect()
        except DatabaseError:
            time.sleep(_OPEN_SECONDS)
    return connect()


def _write_ahead(engine: Any) -> None:
    """Drawing a trial is a dozen small transactions: SQLite shall not wait for the disk after each of them."""
    from sqlalchemy import event

    def connected(connection: Any, _: Any = None) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    event.listen(engine, "connect", connected)
    with engine.connect() as first:
        connected(first.connection)


@contextmanager
def _quiet() -> Iterator[None]:
    """Heartbeats work well beside `ask` and `tell`, but Optuna warns that they are new and meant for its own loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _completed(held: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, with the defaults of what they lack."""
    tables = {name: value for name, value in held.items() if isinstance(value, dict)}
    return {**defaults, **held} | {name: _completed(table, defaults.get(name, {})) for name, table in tables.items()}


def _differences(held: Any, given: Any, key: str = "") -> Iterator[str]:
    """Keys at which two nested tables differ."""
    if isinstance(held, dict) and isinstance(given, dict):
        for name in held.keys() | given.keys():
            yield from _differences(held.get(name), given.get(name), f"{key}.{name}".lstrip("."))
    elif held != given:
        yield key
