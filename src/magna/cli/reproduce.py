"""The command reproduce: tables of the paper, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from magna.cli.command import Result, command, say, share_cores
from magna.cli.options import DataDir, OnDevice
from magna.errors import ArgumentError


def _show(result: Result) -> None:
    from rich.console import Console

    from magna.paper.render import TextTable

    TextTable(result["header"], result["rows"]).show(Console())
    if "collected" in result:
        typer.echo(f"{len(result['collected'])} figures are now in {result['results']}/{result['table']}")
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


@command("magna reproduce table1 --quick --dataset cora", _show)
def reproduce(
    name: Annotated[str, typer.Argument(help="table1, ablations, switches, random-splits or table3.")],
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds and epochs: the form of the table.")] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of each figure. Default: 20; random splits 10; table3 3.", min=1)
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="A data set of the table; may be repeated. Default: those of the paper.")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Train this row alone, by its name in the table; may be repeated.")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of one file a figure. Default: runs/cells, with --quick runs/quick.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Committed results; their figures are not trained again, except with --quick.")
    ] = Path("results"),
    collect: Annotated[
        bool, typer.Option("--collect", help="Train nothing; add the figures in OUT to the committed results.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the running training of table3. Default: runs/reproduce[-quick].")
    ] = None,
    device: OnDevice = "auto",
) -> Result:
    """A table of the paper, ours beside theirs. After a stop, the same command continues."""
    folder = out or Path("runs/quick" if quick else "runs/cells")
    if collect and quick:
        raise ArgumentError("--quick", True, "without --collect")
    if not collect:
        share_cores()
    from magna.paper import reproduce as paper

    if collect:
        return paper.collect(name, out=folder, results=results)
    options: dict[str, Any] = {"seeds": seeds, "quick": quick, "datasets": dataset, "rows": row, "data_dir": data_dir}
    committed = None if quick else results
    return paper.reproduce(name, out=folder, results=committed, run_dir=run_dir, device=device, say=say, **options)
