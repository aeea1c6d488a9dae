"""One run: train, evaluate, predict, plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from magna.cli.options import (
    AsJson,
    Assignments,
    DataDir,
    Device,
    NewGraph,
    OnDevice,
    Recipe,
    RunPath,
    Split,
    TableFormat,
    Verbose,
    figure,
    finish,
)
from magna.config import Config, load_recipe

_ROWS = 20
run_app = typer.Typer()


@run_app.command(epilog="Example: magna train digits --set train.epochs=40 --set model.alpha=0.2 --seeds 3")
def train(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Annotated[int, typer.Option(help="How many seeds to train.", min=1)] = 1,
    data_dir: DataDir = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run folder; runs/RECIPE where none is given.", show_default=False)
    ] = None,
    device: OnDevice = Device.auto,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the run folder.")] = False,
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--one-by-one",
            help="Several seeds in one batch, or in turn; else together on a GPU.",
            show_default=False,
        ),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard into the run folder.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Train a model and leave a run folder behind. No recipe: handwritten digits, nothing to download."""

    def work() -> dict[str, Any]:
        from magna.progress import TrainingProgress

        folder, config = _folder_and_config(recipe, assignments or [], run_dir, seeds, resume)
        with TrainingProgress() as progress:
            progress.say(f"recipe {config.recipe}: loading")
            # Read when torch is loaded. Threads that wait without spinning leave the cores of a shared machine to
            # others; where more runs than cores compete, a small graph trains several times faster.
            os.environ.setdefault("OMP_WAIT_POLICY", "passive")
            from magna import train as training

            return training.train(
                config,
                run_dir=folder,
                seeds=seeds,
                data_dir=data_dir,
                device=device.value,
                resume=resume,
                together=together,
                tensorboard=tensorboard,
                on_start=lambda task, where: progress.say(_describe(config, task, where)),
                on_epoch=progress.epoch,
            )

    finish(work, verbose, as_json, _show_training)


