"""`magna.train`: a recipe, or without one the portfolio on a graph of one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from magna.config.path_kind import kind_of
from magna.config.schema import Config
from magna.config.tables import NodeDataOptions
from magna.data import DATASETS, from_anywhere
from magna.errors import ArgumentError
from magna.search.own_graph import train_portfolio
from magna.search.portfolio import FILE, Budget
from magna.training import train as training

_OF_RECIPES = ("model", "together", "tensorboard", "on_epoch", "on_start")


def train_anything(
    what: Any = None,
    /,
    *,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    single: bool = False,
    data: NodeDataOptions | None = None,
    seeds: int = 1,
    seed: int = 0,
    run_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    test: bool = True,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a recipe, or find a good model for a graph of your own, and return the metrics of the runs.

    A path of your own graph, or a PyG `Data`, without a recipe trains a portfolio: members that were chosen once on
    public graphs, judged on validation within a time, the best few averaged. Everything else trains one recipe, see
    `magna.training.train.train`, which describes the arguments that are not listed here.

    Args:
        what: a recipe's name, a TOML file, a config, the path of your own data, or a PyG `Data`.
        recipe: the recipe whose settings serve your own data, in place of the portfolio.
        settings: values by their keys, such as `{"train.epochs": 40}`; with a recipe alone.
        minutes: time of the portfolio. None: 5, or 30 for more than a million edges.
        steps: number of steps of the portfolio in place of a time; repeats a run exactly.
        single: keep the best member of the portfolio alone.
        data: how your own data is read.
        seeds: number of seeds of a recipe.
        seed: seed of the portfolio.
        run_dir: where the run folder is made; None: a new folder below `runs`.
        data_dir: the data folder.
        device: "auto", "cpu" or "cuda".
        resume: continue the run in the folder.
        test: score the test split at the end; False: it is never read.
        say: gets a line for each step of the portfolio.
        options: further arguments of `magna.training.train.train`.
    """
    plain: dict[str, Any] = {
        "seeds": seeds,
        "run_dir": run_dir,
        "data_dir": data_dir,
        "device": device,
        "resume": resume,
        "test": test,
    }
    if not is_own_graph(what, run_dir, resume) or recipe is not None:
        for name, value in (("minutes", minutes), ("steps", steps), ("single", single or None)):
            if value is not None:
                raise ArgumentError(name, value, "with a graph of your own, without a recipe")
        return training.train(what, recipe=recipe, settings=settings, **plain, **options)
    if settings:
        raise ArgumentError(
            "settings", ", ".join(settings), "with a recipe", "recipe='digits' with these settings, or no settings"
        )
    refused = {"seeds": None if seeds == 1 else seeds} | {name: options.get(name) for name in _OF_RECIPES}
    for name, value in refused.items():
        if value is not None:
            raise ArgumentError(name, value, "with a recipe", "recipe='digits'")
    folder, name = _folder(what, run_dir, resume)
    options_of_data = from_anywhere(replace(data or NodeDataOptions(), name=name))
    budget = Budget(minutes, steps, single, test, seed)
    more: dict[str, Any] = {"data_dir": data_dir, "device": device, "resume": resume}
    return train_portfolio(options_of_data, budget, folder, say=say or (lambda line: None), **more)


def is_own_graph(what: Any, run_dir: str | Path | None = None, resume: bool = False) -> bool:
    """True for a graph of the user's own, or the run of a portfolio that is resumed."""
    if what is None:
        return resume and run_dir is not None and (Path(run_dir) / FILE).is_file()
    if isinstance(what, Config):
        return False
    if _is_pyg(what):
        return True
    return str(what) not in DATASETS and kind_of(what) == "graph"


def _is_pyg(what: Any) -> bool:
    pyg = sys.modules.get("torch_geometric.data")
    return pyg is not None and isinstance(what, pyg.Data)


def _folder(what: Any, run_dir: str | Path | None, resume: bool) -> tuple[Path, str]:
    """The run folder of a portfolio, and the path of its data."""
    if what is None:
        assert run_dir is not None
        first = sorted((Path(run_dir) / "members").glob("*/config.toml"))
        if not first:
            raise ArgumentError("run_dir", str(run_dir), "a portfolio with a finished member", "the path of the data")
        return Path(run_dir), str(Config.from_toml(first[0]).data.name)
    name = "data" if _is_pyg(what) else Path(what).resolve().stem if Path(what).is_file() else Path(what).resolve().name
    folder = Path(run_dir) if run_dir is not None else training.default_folder(name, resume)
    return folder, str(training.store_data(what, folder, resume)) if _is_pyg(what) else str(what)


train = train_anything  # its name in the package, where `magna.training.train.train` trains recipes alone
