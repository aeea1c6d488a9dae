"""Files that a portfolio leaves: the run of its best member, and a recipe that refines it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from magna.config.atomic_files import write_whole
from magna.config.schema import Config
from magna.errors import DataError
from magna.search.portfolio import FILE, Portfolio

Metrics = Mapping[str, float]


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder with another run, or with a portfolio that is not to be resumed."""
    begun = (folder / FILE).exists()
    if (begun and not resume) or (not begun and (folder / "config.toml").exists()):
        raise DataError(folder, "it holds a run already", hint="resume, or another run_dir")


def copy_run(source: Path, target: Path) -> None:
    """Copy the files of a finished run, without its checkpoint; the summary comes last."""
    for name in ("environment.json", "schema.json", "metrics.jsonl", "SHA256SUMS", "config.toml"):
        write_whole(target / name, (source / name).read_bytes())
    shutil.rmtree(target / "model", ignore_errors=True)
    shutil.copytree(source / "model", target / "model")
    write_whole(target / "summary.json", (source / "summary.json").read_bytes())


def write_recipe(config: Config, dropouts: Sequence[str], folder: Path) -> None:
    """The best member as a recipe with a search space around its values, for `magna sweep`."""
    space: dict[str, Any] = {
        "train.lr": {"low": config.train.lr / 4, "high": config.train.lr * 4, "log": True},
        "train.weight_decay": {"low": 1e-5, "high": 1e-2, "log": True},
    }
    for name in dropouts:
        if name in config.model.in_recipes() and config._unmet("model", name) is None:
            space[f"model.{name}"] = {"low": 0.0, "high": 0.8}
    tables = config.to_dict() | {"search": space}
    recipe = replace(Config.from_dict(tables), recipe=folder.name)
    write_whole(folder / "recipe.toml", recipe.to_toml().encode())


def as_result(portfolio: Portfolio, head: Mapping[str, Any], valid: Metrics, test: Metrics | None) -> dict[str, Any]:
    """The result that `magna.train` returns, with one run; `head` has task and data."""
    steps = portfolio.results.values()
    run = {
        "seed": portfolio.budget.seed,
        "run_dir": str(portfolio.folder),
        "seconds": round(sum(result.seconds for result in steps), 2),
        "epochs": sum(result.epochs for result in steps),
        "valid": valid,
        "test": test,
    }
    return {
        **head,
        "recipe": "portfolio",
        "device": portfolio.device.type,
        "runs": [run],
        "mean": {"valid": valid, "test": test},
        "std": {"test": None if test is None else dict.fromkeys(test, 0.0)},
        "steps": portfolio.walked,
    }
