"""The command train: a model and its run folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magna.cli.command import Result, command
from magna.cli.options import (
    FIRST,
    MODEL,
    OUTPUT,
    SETTINGS_HINT,
    TRAINING,
    Assignments,
    ClassWeights,
    Columns,
    DataDir,
    Directed,
    Ignore,
    JudgedBy,
    OnDevice,
    Recipe,
    SplitSeed,
    Target,
    ValidShare,
    data_settings,
    option,
    task_settings,
)
from magna.errors import ArgumentError

if TYPE_CHECKING:
    from magna.config.schema import Config

RunDir = Annotated[
    Path | None,
    option(OUTPUT, "FOLDER", "Folder of the run. Default: runs/RECIPE, or runs/RECIPE-2 and so on if it exists."),
]
OfRecipe = Annotated[
    str | None, option(MODEL, "NAME", "Train your own data with the settings of this recipe alone.", "--recipe")
]
Minutes = Annotated[
    float | None,
    option(TRAINING, "N", "Time for a graph of your own. Default: 5, or 30 above a million edges.", min=0.01),
]
Steps = Annotated[
    int | None, option(TRAINING, "N", "Steps in place of a time, to repeat a run on your own graph.", min=1)
]
Single = Annotated[
    bool, option(TRAINING, "", "Keep the best model for your own graph, not the average of the best.", "--single")
]
Start = Annotated[
    Path | None,
    option(TRAINING, "RUN", "Start from the weights of a finished run, by their names and shapes.", "--from"),
]
Together = Annotated[
    bool | None,
    option(
        TRAINING,
        "",
        "Train several seeds of node classification in one batch, or in turn. Default: together on a GPU.",
        "--together/--one-by-one",
    ),
]


def _show(result: Result) -> None:
    if "members" in result:
        _show_portfolio(result)
        return
    from magna.config.registry import LINK_TASK
    from magna.tasks.metrics import headline

    runs = result["runs"]
    typer.echo(f"data: {result['dataset']}")
    if "start" in result:
        typer.echo(f"start: {result['start']}")
    for run in runs:
        test = "unread" if run["test"] is None else headline(run["test"])
        typer.echo(
            f"seed {run['seed']}: valid {headline(run['valid'])}, test {test} after "
            f"{run['epochs']} epoch{'s' * (run['epochs'] != 1)}, {run['seconds']:.1f} s"
        )
    mean, std = result["mean"]["test"], result["std"]["test"]
    if len(runs) > 1 and mean is not None:
        typer.echo(f"mean of {len(runs)} seeds: test {headline(mean, std)}")
    typer.echo(f"run folder: {runs[0]['run_dir'] if len(runs) == 1 else Path(runs[0]['run_dir']).parent}")
    for remark in result["remarks"]:
        typer.echo(remark)
    folder = shlex.quote(runs[0]["run_dir"])
    query = " --head NAME --relation NAME" if result["task"] == LINK_TASK else ""
    typer.echo(f"score it again: magna evaluate {folder}")
    typer.echo(f"predict with it: magna predict {folder}{query}")


def _show_portfolio(result: Result) -> None:
    """Print the members, what they reached together, and what to do next."""
    from rich.console import Console

    from magna.config.registry import LINK_TASK
    from magna.paper.render import TextTable
    from magna.tasks.metrics import METRIC_FORMS, headline

    (run,), rows, form = result["runs"], [], METRIC_FORMS[result["metric"]]
    for row in result["members"]:
        score = row["fault"] if row["score"] is None else form.text(row["score"], row["error"])
        weight = f"{row['weight']:.2f}" if row["weight"] else ""
        name = f"{row['member']} (best)" if row["member"] == result["best"] else row["member"]
        rows.append([name, score, f"{row['seconds']:.0f} s", weight])
    TextTable(["member", f"{form.words} of {result['judged_on']}", "time", "weight"], rows).show(Console())
    test = "" if run["test"] is None else f", test {headline(run['test'])}"
    typer.echo(f"together: validation {headline(run['valid'])}{test}")
    for line in result["advice"]:
        typer.echo(f"advice: {line}")
    folder = shlex.quote(run["run_dir"])
    links = result["task"] == LINK_TASK
    with_predictions = "" if links else ", with predictions.csv"
    typer.echo(f"run folder: {folder}{with_predictions}; the best single member is {result['best']}")
    typer.echo(f"score it again: magna evaluate {folder}")
    query = " --head NAME --relation NAME" if links else ""
    typer.echo(f"predict with it: magna predict {folder}{query}")
    typer.echo(f"refine the best member: magna sweep {folder}/recipe.toml --trials 32")
    typer.echo(f"repeat this run exactly: the same command with --steps {result['steps']}")


@command(
    "magna train",
    "magna train digits --set train.epochs=40 --set model.alpha=0.2 --seeds 3",
    "magna train examples/own_graph --minutes 2",
    "magna train examples/own_graph --recipe digits --set train.epochs=100",
    "magna train folder --columns id=worker,label=team --ignore note",
    "magna train --resume --run-dir runs/mine",
    show=_show,
    panel=FIRST,
    trains=True,
    after=SETTINGS_HINT,
)
def train(
    recipe: Recipe = None,
    assignments: Assignments = None,
    of_recipe: OfRecipe = None,
    minutes: Minutes = None,
    steps: Steps = None,
    single: Single = False,
    seeds: Annotated[int, option(TRAINING, "N", "Number of seeds to train.", min=1)] = 1,
    data_dir: DataDir = None,
    run_dir: RunDir = None,
    device: OnDevice = "auto",
    resume: Annotated[bool, option(TRAINING, "", "Continue the run in the run folder.", "--resume")] = False,
    start: Start = None,
    together: Together = None,
    test: Annotated[
        bool, option(TRAINING, "", "Score the test split at the end, or leave it unread.", "--test/--no-test")
    ] = True,
    tensorboard: Annotated[
        bool, option(OUTPUT, "", "Also write curves for TensorBoard into the run folder.", "--tensorboard")
    ] = False,
    ignore: Ignore = None,
    columns: Columns = None,
    directed: Directed = False,
    target: Target = None,
    valid: ValidShare = None,
    split_seed: SplitSeed = None,
    metric: JudgedBy = None,
    class_weights: ClassWeights = None,
) -> Result:
    """Train a model and write a run folder.

    A folder with your own graph: several models are tried within some minutes, and the best are averaged. Without any
    argument: handwritten digits, which need no download.
    """
    options: dict[str, Any] = {"data_dir": data_dir, "device": device, "resume": resume, "test": test, "seeds": seeds}
    portfolio = {"minutes": minutes, "steps": steps, "single": single}
    settings = data_settings(ignore, columns, directed, target, valid, split_seed)
    settings |= task_settings(metric, class_weights)
    if of_recipe is None and _is_own_data(recipe, run_dir, resume, assignments or []):
        return _train_portfolio(recipe, run_dir=run_dir, settings=settings, start=start, **portfolio, **options)
    for name, value in portfolio.items():
        if value:
            raise ArgumentError(f"--{name}", value, "with a folder of your own data, without --recipe")
    folder, config = _folder_and_config(recipe, of_recipe, assignments or [], settings, run_dir, resume)
    options |= {"run_dir": folder, "together": together, "tensorboard": tensorboard, "start": start}
    notes = _notes(config, assignments or [], folder if run_dir is None and not resume else None)
    return _train_recipe(config, notes, **options)


def _is_own_data(what: str | None, run_dir: Path | None, resume: bool, assignments: list[str]) -> bool:
    """True for data of the user's own; settings are refused for it."""
    from magna.search.train import is_own_data

    if not is_own_data(what, run_dir, resume):
        return False
    if assignments:
        allowed = "with --recipe NAME, which trains that recipe alone; without --set, magna finds the settings"
        raise ArgumentError("--set", assignments[0], allowed)
    return True


