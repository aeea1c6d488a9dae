"""Results of a search: its trials, the chosen recipe, the files and the printed table."""

from __future__ import annotations

import csv
import datetime
import io
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magna.config.atomic_files import write_whole
from magna.config.schema import Config
from magna.config.spaces import split_key
from magna.config.tables import ExpectedOptions, SearchRun
from magna.search.study import Refusal, Study, refusal_of
from magna.tasks.metrics import METRIC_FORMS

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial
    from rich.console import Console

_REFUSALS: dict[Refusal, str] = {"refused": "could not be built", "too_large": "did not fit in memory"}
FILES = ("trials.csv", "trials.json", "best.toml")
STATES = ("complete", "pruned", *_REFUSALS, "fail")


def trial_rows(study: Study, confirm_seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each trial by number; `confirmed` is the mean over exactly these further seeds."""
    confirmed = {number: runs["valid"] for number, runs in study.confirmed.items() if runs["seeds"] == confirm_seeds}
    return [_row(trial, confirmed.get(trial.number)) for trial in study.trials()]


def judge(rows: Sequence[Mapping[str, Any]], top: int, metric: str) -> dict[str, Any]:
    """Numbers of trials by their state, and the best trials. A `value` is larger for a better trial."""
    states = {state: sum(row["state"] == state for row in rows) for state in STATES}
    refused = {kind: next((row["refused"] for row in rows if row["state"] == kind), None) for kind in _REFUSALS}
    if any(refused.values()) and not states["complete"] + states["pruned"]:
        raise ValueError(f"{'; '.join(_count_refused(states, refused))}; try other settings, with another out")
    ranked = sorted((row for row in rows if row["state"] == "complete"), key=_rank, reverse=True)
    if not ranked:
        raise RuntimeError("no trial was trained to its end; try more trials")
    form = METRIC_FORMS[metric]
    if not any(row["value"] > form.score(form.worst) for row in ranked):
        raise RuntimeError("every trial diverged; try smaller values of train.lr, with another out")
    return {
        "states": states,
        "refused": refused,
        "confirmed": sum(row["confirmed"] is not None for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
        "best": ranked[0],
        "top": ranked[:top],
    }


def best_recipe(config: Config, result: Mapping[str, Any]) -> Config:
    """The recipe with the settings that the search chose, and an entry of the search."""
    best, states = result["best"], result["states"]
    untrained = " and ".join(f"{states[kind]} that {text}" for kind, text in _REFUSALS.items() if states[kind])
    form = METRIC_FORMS[result["metric"]]
    value = form.score(best["value"])
    choice = f"trial {best['number']} with {name_seeds(result['search_seeds'])}: validation {form.words} {value:.4f}"
    if best["confirmed"] is not None:
        seeds = name_seeds(result["confirm_seeds"])
        choice += f"; best of {result['confirmed']} trained again with {seeds}: {form.score(best['confirmed']):.4f}"
    if untrained:
        choice += f"; not counting {untrained}"
    run = SearchRun(
        command=f"magna sweep {config.recipe} --sampler {result['sampler']} --seed {result['seed']}",
        date=datetime.date.today().isoformat(),
        device=result["device"],
        trials=states["complete"] + states["pruned"],
        result=choice,
    )
    return replace(
        config.with_settings(best["params"], drop_idle=True),
        recipe=f"{config.recipe}-best",
        source=replace(config.source, search=(*config.source.search, run)),
        expected=ExpectedOptions(paper=config.expected.paper),
    )


def write_files(folder: Path, config: Config, rows: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
    """Write `FILES`, each of them whole or not at all."""
    flat = [{key: value for key, value in row.items() if key != "params"} | row["params"] for row in rows]
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(dict.fromkeys(key for row in flat for key in row)))
    writer.writeheader()
    writer.writerows(flat)
    texts = (
        table.getvalue(),
        json.dumps({**result, "trials": list(rows)}, indent=1) + "\n",
        best_recipe(config, result).to_toml(),
    )
    for name, text in zip(FILES, texts, strict=True):
        write_whole(folder / name, text.encode(), again="the same command")


def recipe_of(folder: Path) -> str | None:
    """The recipe whose search wrote the files of a folder, or None."""
    try:
        recipe: str | None = json.loads((folder / "trials.json").read_text(encoding="utf-8"))["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return recipe


def show_search(result: Mapping[str, Any], console: Console) -> None:
    """Print the best trials, one column each."""
    from rich import box
    from rich.table import Table

    states, top = result["states"], result["top"]
    title = f"{result['recipe']}: the best of {states['complete'] + states['pruned']} trials"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("trial", overflow="fold")
    for row in top:
        table.add_column(str(row["number"]), justify="right")
    table.add_column("weight", justify="right")
    form = METRIC_FORMS[result["metric"]]
    for name, key in (("valid", "value"), ("valid, further seeds", "confirmed")):
        if any(row[key] is not None for row in top):
            cells = ("" if row[key] is None else form.number(form.score(row[key])) for row in top)
            table.add_row(f"{name}, {form.unit}", *cells, "")
    for key in top[0]["params"]:
        weight = result["importances"].get(key)
        name, *tied = split_key(key)
        name += f" +{len(tied)}" if tied else ""
        values = [row["params"][key] for row in top]
        texts = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in values)
        table.add_row(name, *texts, "" if weight is None else f"{weight:.2f}")
    console.print(table)
    lines = [
        f"{states['pruned']} trials were stopped early; weight: share of a setting in the differences between trials",
        *_count_refused(states, result["refused"]),
        *([f"{states['fail']} more were interrupted and do not count"] if states["fail"] else []),
        f"all trials: {result['out']}/trials.csv",
        f"train the best: magna train {shlex.quote(str(Path(result['out']) / 'best.toml'))}",
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def name_seeds(seeds: Sequence[int]) -> str:
    """Consecutive seeds in words.

    >>> name_seeds([1001, 1002, 1003])
    'seeds 1001 to 1003'
    """
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def _row(trial: FrozenTrial, confirmed: Sequence[float] | None) -> dict[str, Any]:
    record = trial.user_attrs.get("record", {})
    state, refused = refusal_of(trial) or (trial.state.name.lower(), None)
    return {
        "number": trial.number,
        "state": state,
        "value": trial.value,
        "confirmed": statistics.fmean(confirmed) if confirmed else None,
        "epochs": record.get("epochs", 0),
        "seconds": record.get("seconds", 0.0),
        "refused": refused,
        "params": trial.params,
    }


def _rank(row: Mapping[str, Any]) -> tuple[float, float, int]:
    """Key of a trial, larger for a better one: by the mean of its further seeds, then its own, then the earlier."""
    return (-1.0 if row["confirmed"] is None else row["confirmed"], row["value"], -row["number"])


def _count_refused(states: Mapping[str, int], reasons: Mapping[Refusal, str | None]) -> list[str]:
    """A line for each kind of refusal: how many trials, and the first reason."""
    finished = sum(states[state] for state in STATES if state != "fail")
    return [
        f"{states[kind]} of {finished} trials {text}: {reasons[kind]}"
        for kind, text in _REFUSALS.items()
        if states[kind]
    ]
