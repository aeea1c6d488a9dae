"""The command sweep: a search over a recipe's space."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magna.cli.command import Result, command, share_cores
from magna.cli.options import Assignments, DataDir, OnDevice, plain_console, show_notes
from magna.typing import Sampler


def _show(result: Result) -> None:
    from magna.search.report import show_search

    show_notes(result)
    show_search(result, plain_console())


@command("magna sweep digits --trials 16 --set train.epochs=40", _show)
def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe, a TOML file, or a folder with your data.")],
    trials: Annotated[int, typer.Option(help="Finished trials in total; a study with fewer continues.")],
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Database of the study, shared between machines. Default: OUT/study.db."),
    ] = None,
    sampler: Annotated[Sampler, typer.Option(help="tpe learns from the trials so far.")] = "random",
    seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    assignments: Assignments = None,
    seeds_per_trial: Annotated[int, typer.Option(help="Search seeds of each trial.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Trials drawn and trained at once. Default: by device.")] = None,
    prune: Annotated[bool, typer.Option(help="Stop the worse half after 1/8, 1/4 and 1/2 of the epochs.")] = True,
    confirm: Annotated[int, typer.Option(help="Best trials that train again with further seeds.")] = 10,
    confirm_seeds: Annotated[int, typer.Option(help="Number of further seeds.")] = 4,
    top: Annotated[int, typer.Option(help="Number of the best trials to print.", min=1)] = 5,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results. Default: sweeps/RECIPE.")] = None,
    device: OnDevice = "auto",
) -> Result:
    """Search a recipe's space by validation accuracy or MRR. After a stop, the same command continues.

    A setting that --set fixes is not searched.
    """
    from magna.config.schema import load_recipe
    from magna.config.spaces import split_key
    from magna.training.progress import TrainingProgress

    config = load_recipe(recipe).with_values(assignments or [])
    fixed = [key for assignment in assignments or [] for key in split_key(assignment.partition("=")[0])]
    with TrainingProgress() as progress:
        progress.say(f"recipe {config.recipe}: loading")
        share_cores()
        from magna.search import sweep as search

        return search.sweep(
            search.without(config, fixed),
            search.Plan(trials, sampler, seed, seeds_per_trial, batch, prune, confirm, confirm_seeds),
            out=out or Path("sweeps") / config.recipe,
            storage=storage,
            data_dir=data_dir,
            device=device,
            top=top,
            say=progress.say,
        )
