"""Trials of a study: their settings, a killed process, and two processes on one study."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("optuna", reason="Optuna is not installed (the extra search)")

from optuna.storages._rdb.models import BaseModel
from sqlalchemy.exc import IntegrityError

from magna.config.toml import Range
from magna.search import study as study_module
from magna.search.study import Study, refusal_of, safe

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SPACE = {
    "model.K": Range(2, 10),
    "train.lr": Range(1e-4, 1e-1, log=True),
    "model.alpha": Range(0.1, 0.5, step=0.1),
    "model.top_k": [3, 5, None],
    "model.feed_forward": [True, False],
}
IN_MEMORY = "sqlite:///:memory:"


def _study(folder: Path, **arguments: Any) -> Study:
    return Study(f"sqlite:///{folder / 'study.db'}", "test", SPACE, {"space": {"a": 1}}, **arguments)


def test_values_are_from_the_space() -> None:
    study = Study(IN_MEMORY, "test", SPACE, {})
    drawn = [study.ask().params for _ in range(12)]
    assert len({params["train.lr"] for params in drawn}) == 12
    for params in drawn:
        assert list(params) == list(SPACE)
        assert params["model.K"] in range(2, 11) and isinstance(params["model.K"], int)
        assert 1e-4 <= params["train.lr"] <= 1e-1
        assert any(abs(params["model.alpha"] - tenth / 10) < 1e-9 for tenth in range(1, 6))
        assert params["model.top_k"] in (3, 5, None) and params["model.feed_forward"] in (True, False)


def test_a_random_trial_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    whole = Study(IN_MEMORY, "test", SPACE, {})
    drawn = [whole.ask().params for _ in range(5)]
    # Two processes share a study, and a third continues.
    first, second = _study(tmp_path), _study(tmp_path)
    shared = [first.ask().params, second.ask().params, second.ask().params, first.ask().params]
    shared += [_study(tmp_path).ask().params]
    assert shared == drawn
    assert Study(IN_MEMORY, "test", SPACE, {}, seed=1).ask().params != drawn[0]


def test_tpe_learns() -> None:
    study = Study(IN_MEMORY, "test", {"train.lr": Range(0.0, 1.0)}, {}, sampler="tpe")
    for _ in range(5):
        for trial in [study.ask() for _ in range(6)]:
            study.end(trial, "COMPLETE", -abs(trial.params["train.lr"] - 0.7))
    late = [trial.params["train.lr"] for trial in study.trials()[18:]]
    assert sum(abs(value - 0.7) < 0.2 for value in late) > len(late) / 2
    assert study.importances() == {"train.lr": pytest.approx(1.0)}


def test_other_settings_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    study = _study(tmp_path)
    study.end(study.ask(), "COMPLETE", 0.5, record={"epochs": 3})
    with pytest.raises(ValueError, match=r"another space\.a; try"):
        Study(f"sqlite:///{tmp_path / 'study.db'}", "test", SPACE, {"space": {"a": 2}})
    (trial,) = _study(tmp_path).trials()
    assert (trial.value, trial.user_attrs) == (0.5, {"record": {"epochs": 3}})


def test_drawn_settings_may_differ_in_the_recipe(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    space = {"model.K, model.heads": [2, 4], "train.lr": [0.1]}
    Study(url, "test", space, {"model": {"K": 2, "heads": 2, "alpha": 0.1}, "train": {"lr": 0.1}})
    Study(url, "test", space, {"model": {"K": 4, "heads": 4, "alpha": 0.1}, "train": {"lr": 0.2}})
    with pytest.raises(ValueError, match=r"another model\.alpha;"):
        Study(url, "test", space, {"model": {"K": 4, "heads": 4, "alpha": 0.2}, "train": {"lr": 0.2}})


def test_a_refused_trial_counts_and_is_not_drawn_again() -> None:
    study = Study(IN_MEMORY, "test", SPACE, {})
    refused, given_up = study.ask(), study.ask()
    study.end(refused, "FAIL", refused="heads is 3")
    study.give_up([given_up], again=False)
    assert [(trial.number, refusal_of(trial)) for trial in study.finished()] == [(0, ("refused", "heads is 3"))]
    assert study.trials("FAIL") == study.trials() and study.best() == []
    assert study.ask().params not in (refused.params, given_up.params)


def test_a_trial_that_ends_while_trials_are_counted_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(IN_MEMORY, "test", SPACE, {})
    trial, trials = study.ask(), study.trials

    def ends_after_a_look(*states: str) -> Sequence[FrozenTrial]:
        before = trials(*states)
        study.end(trial, "COMPLETE", 0.5)
        return before

    monkeypatch.setattr(study, "trials", ends_after_a_look)
    assert sum(study.counts()) == 1


def _make_older(study: Study) -> None:
    """As if much time had gone by since the last heartbeats."""
    with study._storage.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-2 hours')")


def _heartbeats(study: Study) -> list[str]:
    with study._storage.engine.begin() as connection:
        return [row[0] for row in connection.exec_driver_sql("SELECT heartbeat FROM trial_heartbeats")]


def test_a_silent_process_loses_its_trials_and_a_living_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_module, "GRACE_SECONDS", 3600)
    monkeypatch.setattr(study_module, "HEARTBEAT_SECONDS", 1)
    study, other = _study(tmp_path), _study(tmp_path)
    trials = [other.ask() for _ in range(2)]
    with other.alive(trials):
        _make_older(study)
        old = _heartbeats(study)
        while set(_heartbeats(study)) & set(old):  # until it has been heard of again
            time.sleep(0.1)
        study.take_over()
        assert len(study.trials("RUNNING")) == 2
    study.take_over()
    assert len(study.trials("RUNNING")) == 2  # nobody can know so soon
    _make_older(study)
    study.take_over()
    assert len(study.trials("RUNNING")) == 0
    assert [study.ask().params for _ in range(2)] == [trial.params for trial in trials]


def test_a_trial_without_settings_is_not_waited_for(tmp_path: Path) -> None:
    study = _study(tmp_path)
    with pytest.warns(UserWarning, match="Heartbeat"):
        study._study.ask()  # as a process that is killed before it draws
    assert study.counts() == (0, 0) and len(study.trials("RUNNING")) == 1


def test_a_process_that_was_not_the_first_to_make_the_tables_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, make_tables = iter([True]), BaseModel.metadata.create_all

    def late(engine: Any) -> None:
        make_tables(engine)
        if next(first, False):
            raise IntegrityError("INSERT INTO alembic_version", {}, Exception("UNIQUE constraint failed"))

    monkeypatch.setattr(BaseModel.metadata, "create_all", late)
    monkeypatch.setattr(study_module, "_PAUSE_SECONDS", 0.0)
    assert _study(tmp_path).trials() == []


def test_a_process_that_slept_too_long_harms_nothing(tmp_path: Path) -> None:
    study, other = _study(tmp_path), _study(tmp_path)
    trial = study.ask()
    other._study.tell(trial.number, state=other._optuna.trial.TrialState.FAIL)
    study.report(trial, 0.3, 5)
    study.end(trial, "COMPLETE", 0.5, record={"epochs": 5})
    assert study.finished() == []


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/at/all/study.db",
        "no url",
        "oracle9://host/name",
        "postgresql://me:secret@127.0.0.1:1/name",
        "postgresql://127.0.0.1:1/name?user=me&password=secret",
    ],
)
def test_a_storage_that_cannot_be_opened_is_one_error(url: str) -> None:
    with pytest.raises(ValueError, match="cannot be opened") as caught:
        Study(url, "test", SPACE, {})
    assert "secret" not in str(caught.value)
    assert "sqlite:///study.db" in str(caught.value)


def test_without_optuna_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"a search needs Optuna.*\[search\]"):
        _study(tmp_path)


def test_a_password_is_not_shown() -> None:
    assert safe("mysql+pymysql://me:p@ss@host/db") == "mysql+pymysql://me:***@host/db"
    assert safe("sqlite:///a/b.db") == "sqlite:///a/b.db"
    assert safe("postgresql://host:1/db?user=me&password=secret") == "postgresql://host:1/db"
    assert safe("postgresql://host:1/db?password=s@cret") == "postgresql://host:1/db"
    assert safe("postgresql://me:se?cret@host/db") == "postgresql://***"
