"""The command reproduce: tables and figures of the paper, ours beside theirs."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from magna.cli.command import Result, command, say, share_cores
from magna.cli.completion import complete_experiment
from magna.cli.options import DATA, MODEL, OUTPUT, PAPER, TRAINING, DataDir, OnDevice, Results, Work, option
from magna.errors import ArgumentError

_MOST_MISSING = 3
_LIST_WIDTH, _NAME_WIDTH = 80, 20
_NO_BREAK = "\u00a0"  # a space inside a number with its unit
_COMPARISONS = {"difference", "MAGNA is better by", "t-test", "Wilcoxon"}


def _show(result: Result) -> None:
    from rich.console import Console

    from magna.paper.record_text import COST_HEADER
    from magna.paper.render import TextTable

    if "experiments" in result:
        _show_list(result)
        return
    header, rows = _quick_form(result) if result.get("quick") else (result["header"], result["rows"])
    if result.get("quick") and "work" in result:
        typer.echo(f"{result['table']} with few seeds and cells shows its form; figures marked quick are no results")
    console, table = Console(), TextTable(header, rows)
    if (width := table.width) > console.width and set(COST_HEADER) <= set(header):
        table = table.without([*COST_HEADER, "source"])
        typer.echo(f"on a terminal of {width} columns or more also: {', '.join([*COST_HEADER, 'source'])}")
    table.show(console)
    if caption := result.get("caption"):
        typer.echo(caption)
    for cell in result.get("missing", ()):
        typer.echo(f"missing: {cell['cell']}; try {cell['command']}{_forecast(cell)}")
    if result.get("files"):
        typer.echo(f"written: {', '.join(result['files'])}")
    if "collected" in result:
        typer.echo(f"{len(result['collected'])} figures are now in {result['results']}/{result['table']}")
    elif "work" in result:
        _show_cells(result)


def _show_cells(result: Result) -> None:
    """Print where the cells of a table are, and which of them have no result."""
    committed, seeds = [file for file in result["cells"] if file.endswith(".csv")], result["seeds"]
    if (files := len(result["cells"]) - len(committed)) or not committed:
        typer.echo(f"{files} file{'s' * (files != 1)} of {seeds} seed{'s' * (seeds != 1)} in {result['work']}")
    if committed:
        typer.echo(f"figures measured before: {', '.join(committed)}")
    if result["diverged"]:
        typer.echo(f"no result, because the loss was not finite: {', '.join(result['diverged'])}")
    if result["busy"]:
        typer.echo(f"left out, as another process trains them: {', '.join(result['busy'])}")
    if result["unavailable"]:
        typer.echo(f"no result, because a package is missing: {', '.join(result['unavailable'])}")
    if outdated := [path for path in result["outdated"] if path not in result["diverged"]]:
        typer.echo(f"outdated, because recipe or protocol have changed since: {', '.join(outdated)}")


def _show_list(result: Result) -> None:
    """Print tables, then figures: what each measures, its state and cost, and what is missing."""
    for kind in ("table", "figure"):
        typer.echo(f"{kind.capitalize()}s")
        for line in result["experiments"]:
            if line["kind"] == kind:
                _show_experiment(line)
    typer.echo("--json names every missing cell; magna plan --queue has the time of all of them")


def _show_experiment(line: Result) -> None:
    measures = line["measures"] + (f" (also {line['also_called']})" if line["also_called"] else "")
    facts = [measures, f"{line['state']}{_cost(line)}"]
    if missing := line["missing"]:
        first = [cell["cell"].removesuffix(".json").partition("/")[2] for cell in missing[:_MOST_MISSING]]
        others = f" and {len(missing) - len(first)} more" if len(missing) > len(first) else ""
        facts.append(f"missing: {', '.join(first)}{others}{_forecast_of_all(missing)}")
    if line["quoted"]:
        facts.append(f"only quoted from the paper: {', '.join(line['quoted'])}")
    if line["on_request"]:
        facts.append(_on_request(line["on_request"]))
    indent = " " * _NAME_WIDTH
    for place, fact in enumerate(facts):
        begin = indent if place else f"  {line['name']}".ljust(_NAME_WIDTH)
        lines = textwrap.fill(fact, _LIST_WIDTH, initial_indent=begin, subsequent_indent=indent)
        typer.echo(lines.replace(_NO_BREAK, " "))


def _forecast_of_all(missing: list[Result]) -> str:
    """Time of the missing cells in words, by the devices of the forecasts."""
    seconds: dict[str, float] = {}
    for cell in missing:
        if cell["forecast_s"] is not None:
            seconds[cell["device"]] = seconds.get(cell["device"], 0.0) + cell["forecast_s"]
    words = [f"{_about(total)} on {device}" for device, total in seconds.items()]
    without = sum(cell["forecast_s"] is None for cell in missing)
    words += [f"{without} without a forecast"] if without else []
    return f"; about {', '.join(words)}" if seconds else "; no forecast yet"


def _on_request(counts: Result) -> str:
    """Cells on further data sets in words, with the hours of those that are missing."""
    text = f"with --dataset {' or '.join(counts['datasets'])}: {counts['done']} of {counts['cells']} cells"
    if counts["forecast_s"]:
        text += f"; at most {counts['forecast_s'] / 3600:,.1f} hours of training for the others"
        text += f", {counts['without_forecast']} without a forecast" if counts["without_forecast"] else ""
    return text


def _cost(line: Result) -> str:
    """Cost of an experiment in words: measured seconds of committed runs, or a forecast."""
    if line["seconds"] is None:
        return ""
    if line["cells"]:
        return f"; trained in {_about(line['seconds'])} on {line['device']}"
    quick = f", with --quick {_about(line['quick_seconds'])}" if line["quick_seconds"] is not None else ""
    return f"; about {_about(line['seconds'])} on one CPU core{quick}"


def _about(seconds: float) -> str:
    """A time in two digits or so, on one line."""
    if seconds < 90:
        return f"{seconds:.0f}{_NO_BREAK}s"
    return f"{seconds / 60:.0f}{_NO_BREAK}min" if seconds < 5400 else f"{seconds / 3600:.1f}{_NO_BREAK}h"


def _forecast(cell: Result) -> str:
    """Forecast of a missing cell in words, if there is one."""
    if cell["forecast_s"] is None:
        return ""
    return f" (about {cell['forecast_s']:,.0f} s on {cell['device']})"


def _quick_form(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a quick table: data sets that were asked for, our rows marked, and no comparison."""
    if "work" not in result:
        return result["header"], result["rows"]
    from magna.paper.published import CITATION_GRAPHS, KNOWLEDGE_GRAPHS
    from magna.paper.record_text import COST_HEADER, UNMEASURED

    names = {name: name.capitalize() for name in CITATION_GRAPHS} | KNOWLEDGE_GRAPHS
    hidden = {title for name, title in names.items() if name not in result["datasets"]}
    hidden |= {*_COMPARISONS, *COST_HEADER}
    columns = [at for at, title in enumerate(result["header"]) if title.split(", ")[0] not in hidden]
    rows = [
        [re.sub(r"\bours(?=\)$|, )", "ours, quick", row[at]) for at in columns]
        for row in result["rows"]
        if row[0] not in hidden and row[-1] != UNMEASURED
    ]
    header = [result["header"][at] for at in columns]
    return [f"{title} (quick)" if title == "accuracy, %" and "paper" in header else title for title in header], rows