@run_app.command(epilog="Example: magna evaluate runs/digits --split valid")
def evaluate(
    run: RunPath,
    split: Annotated[Split, typer.Option(help="Which nodes to score.")] = Split.test,
    data: NewGraph = None,
    data_dir: DataDir = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Score a finished run again from its files, or on a new graph with labels."""

    def work() -> dict[str, Any]:
        from magna.predict import evaluate

        return evaluate(run, split.value, data, data_dir=data_dir, device=device.value)

    def show(result: dict[str, Any]) -> None:
        metrics = ", ".join(f"{name} {figure(name, value)}" for name, value in result["metrics"].items())
        typer.echo(f"{result['dataset']}, {result['split']} split: {metrics}")

    finish(work, verbose, as_json, show)


@run_app.command(epilog="Example: magna predict runs/digits --node 3 --node 17 --out answers.csv")
def predict(
    run: RunPath,
    node: Annotated[
        list[str] | None, typer.Option(help="Id of a node; may be repeated. Else all nodes.", show_default=False)
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option(help="File with an id on each line, or a CSV with an id column.", show_default=False)
    ] = None,
    data: NewGraph = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the answers: .csv, .json or .parquet.", show_default=False)
    ] = None,
    form: Annotated[
        TableFormat | None,
        typer.Option("--format", help="Where the name of the file does not say.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Labels with probabilities, for all nodes or some, on the run's own graph or a new one."""

    def work() -> dict[str, Any]:
        from magna.predict import file_format, predict, read_ids

        if form is not None and out is None:
            raise ValueError(f"--format is {form.value} without a file; allowed: with --out FILE")
        if out is not None:
            file_format(out, form)
            if not out.parent.is_dir() or out.is_dir():
                raise ValueError(f"--out is {out}; allowed: a file in a folder that is there")
        asked = [*(node or []), *(read_ids(nodes) if nodes is not None else [])]
        found = predict(run, asked if node or nodes else None, data, data_dir=data_dir, device=device.value)
        if out is None:
            return found.to_dict()
        found.write(out, form)
        return {"dataset": found.dataset, "nodes": len(found.ids), "file": str(out)}

    def show(result: dict[str, Any]) -> None:
        if out is not None:
            typer.echo(f"{result['dataset']}: {result['nodes']:,} nodes in {result['file']}")
        else:
            _show_predictions(result)

    finish(work, verbose, as_json, show)


@run_app.command(epilog="Example: magna plan cora --set model.hidden_channels=512")
def plan(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Annotated[int, typer.Option(help="How many seeds would be trained.", min=1)] = 1,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Time a few epochs, or say nothing of time.")
    ] = True,
    data_dir: DataDir = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Memory and time that a run will need, before it starts."""

    def work() -> dict[str, Any]:
        config = load_recipe(recipe).with_values(assignments or [])
        from magna.plan import plan

        return plan(config, seeds=seeds, data_dir=data_dir, device=device.value, measure=measure)

    finish(work, verbose, as_json, _show_plan)


def _folder_and_config(
    recipe: str | None, assignments: list[str], run_dir: Path | None, seeds: int, resume: bool
) -> tuple[Path, Config]:
    """Where to train and what: a run that goes on brings its own settings unless others are named."""
    if resume and run_dir is not None and recipe is None and not assignments:
        files = [*run_dir.glob("config.toml"), *run_dir.glob("seed-*/config.toml")]
        if not files:
            raise ValueError(f"{run_dir} holds no run to go on with (no config.toml)")
        if seeds == 1 and files[0].parent != run_dir:
            raise ValueError(f"{run_dir} holds runs of several seeds; try --seeds with the number it was started with")
        return run_dir, min((Config.from_toml(file) for file in files), key=lambda config: config.train.seed)
    config = load_recipe(recipe).with_values(assignments)
    if run_dir is not None:
        return run_dir, config
    number, taken = 1, []
    while (folder := Path("runs") / (config.recipe if number == 1 else f"{config.recipe}-{number}")).exists():
        taken.append(folder)
        number += 1
    return (taken[-1] if resume and taken else folder), config


def _describe(config: Config, task: Any, device: Any) -> str:
    model = config.model
    kind = {
        "magna": f"MAGNA, {model.heads} heads, K={model.K}, alpha={model.alpha:g}",
        "gat": f"GAT, {model.heads} heads",
        "diff-gcn": f"Diff-GCN, alpha={model.alpha:g}, top_k={model.top_k}",
    }[model.name]
    return (
        f"{task.dataset}: {task.num_nodes:,} nodes, {task.num_edges:,} edges, {task.num_classes} classes · "
        f"{model.num_layers} × {model.hidden_channels} {kind} · {device.type}"
        + "".join(f"\nnote: {note}" for note in task.data.notes)
    )


def _show_training(result: dict[str, Any]) -> None:
    runs = result["runs"]
    typer.echo(f"data: {result['dataset']}")
    for run in runs:
        typer.echo(
            f"seed {run['seed']}: valid {figure('accuracy', run['valid']['accuracy'])}, "
            f"test {figure('accuracy', run['test']['accuracy'])} after {run['epochs']} epochs, {run['seconds']:.1f} s"
        )
    if len(runs) > 1:
        mean, std = result["mean"]["test"]["accuracy"], result["std"]["test"]["accuracy"]
        typer.echo(f"mean of {len(runs)} seeds: test {100 * mean:.1f} ± {100 * std:.1f} %")
    typer.echo(f"run folder: {runs[0]['run_dir'] if len(runs) == 1 else Path(runs[0]['run_dir']).parent}")
    typer.echo(f"its answers: magna predict {runs[0]['run_dir']}; its score again: magna evaluate {runs[0]['run_dir']}")


def _show_predictions(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    nodes = result["nodes"]
    table = Table("id", "label", "probability", "next best", "true label", title=result["dataset"])
    for row in nodes[:_ROWS]:
        second = sorted(row["probabilities"].items(), key=lambda entry: -entry[1])[1:2]
        then = ", ".join(f"{name} {100 * value:.1f} %" for name, value in second)
        share = f"{100 * row['probability']:.1f} %"
        table.add_row(row["id"], row["label"], share, then, row["true_label"] or "")
    Console().print(table)
    if len(nodes) > _ROWS:
        typer.echo(f"the first {_ROWS} of {len(nodes):,} nodes; all with --out FILE or --json")


def _show_plan(result: dict[str, Any]) -> None:
    from magna.progress import duration

    memory, when = result["memory"], result["time"]
    fits = "fits" if memory["fits"] else "does not fit"
    typer.echo(f"{result['dataset']}: {result['nodes']:,} nodes, {result['edges']:,} edges, on {result['device']}")
    typer.echo(f"parameters: {result['parameters']:,} ({_size(memory['parameters'])})")
    typer.echo(f"kept for the backward pass: {_size(memory['saved'])}")
    typer.echo(f"peak memory: {_size(memory['peak'])}, {fits} into {_size(memory['device'])} (forecast)")
    for line in result["advice"]:
        typer.echo(f"  try {line}")
    if when["epoch_seconds"] is None:
        typer.echo("time: not measured")
    else:
        how = " together" if result["together"] else ""
        seeds = f" × {when['seeds']} seeds{how}" if when["seeds"] > 1 else ""
        typer.echo(
            f"time: {duration(when['seconds'])} at most, {when['epochs']} epochs{seeds} of "
            f"{1000 * when['epoch_seconds']:.3g} ms (median of {when['measured']})"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