def _train_portfolio(what: str | None, **options: Any) -> Result:
    from magna.search.train import train_anything
    from magna.training.progress import TrainingProgress

    with TrainingProgress() as progress:
        return train_anything(what, say=progress.say, **options)


def _train_recipe(config: Config | None, notes: Iterator[str], **options: Any) -> Result:
    from magna.training.progress import TrainingProgress

    with TrainingProgress() as progress:
        for line in notes:
            progress.say(line)
        from magna.training import train as training

        result = training.train(config, on_start=progress.start, on_epoch=progress.epoch, **options)
    return _with_remarks(result, progress.task)


def _with_remarks(result: Result, task: Any) -> Result:
    """The result, and a line for a model that is no better than a predictor that costs nothing."""
    from magna.tasks.trivial import gain_on_validation

    return {**result, "remarks": gain_on_validation(task, result["mean"]["valid"])}


def _notes(config: Config | None, assignments: list[str], new_folder: Path | None) -> Iterator[str]:
    """The recipe, and notes on the folder that is written and on data that replaces a recipe's."""
    if config is not None:
        yield f"recipe {config.recipe}: loading"
    if config is not None and new_folder is not None and new_folder.name != config.recipe:
        place = new_folder.with_name(config.recipe)
        yield f"note: {place} exists; this run writes {new_folder} (--run-dir names another)"
    for assignment in assignments:
        key, _, path = assignment.partition("=")
        if key.strip() == "data.name" and Path(path).is_dir():
            other = f"magna train {path} also scales features"
            yield f"note: --set data.name={path} keeps the recipe's other settings; {other}"


def _folder_and_config(
    recipe: str | None,
    of_recipe: str | None,
    assignments: list[str],
    settings: dict[str, Any],
    run_dir: Path | None,
    resume: bool,
) -> tuple[Path, Config | None]:
    """Run folder and config; None for the settings of the run that is resumed."""
    if resume and run_dir is not None and recipe is None and not assignments and not settings:
        return run_dir, None
    from magna.config.schema import make_config

    config = make_config(recipe, of_recipe).with_values(assignments).with_settings(settings)
    if run_dir is not None:
        return run_dir, config
    from magna.training.train import default_folder

    return default_folder(config.recipe, resume), config
