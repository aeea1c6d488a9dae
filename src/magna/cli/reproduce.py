"""The command reproduce: tables of the paper, ours beside theirs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from magna.cli.command import Result, command, say, share_cores
from magna.cli.completion import complete_experiment
from magna.cli.options import DATA, MODEL, OUTPUT, PAPER, TRAINING, DataDir, OnDevice, option
from magna.errors import ArgumentError

_COMPARISONS = {"difference", "MAGNA is better by", "t-test, p", "Wilcoxon, p"}


def _show(result: Result) -> None:
    from rich.console import Console

    from magna.paper.render import TextTable

    header, rows = _quick_form(result) if result.get("quick") else (result["header"], result["rows"])
    if result.get("quick"):
        typer.echo(f"{result['table']} after few seeds and epochs shows its form; figures marked quick are no results")
    TextTable(header, rows).show(Console())
    if result.get("left_out"):
        typer.echo(f"baselines of the paper's table that are left out: {', '.join(result['left_out'])}")
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


def _quick_form(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a quick table: data sets that were asked for, our rows marked, and no comparison."""
    from magna.paper.published import CITATION_GRAPHS, KNOWLEDGE_GRAPHS
    from magna.paper.tables import UNMEASURED

    names = {name: name.capitalize() for name in CITATION_GRAPHS} | KNOWLEDGE_GRAPHS
    hidden = {title for name, title in names.items() if name not in result["datasets"]}
    columns = [at for at, title in enumerate(result["header"]) if title not in hidden | _COMPARISONS]
    rows = [
        [re.sub(r"\bours(?=\)$|, )", "ours, quick", row[at]) for at in columns]
        for row in result["rows"]
        if row[0] not in hidden and row[-1] != UNMEASURED
    ]
    header = [result["header"][at] for at in columns]
    return [f"{title} (quick)" if title == "accuracy, %" and "paper" in header else title for title in header], rows


@command(
    "magna reproduce table1 --quick --dataset cora",
    "magna reproduce table1 --row 'MAGNA, tuned'",
    show=_show,
    panel=PAPER,
)
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="table1, ablations, switches, random-splits (the paper's Table 7) or table3.",
            autocompletion=complete_experiment,
        ),
    ],
    quick: Annotated[bool, option(TRAINING, "", "Few seeds and epochs: the form of the table.", "--quick")] = False,
    seeds: Annotated[
        int | None, option(TRAINING, "N", "Seeds of each figure. Default: 20; random splits 10; table3 3.", min=1)
    ] = None,
    dataset: Annotated[
        list[str] | None, option(DATA, "NAME", "A data set of the table; may be repeated. Default: those of the paper.")
    ] = None,
    row: Annotated[
        list[str] | None, option(MODEL, "NAME", "Train this row alone, by its name in the table; may be repeated.")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        option(OUTPUT, "FOLDER", "Folder of one file a figure. Default: runs/cells, with --quick runs/quick."),
    ] = None,
    results: Annotated[
        Path, option(OUTPUT, "FOLDER", "Committed results; their figures are not trained again, except with --quick.")
    ] = Path("results"),
    collect: Annotated[
        bool, option(OUTPUT, "", "Train nothing; add the figures in OUT to the committed results.", "--collect")
    ] = False,
    run_dir: Annotated[
        Path | None,
        option(OUTPUT, "FOLDER", "Folder of the running training of table3. Default: runs/reproduce[-quick]."),
    ] = None,
    device: OnDevice = "auto",
) -> Result:
    """Make a table of the paper, ours beside theirs.

    After a stop, the same command continues.
    """
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
