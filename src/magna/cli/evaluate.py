"""The command evaluate: the score of a finished run."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from magna.cli.command import Result, command
from magna.cli.options import DATA, FIRST, DataDir, NewGraph, OnDevice, RunPath, option, plain_console, show_notes

_MOST_CLASSES = 20  # in a table on the screen


def _show(result: Result) -> None:
    from magna.paper.render import TextTable

    metrics, title = result["metrics"], f"{result['dataset']}, {result['split']} split"
    if "head" not in result:
        _show_nodes(result, title)
    else:
        parts = {"both sides": metrics, "heads": result["head"], "tails": result["tail"]}
        if "skip" in result:
            parts |= {"encoder alone": result["encoder"], "shallow alone": result["skip"]}
        rows = [
            [name, *(f"{value:.1f}" if metric == "mr" else f"{value:.4f}" for metric, value in part.items())]
            for name, part in parts.items()
        ]
        TextTable([title, *(metric.replace("_", ", ") for metric in metrics)], rows).show(plain_console())
    _show_peers(result)
    show_notes(result)
    for remark in result["remarks"]:
        typer.echo(remark)


def _show_nodes(result: Result, title: str) -> None:
    """Print the first metric, the others, the classes, and the confusion matrix of few classes."""
    from magna.paper.render import TextTable
    from magna.tasks.metrics import METRIC_FORMS

    metrics = result["metrics"]
    first, *others = [
        f"{METRIC_FORMS[name].words} {_number(name, value)}" for name, value in metrics.items() if name != "loss"
    ]
    typer.echo(f"{title}: {first}, loss {metrics['loss']:.4f}")
    if others:
        typer.echo(", ".join(others))
    if "classes" in result:
        columns = ("precision", "recall", "f1")
        rows = [
            [row["class"], *("" if row[name] is None else f"{row[name]:.3f}" for name in columns), str(row["support"])]
            for row in result["classes"][:_MOST_CLASSES]
        ]
        TextTable(["class", *columns, "support"], rows).show(plain_console())
        if (more := len(result["classes"]) - _MOST_CLASSES) > 0:
            typer.echo(f"{more} more classes with --json")
    if "confusion" in result and len(result["confusion"]["classes"]) <= _MOST_CLASSES:
        names, matrix = result["confusion"]["classes"], result["confusion"]["rows"]
        rows = [[name, *map(str, row)] for name, row in zip(names, matrix, strict=True)]
        TextTable(["true class", *names], rows).show(plain_console())


def _show_peers(result: Result) -> None:
    """Print the calibration and the trivial predictors."""
    from magna.tasks.metrics import METRIC_FORMS
    from magna.tasks.trivial import TRIVIAL_WORDS

    if (honest := result.get("calibration")) is not None:
        error = 100 * honest["expected_calibration_error"]
        typer.echo(f"calibration: probabilities are off by {error:.1f} points on average (n = {honest['n']:,})")
    metric = next(name for name in result["metrics"] if name in METRIC_FORMS)
    for name, metrics in result["trivial"].items():
        if metric in metrics:
            typer.echo(f"{TRIVIAL_WORDS[name]}: {METRIC_FORMS[metric].text(metrics[metric])}")


def _number(metric: str, value: float) -> str:
    from magna.tasks.metrics import METRIC_FORMS

    form = METRIC_FORMS[metric]
    return f"{form.number(value)}{' %' if form.unit == '%' else ''}"


@command(
    "magna evaluate runs/digits",
    "magna evaluate runs/digits --split valid --json",
    "magna evaluate runs/digits --metric macro_f1",
    show=_show,
    panel=FIRST,
)
def evaluate(
    run: RunPath,
    split: Annotated[
        Literal["valid", "test"], option(DATA, "NAME", "valid or test: the nodes or triples to score.")
    ] = "test",
    metric: Annotated[
        list[str] | None, option(DATA, "NAME", "Metric that comes first, such as macro_f1; may be repeated.")
    ] = None,
    data: NewGraph = None,
    data_dir: DataDir = None,
    device: OnDevice = "auto",
) -> Result:
    """Score a finished run again from its files, beside predictors that cost nothing.

    With --data: on a new graph with labels.
    """
    from magna.use.predict import evaluate

    return evaluate(run, split, data, data_dir=data_dir, device=device, metrics=metric or ())
