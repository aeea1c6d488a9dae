"""Options that several commands share, and printing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console


TableFormat = Literal["csv", "tsv", "json", "parquet"]
DataDir = Annotated[
    Path | None, typer.Option(help="Data folder. Default: MAGNA_DATA_DIR, else the user's cache folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the traceback of an error.")]
OnDevice = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: the GPU if there is one.")]
Recipe = Annotated[
    str | None, typer.Argument(help="A recipe, a TOML file or a folder with your data. Default: digits.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a setting, such as train.epochs=40; may be repeated."),
]
RunPath = Annotated[Path, typer.Argument(help="A run folder.")]
NewGraph = Annotated[
    Path | None,
    typer.Option(help="New place of the data, or a new graph with the same features, or triples with the same names."),
]


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
