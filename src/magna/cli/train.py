"""The command train: a model and its run folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magna.cli.command import Result, command
from magna.cli.options import Assignments, DataDir, OnDevice, Recipe, printable

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
    folder = shlex.quote(runs[0]["run_dir"])
    query = " --head NAME --relation NAME" if result["task"] == LINK_TASK else ""
    typer.echo(f"its answers: magna predict {folder}{query}")
    typer.echo(f"its score again: magna evaluate {folder}")


@command("magna train digits --set train.epochs=40 --set model.alpha=0.2 --seeds 3", _show, trains=True)
def train(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds to train.", min=1)] = 1,
    data_dir: DataDir = None,
    run_dir: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/RECIPE.")] = None,
    device: OnDevice = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the run folder.")] = False,
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--one-by-one",
            help="Train several seeds of node classification in one batch, or in turn. Default: together on a GPU.",
        ),
    ] = None,
    test: Annotated[
        bool, typer.Option("--test/--no-test", help="Score the test split at the end, or leave it unread.")
    ] = True,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard into the run folder.")
    ] = False,
) -> Result:
    """Train a model and write a run folder. Without a recipe: handwritten digits, which need no download."""
    from magna.training.progress import TrainingProgress

    folder, config = _folder_and_config(recipe, assignments or [], run_dir, resume)
    with TrainingProgress() as progress:
        if config is not None:
            progress.say(f"recipe {config.recipe}: loading")
        from magna.training import train as training

        return training.train(
            config,
            run_dir=folder,
            seeds=seeds,
            data_dir=data_dir,
            device=device,
            resume=resume,
            test=test,
            together=together,
            tensorboard=tensorboard,
            on_start=lambda config, task, where: progress.say(_describe(config, task, where)),
            on_epoch=progress.epoch,
        )


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


def _describe(config: Config, task: Any, device: Any) -> str:
    model = config.model.recipe_values()
    shape = " × ".join(str(model[name]) for name in ("num_layers", "hidden_channels") if name in model)
    shown = ("heads", "K", "alpha", "top_k", "decoder", "skip_channels", "members")
    facts = [f"{name}={model[name]}" for name in shown if model.get(name) not in (None, 0)]
    words = f"{shape} {', '.join([config.model.name, *facts])}".strip()
    return f"{task.dataset}: {task.size} · {words} · {device.type}" + "".join(
        f"\nnote: {printable(note)}" for note in task.notes(config)
    )
