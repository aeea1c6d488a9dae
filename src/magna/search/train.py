"""`magna.train`: a recipe, or without one the portfolio on a graph or on triples of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from magna.config.path_kind import kind_of
from magna.config.schema import Config
from magna.config.tables import LinkDataOptions, NodeDataOptions
from magna.data import DATASETS, from_anywhere
from magna.data.memory import in_memory
from magna.errors import ArgumentError
from magna.search.own_graph import train_portfolio
from magna.search.own_triples import train_link_portfolio
from magna.search.portfolio import FILE, Budget
from magna.training import train as training

_OF_RECIPES = ("model", "start", "together", "tensorboard", "on_epoch", "on_start")
_OF_DATA = ("data.", "task.metric", "task.class_weights")


def train_anything(
    what: Any = None,
    /,
    *,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    single: bool = False,
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

    Your own data without a recipe trains a portfolio: members with settings chosen by hand, judged on validation
    within a time; of a graph the best few are averaged, of triples the best is kept. Everything else trains one
    recipe, see `magna.training.train.train`, which describes the arguments that are not listed here.

    Args:
        what: a recipe's name, a TOML file, a config, the path of your own data, a PyG `Data`, a pair of pandas
            tables, or a networkx graph.
        recipe: the recipe whose settings serve your own data, in place of the portfolio.
        settings: values by their keys, such as `{"train.epochs": 40}`. Without a recipe only those of `[data]`,
            `task.metric` and `task.class_weights`.
        minutes: time of the portfolio. None: 5, or 30 for more than a million edges.
        steps: number of steps of the portfolio in place of a time; repeats a run exactly.
        single: keep the best member of the portfolio alone.
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
    if not is_own_data(what, run_dir, resume) or recipe is not None:
        for name, value in (("minutes", minutes), ("steps", steps), ("single", single or None)):
            if value is not None:
                raise ArgumentError(name, value, "with data of your own, without a recipe")
        return training.train(what, recipe=recipe, settings=settings, **plain, **options)
    for key in settings or {}:
        if not key.startswith(_OF_DATA):
            raise ArgumentError("settings", key, "with a recipe", "recipe='digits' with these settings, or no settings")
    refused = {"seeds": None if seeds == 1 else seeds} | {name: options.get(name) for name in _OF_RECIPES}
    for name, value in refused.items():
        if value is not None:
            raise ArgumentError(name, value, "with a recipe", "recipe='digits'")
    folder, data = _place(what, run_dir, resume)
    budget = Budget(minutes, steps, single, test, seed)
    more: dict[str, Any] = {"data_dir": data_dir, "device": device, "resume": resume, "say": say or (lambda line: None)}
    of_data, of_task = (_part(settings or {}, f"{table}.") for table in ("data", "task"))
    if isinstance(data, LinkDataOptions):
        return train_link_portfolio(replace(data, **of_data), budget, folder, **more)
    return train_portfolio(replace(data, **of_data), budget, folder, task_settings=of_task, **more)


def _part(settings: Mapping[str, Any], start: str) -> dict[str, Any]:
    """The settings of a table, by their names."""
    return {key.removeprefix(start): value for key, value in settings.items() if key.startswith(start)}


def is_own_data(what: Any, run_dir: str | Path | None = None, resume: bool = False) -> bool:
    """True for data of the user's own, or the run of a portfolio that is resumed."""
    if what is None:
        return resume and run_dir is not None and (Path(run_dir) / FILE).is_file()
    if isinstance(what, Config):
        return False
    if in_memory(what) is not None:
        return True
    return str(what) not in DATASETS and kind_of(what) in ("graph", "triples")


def _place(what: Any, run_dir: str | Path | None, resume: bool) -> tuple[Path, NodeDataOptions | LinkDataOptions]:
    """The run folder of a portfolio, and how its data is read."""
    if what is None:
        assert run_dir is not None
        first = sorted((Path(run_dir) / "members").glob("*/config.toml"))
        if not first:
            raise ArgumentError("run_dir", str(run_dir), "a portfolio that has begun", "the path of the data")
        return Path(run_dir), Config.from_toml(first[0]).data
    save = in_memory(what)
    path = None if save is not None else Path(what).resolve()
    name = "data" if path is None else path.stem if path.is_file() else path.name
    folder = Path(run_dir) if run_dir is not None else training.default_folder(name, resume)
    if save is not None:
        path = training.store_data(save, folder, resume)
    if kind_of(str(path)) == "triples":
        return folder, from_anywhere(LinkDataOptions(name=str(path)))
    return folder, from_anywhere(NodeDataOptions(name=str(path)))


train = train_anything  # its name in the package, where `magna.training.train.train` trains recipes alone
