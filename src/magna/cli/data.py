"""The command data: list, get and audit data sets."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from magna.cli.command import Result, app, command
from magna.cli.options import PREPARE, Assignments, DataDir
from magna.errors import ArgumentError

# Settings for reading a graph; the other settings of the data change it for a model.
_READ = tuple(
    f"data.{name}"
    for name in (
        *("split", "split_seed", "valid_share", "columns", "ignore", "target"),
        *("features", "undirected", "standardise_features"),
    )
)

data_app = typer.Typer(help="List, fetch and audit data sets.", epilog="Examples:\n\nmagna data list")
app.add_typer(data_app, name="data", rich_help_panel=PREPARE)


def _show_list(result: Result) -> None:
    from magna.data import data_folder

    folder = result["data_dir"]
    typer.echo(f"data folder: {folder}")
    flag = "" if folder == str(data_folder(None)) else f" --data-dir {shlex.quote(folder)}"
    for row in result["datasets"]:
        state = "here" if row["here"] else f"not here; magna data get {row['name']}{flag}"
        task = row["task"].replace("_", " ")
        typer.echo(f"\n{row['name']}: {task} ({state})\n  {row['size']}\n  {row['source']}; {row['licence']}")


@command("magna data list", show=_show_list, group=data_app, name="list")
def data_list(data_dir: DataDir = None) -> Result:
    """List the data sets, their sources, and if their files are here."""
    from magna.data import DATASETS, data_folder

    rows = [dataset.to_dict(data_dir) for dataset in DATASETS.values()]
    return {"data_dir": str(data_folder(data_dir)), "datasets": rows}


def _show_files(result: Result) -> None:
    count, name = len(result["files"]), result["dataset"]
    typer.echo(f"{name}: {count} files, all checked" if count else f"{name} comes with the installation")


@command("magna data get cora", show=_show_files, group=data_app, name="get")
def data_get(
    name: Annotated[str, typer.Argument(help="A name from magna data list.")], data_dir: DataDir = None
) -> Result:
    """Fetch a data set and check it."""
    from magna.data import DATASETS

    if name not in DATASETS:
        raise ArgumentError("data set", name, list(DATASETS))
    return {"dataset": name, "files": [str(file.locate(data_dir)) for file in DATASETS[name].files]}


def _show_audit(result: Result) -> None:
    from magna.cli.audit import show_audit

    show_audit(result)


@command(
    "magna data audit digits", "magna data audit examples/own_graph", show=_show_audit, group=data_app, name="audit"
)
def data_audit(
    name: Annotated[str, typer.Argument(help="A data set, or a folder or .pt file of your own.")],
    assignments: Assignments = None,
    data_dir: DataDir = None,
) -> Result:
    """Size, shape and quality of a graph or a knowledge graph, and leakage between its splits.

    For a graph, also the K that its distances suggest; for a knowledge graph, the score of reversed training triples.
    """
    from magna.config.path_kind import kind_of
    from magna.config.registry import LINK_TASK
    from magna.config.schema import Config
    from magna.config.spaces import split_key
    from magna.config.tables import NodeDataOptions
    from magna.data import DATASETS, load_knowledge_graph, load_node_data
    from magna.data.audit import audit_nodes
    from magna.data.audit_triples import audit_triples

    if name not in DATASETS and not Path(name).exists():
        raise ArgumentError("data", name, list(DATASETS), "the path of your own data")
    # A public name comes before a folder of that name, as in a recipe.
    triples = DATASETS[name].task == LINK_TASK if name in DATASETS else kind_of(name) == "triples"
    if triples:
        if assignments:
            raise ArgumentError("--set", assignments[0], f"nothing, because {name} is a knowledge graph")
        return audit_triples(load_knowledge_graph(name, data_dir))
    for assignment in assignments or []:
        if any(key not in _READ for key in split_key(assignment.partition("=")[0])):
            raise ArgumentError("--set", assignment, f"the settings for reading a graph, {', '.join(_READ)}")
    config = Config(data=NodeDataOptions(name=name)).with_values(assignments or [])
    assert isinstance(config.data, NodeDataOptions)
    return audit_nodes(load_node_data(config.data, data_dir))
