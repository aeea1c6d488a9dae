"""Options that several commands share, and printing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from magna.cli.completion import complete_recipe, complete_run

if TYPE_CHECKING:
    from rich.console import Console

# Panels of `magna --help`, in its order.
FIRST, PREPARE, PAPER, MACHINE = "Train → evaluate → predict", "Data", "Search and repeat the paper", "This machine"
# Panels of a command's `--help`.
DATA, MODEL, TRAINING, OUTPUT, OTHER = "Data", "Model", "Training", "Output", "Other"
NODES, LINKS, SEARCH = "Query of nodes", "Query of links", "Search"
PANELS = (NODES, LINKS, SEARCH, DATA, MODEL, TRAINING, OUTPUT, OTHER)

SETTINGS_HINT = "The config.toml of a run folder lists every setting."


def option(panel: str, metavar: str, help: str, *flags: str, **more: Any) -> Any:
    """An option below the heading `panel` of the help; `metavar` is empty for a switch."""
    return typer.Option(*flags, metavar=metavar, help=help, rich_help_panel=panel, **more)


TableFormat = Literal["csv", "tsv", "json", "parquet"]
DataDir = Annotated[
    Path | None,
    option(DATA, "FOLDER", "Folder of the public data sets. Default: MAGNA_DATA_DIR, else the user's cache folder."),
]
AsJson = Annotated[bool, option(OUTPUT, "", "Print one JSON object on stdout.", "--json")]
Verbose = Annotated[bool, option(OTHER, "", "Show the traceback of an error.", "-v", "--verbose")]
OnDevice = Annotated[
    Literal["auto", "cpu", "cuda"],
    option(TRAINING, "NAME", "auto, cpu or cuda; auto: the GPU if there is one."),
]
Recipe = Annotated[
    str | None,
    typer.Argument(
        help="A recipe, such as cora; a TOML file; or a folder with your data. Default: digits.",
        autocompletion=complete_recipe,
    ),
]
Assignments = Annotated[
    list[str] | None,
    option(MODEL, "KEY=VALUE", "Change a setting, such as train.epochs=40; may be repeated.", "--set"),
]
Work = Annotated[
    Path | None,
    option(OUTPUT, "FOLDER", "Folder of new cells, one file each. Default: runs/cells, with --quick runs/quick."),
]
Results = Annotated[
    Path, option(OUTPUT, "FOLDER", "Committed cells, which are not trained again, except with --quick.")
]
RunPath = Annotated[Path, typer.Argument(help="A run folder, such as runs/digits.", autocompletion=complete_run)]
NewGraph = Annotated[
    Path | None,
    option(
        DATA, "PATH", "New place of the data, or a new graph with the same features, or triples with the same names."
    ),
]


Ignore = Annotated[
    list[str] | None,
    option(DATA, "COLUMN", "Leave out a column of your tables; may be repeated, or have commas.", "--ignore"),
]
Columns = Annotated[
    str | None, option(DATA, "NAMES", "Meaning of columns of your tables, such as id=worker,label=team.", "--columns")
]
Directed = Annotated[bool, option(DATA, "", "Keep the directions of your edges.", "--directed")]
Target = Annotated[
    Literal["number", "classes"] | None,
    option(DATA, "KIND", "Kind of your labels. Default: over 20 different numbers are a number.", "--target"),
]
ValidShare = Annotated[
    float | None,
    option(DATA, "SHARE", "Share for validation, and for the test, where your data has no split.", "--valid"),
]
SplitSeed = Annotated[int | None, option(DATA, "SEED", "Seed of a split that is drawn. Default: 0.", "--split-seed")]


JudgedBy = Annotated[
    str | None,
    option(TRAINING, "NAME", "Metric that models are judged by, such as roc_auc. Default: by the labels.", "--metric"),
]
ClassWeights = Annotated[
    Literal["none", "balanced"] | None,
    option(TRAINING, "NAME", "balanced: each class has the same weight in the loss.", "--class-weights"),
]


def task_settings(metric: str | None, class_weights: str | None) -> dict[str, Any]:
    """Settings of the task by their keys; flags that were not given are absent.

    >>> task_settings("roc_auc", None)
    {'task.metric': 'roc_auc'}
    """
    values = {"task.metric": metric, "task.class_weights": class_weights}
    return {key: value for key, value in values.items() if value is not None}


def data_settings(
    ignore: list[str] | None,
    columns: str | None,
    directed: bool,
    target: str | None,
    valid: float | None,
    split_seed: int | None,
) -> dict[str, Any]:
    """Settings for reading your own data, by their keys; flags that were not given are absent.

    >>> data_settings(["note", "date"], None, True, None, 0.1, None)
    {'data.ignore': 'note,date', 'data.undirected': False, 'data.valid_share': 0.1}
    """
    values = {
        "data.ignore": ",".join(ignore) if ignore else None,
        "data.columns": columns,
        "data.undirected": False if directed else None,
        "data.target": target,
        "data.valid_share": valid,
        "data.split_seed": split_seed,
    }
    return {key: value for key, value in values.items() if value is not None}


def plain_console() -> Console:
    """A console that prints [b] and :cat: letter by letter, for tables of a user's names."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def printable(name: str) -> str:
    r"""A user's name with its control characters escaped.

    >>> printable("a\x1b[2Jb é")
    'a\\x1b[2Jb é'
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)


def printed(result: Any) -> Any:
    """A result with every text in it `printable`."""
    if isinstance(result, str):
        return printable(result)
    if isinstance(result, dict):
        return {printed(key): printed(value) for key, value in result.items()}
    return [printed(value) for value in result] if isinstance(result, list) else result


def show_notes(result: dict[str, Any]) -> None:
    """Print notes on the data on stderr."""
    for note in result.get("notes", ()):
        typer.echo(f"note: {note}", err=True)
