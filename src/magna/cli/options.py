"""Options that several commands share, and printing."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magna.config.schema import DEFAULT_RECIPE

if TYPE_CHECKING:
    from rich.console import Console


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Sampler(StrEnum):
    random = "random"
    tpe = "tpe"


class TableFormat(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"


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
Recipe = Annotated[
    str | None,
    typer.Argument(
        help=f"A recipe, a TOML file or a folder with your data; else {DEFAULT_RECIPE}.", show_default=False
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.", show_default=False),
]
RunPath = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
NewGraph = Annotated[
    Path | None,
    typer.Option(
        help="Where the data is now, or a new graph with the same features, or triples with the same names.",
        show_default=False,
    ),
]


def plain_console() -> Console:
    """For tables of a user's names: [b] and :cat: are letters of a name here."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def printable(name: str) -> str:
    r"""A user's name as a terminal may show it: control characters would be obeyed.

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
    """What one should know of the data; not on stdout, where the result is."""
    for note in result.get("notes", ()):
        typer.echo(f"note: {note}", err=True)