_Name = Annotated[
    str | None,
    typer.Argument(
        help="A table, a figure or a study, such as table1, fig5 or propositions, or all; --list names them.",
        autocompletion=complete_experiment,
    ),
]
_Listed = Annotated[
    bool, option(OUTPUT, "", "Name every experiment, with its cost and what is missing, and end.", "--list")
]
_Quick = Annotated[bool, option(TRAINING, "", "Few seeds: less than three minutes, and no result.", "--quick")]
_Seeds = Annotated[
    int | None, option(TRAINING, "N", "Seeds of each figure. Default: 20; table3 3; table2, table7, figures 10.", min=1)
]
_Dataset = Annotated[
    list[str] | None, option(DATA, "NAME", "A data set of the table; may be repeated. Default: those of the paper.")
]
_Row = Annotated[
    list[str] | None, option(MODEL, "NAME", "Train this row alone, by its name in the table; may be repeated.")
]
_Out = Annotated[
    Path | None,
    option(OUTPUT, "FOLDER", "Write NAME.csv and NAME.tex, of a figure NAME.svg, NAME.png and NAME.csv, here."),
]
_Collect = Annotated[
    bool, option(OUTPUT, "", "Train nothing; add the cells in WORK to the committed results.", "--collect")
]
_RunDir = Annotated[
    Path | None,
    option(OUTPUT, "FOLDER", "Folder of the runs of table3 and of figures. Default: runs/reproduce[-quick]."),
]


@command(
    "magna reproduce --list",
    "magna reproduce table1 --row 'MAGNA, tuned'",
    "magna reproduce fig5 --quick --out figures",
    show=_show,
    panel=PAPER,
)
def reproduce(
    name: _Name = None,
    listed: _Listed = False,
    quick: _Quick = False,
    seeds: _Seeds = None,
    dataset: _Dataset = None,
    row: _Row = None,
    data_dir: DataDir = None,
    out: _Out = None,
    work: Work = None,
    results: Results = Path("results"),
    collect: _Collect = False,
    run_dir: _RunDir = None,
    device: OnDevice = "auto",
) -> Result:
    """Make a table or a figure of the paper, ours beside theirs.

    After a stop, the same command continues.
    """
    folder = work or Path("runs/quick" if quick else "runs/cells")
    if listed:
        from magna.paper.listing import list_experiments

        return list_experiments(results, folder)
    if name is None:
        raise ArgumentError("NAME", "", "the name of an experiment", "magna reproduce --list")
    if collect and quick:
        raise ArgumentError("--quick", True, "without --collect")
    if not collect:
        share_cores()
    from magna.paper import runner
    from magna.paper.registry import ALL

    if collect:
        return runner.collect_cells(name, work=folder, results=results)
    options: dict[str, Any] = {"seeds": seeds, "quick": quick, "datasets": dataset, "rows": row, "data_dir": data_dir}
    committed = None if quick else results
    options |= {"run_dir": run_dir, "device": device, "out": out}
    options |= {"work": folder, "results": committed, "say": say}
    return runner.run_all(**options) if name == ALL else runner.run_experiment(name, **options)
