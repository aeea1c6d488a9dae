"""The command train: a model and its run folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magna.cli.command import Result, command
from magna.cli.options import FIRST, OUTPUT, SETTINGS_HINT, TRAINING, Assignments, DataDir, OnDevice, Recipe, option

if TYPE_CHECKING:
    from magna.config.schema import Config


def _show(result: Result) -> None:
    from magna.config.registry import LINK_TASK
    from magna.tasks.metrics import headline

    runs = result["runs"]
    typer.echo(f"data: {result['dataset']}")
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


@command(
    "magna train",
    "magna train digits --set train.epochs=40 --set model.alpha=0.2 --seeds 3",
    "magna train examples/own_graph --run-dir runs/mine",
    "magna train --resume --run-dir runs/mine",
    show=_show,
    panel=FIRST,
    trains=True,
    after=SETTINGS_HINT,
)
def train(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Annotated[int, option(TRAINING, "N", "Number of seeds to train.", min=1)] = 1,
    data_dir: DataDir = None,
    run_dir: Annotated[
        Path | None,
        option(OUTPUT, "FOLDER", "Folder of the run. Default: runs/RECIPE, or runs/RECIPE-2 and so on if it exists."),
    ] = None,
    device: OnDevice = "auto",
    resume: Annotated[bool, option(TRAINING, "", "Continue the run in the run folder.", "--resume")] = False,
    together: Annotated[
        bool | None,
        option(
            TRAINING,
            "",
            "Train several seeds of node classification in one batch, or in turn. Default: together on a GPU.",
            "--together/--one-by-one",
        ),
    ] = None,
    test: Annotated[
        bool, option(TRAINING, "", "Score the test split at the end, or leave it unread.", "--test/--no-test")
    ] = True,
    tensorboard: Annotated[
        bool, option(OUTPUT, "", "Also write curves for TensorBoard into the run folder.", "--tensorboard")
    ] = False,
) -> Result:
    """Train a model and write a run folder.

    Without a recipe: handwritten digits, which need no download.
    """
    from magna.training.progress import TrainingProgress

    folder, config = _folder_and_config(recipe, assignments or [], run_dir, resume)
    with TrainingProgress() as progress:
        for line in _notes(config, assignments or [], folder if run_dir is None and not resume else None):
            progress.say(line)
        from magna.training import train as training

        result = training.train(
            config,
            run_dir=folder,
            seeds=seeds,
            data_dir=data_dir,
            device=device,
            resume=resume,
            test=test,
            together=together,
            tensorboard=tensorboard,
            on_start=progress.start,
            on_epoch=progress.epoch,
        )
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
    recipe: str | None, assignments: list[str], run_dir: Path | None, resume: bool
) -> tuple[Path, Config | None]:
    """Run folder and config; None for the settings of the run that is resumed."""
    if resume and run_dir is not None and recipe is None and not assignments:
        return run_dir, None
    from magna.config.schema import load_recipe

    config = load_recipe(recipe).with_values(assignments)
    if run_dir is not None:
        return run_dir, config
    from magna.training.train import default_folder

    return default_folder(config.recipe, resume), config
