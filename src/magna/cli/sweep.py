"""The command sweep: a search over a recipe's space."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magna.cli.command import Result, command, share_cores
from magna.cli.completion import complete_recipe
from magna.cli.options import (
    OUTPUT,
    PAPER,
    SEARCH,
    TRAINING,
    Assignments,
    DataDir,
    OnDevice,
    option,
    plain_console,
    show_notes,
)
from magna.typing import Sampler


def _show(result: Result) -> None:
    from magna.search.report import show_search

    show_notes(result)
    show_search(result, plain_console())


@command(
    "magna sweep digits --trials 16 --set train.epochs=40",
    "magna sweep cora --trials 300 --sampler tpe",
    show=_show,
    panel=PAPER,
)
def sweep(
    recipe: Annotated[
        str, typer.Argument(help="A recipe, a TOML file, or a folder with your data.", autocompletion=complete_recipe)
    ],
    trials: Annotated[int, option(SEARCH, "N", "Finished trials in total; a study with fewer continues.")],
    storage: Annotated[
        str | None, option(SEARCH, "URL", "Database of the study, shared between machines. Default: OUT/study.db.")
    ] = None,
    sampler: Annotated[Sampler, option(SEARCH, "NAME", "random or tpe; tpe learns from the trials so far.")] = "random",
    seed: Annotated[int, option(SEARCH, "N", "Seed of the sampler.")] = 0,
    assignments: Assignments = None,
    seeds_per_trial: Annotated[int, option(TRAINING, "N", "Search seeds of each trial.")] = 1,
    batch: Annotated[int | None, option(TRAINING, "N", "Trials drawn and trained at once. Default: by device.")] = None,
    prune: Annotated[bool, option(SEARCH, "", "Stop the worse half after 1/8, 1/4 and 1/2 of the epochs.")] = True,
    confirm: Annotated[int, option(SEARCH, "N", "Best trials that train again with further seeds.")] = 10,
    confirm_seeds: Annotated[int, option(SEARCH, "N", "Number of further seeds.")] = 4,
    top: Annotated[int, option(OUTPUT, "N", "Number of the best trials to print.", min=1)] = 5,
    data_dir: DataDir = None,
    out: Annotated[Path | None, option(OUTPUT, "FOLDER", "Folder of the results. Default: sweeps/RECIPE.")] = None,
    device: OnDevice = "auto",
) -> Result:
    """Search a recipe's space by validation accuracy or MRR.

    After a stop, the same command continues. A setting that --set fixes is not searched.
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
