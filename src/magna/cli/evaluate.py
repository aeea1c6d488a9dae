"""The command evaluate: the score of a finished run."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from magna.cli.command import Result, command
from magna.cli.options import DATA, FIRST, DataDir, NewGraph, OnDevice, RunPath, option, plain_console, show_notes


def _show(result: Result) -> None:
    show_notes(result)
    metrics, title = result["metrics"], f"{result['dataset']}, {result['split']} split"
    if "head" not in result:
        typer.echo(f"{title}: accuracy {100 * metrics['accuracy']:.1f} %, loss {metrics['loss']:.4f}")
        return
    from magna.paper.render import TextTable

    parts = {"both sides": metrics, "heads": result["head"], "tails": result["tail"]}
    if "skip" in result:
        parts |= {"encoder alone": result["encoder"], "shallow alone": result["skip"]}
    rows = [
        [name, *(f"{value:.1f}" if metric == "mr" else f"{value:.4f}" for metric, value in part.items())]
        for name, part in parts.items()
    ]
    TextTable([title, *(metric.replace("_", ", ") for metric in metrics)], rows).show(plain_console())


@command(
    "magna evaluate runs/digits",
    "magna evaluate runs/digits --split valid --json",
    show=_show,
    panel=FIRST,
)
def evaluate(
    run: RunPath,
    split: Annotated[
        Literal["valid", "test"], option(DATA, "NAME", "valid or test: the nodes or triples to score.")
    ] = "test",
    data: NewGraph = None,
    data_dir: DataDir = None,
    device: OnDevice = "auto",
) -> Result:
    """Score a finished run again from its files.

    With --data: on a new graph with labels.
    """
    from magna.use.predict import evaluate

    return evaluate(run, split, data, data_dir=data_dir, device=device)
