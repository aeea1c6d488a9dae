"""Many runs: sweep, reproduce, bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from magna.cli.command import finish, share_cores
from magna.cli.options import (
    AsJson,
    DataDir,
    Device,
    OnDevice,
    Sampler,
    Verbose,
    plain_console,
    show_notes,
)
from magna.config.schema import load_recipe, split_key
from magna.errors import ArgumentError

study_app = typer.Typer()


@study_app.command(epilog="Example: magna sweep digits --trials 16 --set train.epochs=40")
def sweep(
    recipe: Annotated[
        str, typer.Argument(help="Name of a recipe, a TOML file, or a folder with your own data.", show_default=False)
    ],
    trials: Annotated[
        int, typer.Option(help="Finished trials in total; a study that has some goes on.", show_default=False)
    ],
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Database of the study, shared by many machines; OUT/study.db.", show_default=False
        ),
    ] = None,
    sampler: Annotated[Sampler, typer.Option(help="tpe learns from the trials so far.")] = Sampler.random,
    seed: Annotated[int, typer.Option(help="Of the sampler.")] = 0,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a setting; one that is searched is fixed by it. May be repeated.",
            show_default=False,
        ),
    ] = None,
    seeds_per_trial: Annotated[int, typer.Option(help="Search seeds that each setting is trained with.")] = 1,
    batch: Annotated[
        int | None, typer.Option(help="Trials drawn and trained at once; else as fits.", show_default=False)
    ] = None,
    prune: Annotated[bool, typer.Option(help="Stop the worse half after 1/8, 1/4 and 1/2 of the epochs.")] = True,
    confirm: Annotated[int, typer.Option(help="Train so many of the best again, with further seeds; 0: none.")] = 10,
    confirm_seeds: Annotated[int, typer.Option(help="How many further seeds.")] = 4,
    top: Annotated[int, typer.Option(help="How many of the best to print.", min=1)] = 5,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; sweeps/RECIPE where none is given.", show_default=False)
    ] = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Search a recipe's space by validation accuracy or MRR; stopped, it goes on when it is called again."""

    def work() -> dict[str, Any]:
        from magna.training.progress import TrainingProgress

        config = load_recipe(recipe).with_values(assignments or [])
        fixed = [key for assignment in assignments or [] for key in split_key(assignment.partition("=")[0])]
        with TrainingProgress() as progress:
            progress.say(f"recipe {config.recipe}: loading")
            share_cores()
            from magna.search import sweep as search

            return search.sweep(
                search.without(config, fixed),
                search.Plan(trials, sampler.value, seed, seeds_per_trial, batch, prune, confirm, confirm_seeds),
                out=out or Path("sweeps") / config.recipe,
                storage=storage,
                data_dir=data_dir,
                device=device.value,
                top=top,
                say=progress.say,
            )

    def show(result: dict[str, Any]) -> None:
        from magna.search import report as findings

        show_notes(result)
        findings.show(result, plain_console())

    finish(work, verbose, as_json, show)


@study_app.command(epilog="Example: magna reproduce table1 --quick --dataset cora")
def reproduce(
    name: Annotated[
        str, typer.Argument(help="table1, ablations, switches, random-splits or table3.", show_default=False)
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds and epochs: the form of the table.")] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Seeds of each figure; 20, for each random split 10, in table3 3.", min=1, show_default=False
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="cora, citeseer or pubmed, of table3 wn18rr, fb15k-237 or families; may be repeated; the paper's.",
            show_default=False,
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(help="Train this row alone, by its name in the table; may be repeated.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for one file a figure; runs/cells, with --quick runs/quick.", show_default=False),
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Committed results; their figures are not trained again, except with --quick.")
    ] = Path("results"),
    collect: Annotated[
        bool, typer.Option("--collect", help="Train nothing; add the figures in OUT to the committed results.")
    ] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run of table3 that is under way; runs/reproduce, with --quick runs/reproduce-quick.",
            show_default=False,
        ),
    ] = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """A table of the paper, ours beside theirs. After a stop, the same command continues."""
    folder = out or Path("runs/quick" if quick else "runs/cells")

    def work() -> dict[str, Any]:
        from magna.paper import reproduce as reproduction

        if collect:
            if quick:
                raise ArgumentError("--quick", True, "without --collect")
            return reproduction.collect(name, out=folder, results=results)
        share_cores()
        return reproduction.reproduce(
            name,
            out=folder,
            results=None if quick else results,
            seeds=seeds,
            quick=quick,
            datasets=dataset,
            rows=row,
            data_dir=data_dir,
            run_dir=run_dir,
            device=device.value,
            say=lambda line: print(line, file=sys.stderr),
        )

    def show(result: dict[str, Any]) -> None:
        from rich.console import Console

        from magna.paper.render import Table

        Table(result["header"], result["rows"]).show(Console())
        if collect:
            typer.echo(f"{len(result['collected'])} figures of {folder} are now in {results}/{name}")
            return
        committed, seeds = [file for file in result["files"] if file.endswith(".csv")], result["seeds"]
        if (files := len(result["files"]) - len(committed)) or not committed:
            typer.echo(f"{files} file{'s' * (files != 1)} of {seeds} seed{'s' * (seeds != 1)} in {result['out']}")
        if committed:
            typer.echo(f"figures measured before: {', '.join(committed)}")
        if result["diverged"]:
            typer.echo(f"no result, because the loss was not finite: {', '.join(result['diverged'])}")
        if outdated := [path for path in result["outdated"] if path not in result["diverged"]]:
            typer.echo(f"outdated, because recipe or protocol have changed since: {', '.join(outdated)}")

    finish(work, verbose, as_json, show)


@study_app.command(epilog="Example: magna bench --graph cora")
def bench(
    graph: Annotated[
        list[str] | None,
        typer.Option(help="cora, pubmed, wn18rr, fb15k-237 or ogbn-arxiv; may be repeated.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Cora alone, a few seconds.")] = False,
    data_dir: DataDir = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Measure the kernels against their peers on this machine."""

    def work() -> dict[str, Any]:
        from magna import bench as benchmarks

        return benchmarks.run(
            graph,
            device=device.value,
            quick=quick,
            data_dir=data_dir,
            progress=lambda line: print(line, file=sys.stderr),
        )

    def show(result: dict[str, Any]) -> None:
        from rich.console import Console

        from magna import bench as benchmarks

        benchmarks.show(result, Console())

    finish(work, verbose, as_json, show)
