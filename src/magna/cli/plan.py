"""The command plan: memory and time of a run before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magna.cli.command import Result, command, say
from magna.cli.options import (
    MACHINE,
    SETTINGS_HINT,
    TRAINING,
    Assignments,
    DataDir,
    OnDevice,
    Recipe,
    Results,
    Work,
    option,
    show_notes,
)
from magna.errors import ArgumentError


def _show(result: Result) -> None:
    from magna.training.progress import duration

    if "queue" in result:
        _show_queue(result)
        return
    show_notes(result)
    memory, when = result["memory"], result["time"]
    fits = "fits" if memory["fits"] else "does not fit"
    typer.echo(f"{result['dataset']}: {result['nodes']:,} nodes, {result['edges']:,} edges, on {result['device']}")
    typer.echo(f"parameters: {result['parameters']:,} ({_size(memory['parameters'])})")
    typer.echo(f"saved for the backward pass: {_size(memory['saved'])}")
    typer.echo(f"peak memory: {_size(memory['peak'])}, {fits} into {_size(memory['device'])} (forecast)")
    for line in result["advice"]:
        typer.echo(f"  try {line}")
    if when["seconds"] is None:
        typer.echo("time: not measured")
    else:
        typer.echo(f"time: {duration(when['seconds'])} at most: {_work(when, result['together'])}")
        typer.echo(f"measured: {_measured(when)}")


def _show_queue(result: Result) -> None:
    """Print a line for each step of the work, and the hours of all."""
    from magna.training.progress import duration

    steps: dict[tuple[object, ...], list[Result]] = {}
    for cell in result["queue"]:
        steps.setdefault(tuple(cell[key] for key in ("experiment", "dataset", "up_to", "for_gpu")), []).append(cell)
    within = True
    for (experiment, dataset, seeds, for_gpu), cells in steps.items():
        if within and not for_gpu and cells[-1]["beyond_cap"]:
            within = False
            typer.echo(f"-- {result['cpu_hours']} hours of the CPU end in the next line --")
        known = [cell["forecast_s"] for cell in cells if cell["forecast_s"] is not None]
        devices = ", ".join(dict.fromkeys(cell["device"] for cell in cells if cell["device"]))
        size = f"{len(cells)} to {seeds} seeds" if seeds else ""
        when = duration(sum(known)) if known else "not known"
        where = f"{devices} *" if for_gpu else devices
        typer.echo(f"{experiment:<18}{dataset or '':<13}{size:<16}{when:>11}  {where}".rstrip())
    if any(cell["for_gpu"] for cell in result["queue"]):
        typer.echo("* left out on the CPU; magna reproduce EXPERIMENT --dataset NAME trains it")
    for device, seconds in result["seconds"].items():
        cap = f"; the CPU may take {result['cpu_hours']} hours of both cores" if device == "cpu" else ""
        typer.echo(f"left on {device}: {seconds / 3600:.1f} hours{cap}")
    if count := result["without_forecast"]:
        typer.echo(f"without a forecast: {count} cell{'s' * (count != 1)}")


def _work(when: Result, together: bool) -> str:
    """Steps and evaluations of a run, and the time of each."""
    steps = "" if when["steps"] == 1 else f" of {when['steps']} steps"
    each = f"{when['epochs']} epochs{steps}, {_short(when['step_seconds'])} each"
    if together:
        batches = "" if when["turns"] == 1 else f" in {when['turns']} batches"
        return f"{each}, for {when['seeds']} seeds together{batches}, evaluations included"
    evaluation, seeds = when["evaluation_seconds"], "" if when["seeds"] == 1 else f", for each of {when['seeds']} seeds"
    long = "counted like a step" if evaluation is None else f"{_short(evaluation)} each"
    return f"{each}, and {when['evaluations']} evaluations, {long}{seeds}"


def _measured(when: Result) -> str:
    from magna.training.plan import MOST_SECONDS

    if when["step_seconds"] >= MOST_SECONDS:
        other = " and no evaluation" if when["evaluation_seconds"] is None else ""
        return f"one step{other}, because that step took longer than the {MOST_SECONDS:.0f} s meant for several"
    return f"the median of {when['measured']} steps"


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@command(
    "magna plan digits",
    "magna plan cora --set model.hidden_channels=512 --no-measure",
    "magna plan --queue",
    show=_show,
    panel=MACHINE,
    trains=True,
    after=SETTINGS_HINT,
)
def plan(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Annotated[int, option(TRAINING, "N", "Number of seeds to train.", min=1)] = 1,
    measure: Annotated[
        bool, option(TRAINING, "", "Time a few steps, or only forecast memory.", "--measure/--no-measure")
    ] = True,
    data_dir: DataDir = None,
    device: OnDevice = "auto",
    queue: Annotated[
        bool, option(TRAINING, "", "Instead, the hours that are left of magna reproduce all.", "--queue")
    ] = False,
    work: Work = None,
    results: Results = Path("results"),
) -> Result:
    """Forecast the memory and the time of a run, or the time of what is left of the paper."""
    if queue:
        if recipe is not None or assignments:
            name, value = ("--set", assignments) if recipe is None else ("RECIPE", recipe)
            raise ArgumentError(name, value, "without --queue")
        from magna.paper.queue import queue as paper_queue

        folder = work or Path("runs/cells")
        return paper_queue(work=folder, results=results, measure=measure, data_dir=data_dir, device=device, say=say)
    from magna.config.schema import load_recipe

    config = load_recipe(recipe).with_values(assignments or [])
    from magna.training.plan import plan

    return plan(config, seeds=seeds, data_dir=data_dir, device=device, measure=measure, say=say)
