"""The command line: parses, calls, prints. Torch is imported only by the commands that need it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from magna import __version__
from magna.config import DEFAULT_RECIPE, Config, load_recipe

app = typer.Typer(
    name="magna",
    help="Multi-hop attention graph neural networks: train, evaluate, measure.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Data sets: what there is, where it comes from, fetch with checksum.")
app.add_typer(data_app, name="data")


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Split(StrEnum):
    valid = "valid"
    test = "test"


DataDir = Annotated[
    Path | None,
    typer.Option(help="Data folder; else MAGNA_DATA_DIR, else the user's cache folder.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the traceback of an error.")]
OnDevice = Annotated[Device, typer.Option(help="auto: the GPU where there is one.")]


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(f"magna {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog="Example: magna train digits --set train.epochs=40 --set model.alpha=0.2 --seeds 3")
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help=f"Name of a recipe or a TOML file; {DEFAULT_RECIPE} where none is given.", show_default=False
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds to train, one after the other.", min=1)] = 1,
    data_dir: DataDir = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run folder; runs/RECIPE where none is given.", show_default=False)
    ] = None,
    device: OnDevice = Device.auto,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the run folder.")] = False,
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
                on_start=lambda task, where: progress.say(_describe(config, task, where)),
                on_epoch=progress.epoch,
            )

    _finish(work, verbose, as_json, _show_training)


@app.command(epilog="Example: magna evaluate runs/digits --split valid")
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    split: Annotated[Split, typer.Option(help="Which nodes to score.")] = Split.test,
    data_dir: DataDir = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Score a finished run again from its files."""

    def work() -> dict[str, Any]:
        from magna import train as training

        return training.evaluate(run, split.value, data_dir=data_dir, device=device.value)

    def show(result: dict[str, Any]) -> None:
        metrics = ", ".join(f"{name} {_figure(name, value)}" for name, value in result["metrics"].items())
        typer.echo(f"{result['dataset']}, {result['split']} split: {metrics}")

    _finish(work, verbose, as_json, show)


@app.command(epilog="Example: magna bench --graph cora")
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

    _finish(work, verbose, as_json, show)


@data_app.command("list", epilog="Example: magna data list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """The data sets, their homes and whether they are here."""

    def work() -> dict[str, Any]:
        from magna.datasets import DATASETS, data_folder, files_of, present

        rows = [
            vars(dataset) | {"here": all(present(path, data_dir) for path in files_of(name))}
            for name, dataset in DATASETS.items()
        ]
        return {"data_dir": str(data_folder(data_dir)), "datasets": rows}

    def show(result: dict[str, Any]) -> None:
        typer.echo(f"data folder: {result['data_dir']}")
        for row in result["datasets"]:
            here = "here" if row["here"] else f"not here; magna data get {row['name']}"
            typer.echo(f"\n{row['name']}: {row['task']} ({here})\n  {row['size']}\n  {row['source']}; {row['licence']}")

    _finish(work, verbose, as_json, show)


@data_app.command("get", epilog="Example: magna data get cora")
def data_get(
    name: Annotated[str, typer.Argument(help="A name out of magna data list.", show_default=False)],
    data_dir: DataDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Fetch a data set and check it."""

    def work() -> dict[str, Any]:
        from magna.datasets import DATASETS, files_of, locate

        if name not in DATASETS:
            raise ValueError(f"data set is {name!r}; allowed: {', '.join(DATASETS)}")
        return {"dataset": name, "files": [str(locate(path, data_dir)) for path in files_of(name)]}

    def show(result: dict[str, Any]) -> None:
        count = len(result["files"])
        typer.echo(f"{name}: {count} files, all checked" if count else f"{name} comes with the installation")

    _finish(work, verbose, as_json, show)


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
    return (
        f"{task.dataset}: {task.num_nodes:,} nodes, {task.num_edges:,} edges, {task.num_classes} classes · "
        f"MAGNA {model.num_layers} × {model.hidden_channels}, {model.heads} heads, K={model.K}, "
        f"alpha={model.alpha:g} · {device.type}"
    )


def _show_training(result: dict[str, Any]) -> None:
    runs = result["runs"]
    for run in runs:
        typer.echo(
            f"seed {run['seed']}: valid {_figure('accuracy', run['valid']['accuracy'])}, "
            f"test {_figure('accuracy', run['test']['accuracy'])} after {run['epochs']} epochs, {run['seconds']:.1f} s"
        )
    if len(runs) > 1:
        mean, std = result["mean"]["test"]["accuracy"], result["std"]["test"]["accuracy"]
        typer.echo(f"mean of {len(runs)} seeds: test {100 * mean:.1f} ± {100 * std:.1f} %")
    typer.echo(f"run folder: {runs[0]['run_dir'] if len(runs) == 1 else Path(runs[0]['run_dir']).parent}")
    typer.echo(f"again from its files: magna evaluate {runs[0]['run_dir']}")


def _figure(name: str, value: float) -> str:
    return f"{100 * value:.1f} %" if name == "accuracy" else f"{value:.4f}"


def _finish(
    work: Callable[[], dict[str, Any]], verbose: bool, as_json: bool, show: Callable[[dict[str, Any]], None]
) -> None:
    """Run a command's work and print its result; errors become one line and an exit status."""
    try:
        result = work()
    except KeyboardInterrupt:
        _fail("stopped; a training run goes on with --resume", 1, verbose)
    except ValueError as error:
        _fail(str(error), 2, verbose)
    except Exception as error:
        _fail(f"{type(error).__name__}: {error}", 1, verbose)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        show(result)


def _fail(message: str, status: int, verbose: bool) -> NoReturn:
    if verbose:
        traceback.print_exc()
    print(f"magna: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(status)


def main() -> None:
    """The `magna` program."""
    try:
        status = app(prog_name="magna", standalone_mode=False)
    except Exception as error:
        # A wrong option or argument. Typer's error classes differ between versions; all know their message and status.
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "magna")
        print(f"magna: {error.format_message().rstrip('.')}; try {command} --help", file=sys.stderr)
        status = getattr(error, "exit_code", 2)
    sys.exit(status or 0)
