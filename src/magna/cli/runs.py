"""One run: train, evaluate, plan."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from magna.cli.command import Result, command
from magna.cli.options import (
    Assignments,
    DataDir,
    Device,
    NewGraph,
    OnDevice,
    Recipe,
    RunPath,
    Split,
    plain_console,
    printable,
    show_notes,
)
from magna.config.schema import Config, load_recipe

run_app = typer.Typer()


def _show_training(result: Result) -> None:
    from magna.tasks.metrics import headline

    runs = result["runs"]
    typer.echo(f"data: {result['dataset']}")
    for run in runs:
        typer.echo(
            f"seed {run['seed']}: valid {headline(run['valid'])}, test {headline(run['test'])} after "
            f"{run['epochs']} epoch{'s' * (run['epochs'] != 1)}, {run['seconds']:.1f} s"
        )
    if len(runs) > 1:
        mean, std = result["mean"]["test"], result["std"]["test"]
        if "accuracy" in mean:
            typer.echo(f"mean of {len(runs)} seeds: test {100 * mean['accuracy']:.1f} ± {100 * std['accuracy']:.1f} %")
        else:
            typer.echo(f"mean of {len(runs)} seeds: test MRR {mean['mrr']:.3f} ± {std['mrr']:.3f}")
    typer.echo(f"run folder: {runs[0]['run_dir'] if len(runs) == 1 else Path(runs[0]['run_dir']).parent}")
    asked = "" if result["task"] == "node_classification" else " --head NAME --relation NAME"
    folder = shlex.quote(runs[0]["run_dir"])
    typer.echo(f"its answers: magna predict {folder}{asked}")
    typer.echo(f"its score again: magna evaluate {folder}")


def _show_score(result: Result) -> None:
    show_notes(result)
    metrics, what = result["metrics"], f"{result['dataset']}, {result['split']} split"
    if result["task"] == "node_classification":
        typer.echo(f"{what}: accuracy {100 * metrics['accuracy']:.1f} %, loss {metrics['loss']:.4f}")
        return
    from magna.paper.tables import Table

    parts = {"both sides": metrics, "heads": result["head"], "tails": result["tail"]}
    if "skip" in result:
        parts |= {"encoder alone": result["encoder"], "past it alone": result["skip"]}
    rows = [
        [name, *(f"{value:.1f}" if metric == "mr" else f"{value:.4f}" for metric, value in part.items())]
        for name, part in parts.items()
    ]
    Table([what, *(metric.replace("_", ", ") for metric in metrics)], rows).show(plain_console())


def _show_plan(result: Result) -> None:
    from magna.training.progress import duration

    show_notes(result)
    memory, when = result["memory"], result["time"]
    fits = "fits" if memory["fits"] else "does not fit"
    typer.echo(f"{result['dataset']}: {result['nodes']:,} nodes, {result['edges']:,} edges, on {result['device']}")
    typer.echo(f"parameters: {result['parameters']:,} ({_size(memory['parameters'])})")
    typer.echo(f"kept for the backward pass: {_size(memory['saved'])}")
    typer.echo(f"peak memory: {_size(memory['peak'])}, {fits} into {_size(memory['device'])} (forecast)")
    for line in result["advice"]:
        typer.echo(f"  try {line}")
    if when["seconds"] is None:
        typer.echo("time: not measured")
    else:
        typer.echo(f"time: {duration(when['seconds'])} at most: {_work(when, result['together'])}")
        typer.echo(f"measured: {_measured(when)}")


def _work(when: dict[str, Any], together: bool) -> str:
    """What a run does, and how long each part of it takes."""
    steps = "" if when["steps"] == 1 else f" of {when['steps']} steps"
    each = f"{when['epochs']} epochs{steps}, {_short(when['step_seconds'])} each"
    if together:
        batches = "" if when["turns"] == 1 else f" in {when['turns']} batches"
        return f"{each}, for {when['seeds']} seeds together{batches}, evaluations included"
    evaluation, seeds = when["evaluation_seconds"], "" if when["seeds"] == 1 else f", for each of {when['seeds']} seeds"
    long = "counted like a step" if evaluation is None else f"{_short(evaluation)} each"
    return f"{each}, and {when['evaluations']} evaluations, {long}{seeds}"


def _measured(when: dict[str, Any]) -> str:
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
    run_app, "magna train digits --set train.epochs=40 --set model.alpha=0.2 --seeds 3", _show_training, trains=True
)
def train(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Annotated[int, typer.Option(help="How many seeds to train.", min=1)] = 1,
    data_dir: DataDir = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run folder; runs/RECIPE where none is given.", show_default=False)
    ] = None,
    device: OnDevice = Device.auto,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the run folder.")] = False,
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--one-by-one",
            help="Several seeds of node classification in one batch, or in turn; else together on a GPU.",
            show_default=False,
        ),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard into the run folder.")
    ] = False,
) -> Result:
    """Train a model and leave a run folder behind. No recipe: handwritten digits, nothing to download."""
    from magna.training.progress import TrainingProgress

    folder, config = _folder_and_config(recipe, assignments or [], run_dir, seeds, resume)
    with TrainingProgress() as progress:
        progress.say(f"recipe {config.recipe}: loading")
        from magna.training import train as training

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


@command(run_app, "magna evaluate runs/digits --split valid", _show_score)
def evaluate(
    run: RunPath,
    split: Annotated[Split, typer.Option(help="The nodes or triples to score.")] = Split.test,
    data: NewGraph = None,
    data_dir: DataDir = None,
    device: OnDevice = Device.auto,
) -> Result:
    """Score a finished run again from its files, or on a new graph with labels."""
    from magna.use.nodes import evaluate

    return evaluate(run, split.value, data, data_dir=data_dir, device=device.value)


@command(run_app, "magna plan cora --set model.hidden_channels=512", _show_plan, trains=True)
def plan(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Annotated[int, typer.Option(help="How many seeds would be trained.", min=1)] = 1,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Time a few steps, or only forecast memory.")
    ] = True,
    data_dir: DataDir = None,
    device: OnDevice = Device.auto,
) -> Result:
    """Memory and time that a run will need, before it starts."""
    config = load_recipe(recipe).with_values(assignments or [])
    from magna.training.plan import plan

    say = partial(typer.echo, err=True)
    return plan(config, seeds=seeds, data_dir=data_dir, device=device.value, measure=measure, say=say)


def _folder_and_config(
    recipe: str | None, assignments: list[str], run_dir: Path | None, seeds: int, resume: bool
) -> tuple[Path, Config]:
    """Where to train and what: a run that goes on brings its own settings unless others are named."""
    if resume and run_dir is not None and recipe is None and not assignments:
        files = [*run_dir.glob("config.toml"), *run_dir.glob("seed-*/config.toml")]
        if not files:
            raise ValueError(f"{run_dir} holds no run to go on with (no config.toml); try a recipe, without --resume")
        from magna.training.run_folder import RunFolder

        configs = [RunFolder.open(file.parent).config for file in files]
        return run_dir, min(configs, key=lambda config: config.train.seed)
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
    if config.task.name == "link_prediction":
        kind += f", {model.decoder}"
        if model.skip_channels:
            kind += f", {model.skip_channels} channels past the encoder"
    if model.members > 1:
        kind += f", an ensemble of {model.members}"
    return (
        f"{task.dataset}: {task.size} · {model.num_layers} × {model.hidden_channels} {kind} · {device.type}"
        + "".join(f"\nnote: {printable(note)}" for note in task.notes)
    )
