"""Data sets: list, get, audit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from magna.cli.command import finish
from magna.cli.options import AsJson, Assignments, DataDir, Verbose, plain_console
from magna.config.path_kind import kind_of
from magna.config.schema import Config, DataConfig, split_key

# The other settings of the data tell what becomes of it on its way into a model.
_READ = ("data.split", "data.split_seed", "data.features", "data.undirected", "data.standardise_features")

data_app = typer.Typer(
    help="Data sets: what there is, where it comes from, fetch with checksum, audit.", epilog="Example: magna data list"
)


@data_app.command("list", epilog="Example: magna data list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """The data sets, their homes and whether they are here."""

    def work() -> dict[str, Any]:
        from magna.data import DATASETS, data_folder, files_of, present

        rows = [
            vars(dataset) | {"here": all(present(path, data_dir) for path in files_of(name))}
            for name, dataset in DATASETS.items()
        ]
        return {"data_dir": str(data_folder(data_dir)), "datasets": rows}

    def show(result: dict[str, Any]) -> None:
        typer.echo(f"data folder: {result['data_dir']}")
        there = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
        for row in result["datasets"]:
            here = "here" if row["here"] else f"not here; magna data get {row['name']}{there}"
            typer.echo(f"\n{row['name']}: {row['task']} ({here})\n  {row['size']}\n  {row['source']}; {row['licence']}")

    finish(work, verbose, as_json, show)


@data_app.command("get", epilog="Example: magna data get cora")
def data_get(
    name: Annotated[str, typer.Argument(help="A name out of magna data list.", show_default=False)],
    data_dir: DataDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Fetch a data set and check it."""

    def work() -> dict[str, Any]:
        from magna.data import DATASETS, files_of, locate

        if name not in DATASETS:
            raise ValueError(f"data set is {name!r}; allowed: {', '.join(DATASETS)}")
        return {"dataset": name, "files": [str(locate(path, data_dir)) for path in files_of(name)]}

    def show(result: dict[str, Any]) -> None:
        count = len(result["files"])
        typer.echo(f"{name}: {count} files, all checked" if count else f"{name} comes with the installation")

    finish(work, verbose, as_json, show)


@data_app.command("audit", epilog="Example: magna data audit cora")
def data_audit(
    name: Annotated[str, typer.Argument(help="A data set, or a folder or .pt file of your own.", show_default=False)],
    assignments: Assignments = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Size, shape and quality of a graph or a knowledge graph, and leakage between its splits.

    A graph gets the K that its distances suggest, a knowledge graph the score of its training triples turned round.
    """

    def work() -> dict[str, Any]:
        from magna.data import (
            DATASETS,
            audit_triples,
            load_knowledge_graph,
            load_node_data,
        )
        from magna.data import audit as audit_nodes

        if name not in DATASETS and not Path(name).exists():
            raise ValueError(f"data is {name!r}; allowed: {', '.join(DATASETS)}, or the path of your own")
        # A public name comes first, as in a recipe: a folder of your own that is called so is not looked into.
        triples = DATASETS[name].task == "link prediction" if name in DATASETS else kind_of(name) == "triples"
        if triples:
            if assignments:
                raise ValueError(f"--set got {assignments[0]!r}; allowed: nothing, because {name} is a knowledge graph")
            return audit_triples.audit(load_knowledge_graph(name, data_dir))
        for assignment in assignments or []:
            keys = split_key(assignment.partition("=")[0])
            if any(key not in _READ for key in keys):
                raise ValueError(f"--set got {assignment!r}; allowed: how a graph is read, {', '.join(_READ)}")
        config = Config(data=DataConfig(name=name)).with_values(assignments or [])
        return audit_nodes.audit(load_node_data(config.data, data_dir))

    def show(result: dict[str, Any]) -> None:
        from magna.data import audit, audit_triples

        report = audit_triples if result.get("task") == "link prediction" else audit
        report.show(result, plain_console())

    finish(work, verbose, as_json, show)
