"""What the commands share: options, and how a command ends."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from magna.config.schema import DEFAULT_RECIPE
from magna.config.threads import other_cores
from magna.use.files import to_json

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


def finish(
    work: Callable[[], dict[str, Any]], verbose: bool, as_json: bool, show: Callable[[dict[str, Any]], None]
) -> None:
    """Run a command's work and print its result; errors become one line and an exit status."""
    try:
        result = work()
        if as_json:
            typer.echo(to_json(result))
        else:
            show(shown(result))
    except BrokenPipeError:
        raise  # whoever reads has heard enough: typer ends without a word
    except KeyboardInterrupt:
        _wait_for_device()
        fail("stopped; a training run goes on with --resume, a search or a table when it is called again", 1, verbose)
    except ValueError as error:
        fail(str(error), 2, verbose)
    except OSError as error:
        words = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        if error.errno == errno.ENAMETOOLONG:  # not a failure of the machine: no file can be called so
            fail(f"{words}; try a shorter one", 2, verbose)
        if isinstance(error, PermissionError) and error.filename:
            fail(f"{words}; try a place that you may read and write, or see to that", 2, verbose)
        fail(words, 1, verbose)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        # Torch's own error on a GPU; on a CPU it is one of many, and Python has another.
        if isinstance(error, MemoryError) or "OutOfMemory" in words or "can't allocate memory" in words:
            words = f"memory is not enough ({words}); magna plan says what a run needs and what would make it smaller"
        fail(words, 1, verbose)


def _wait_for_device() -> None:
    """Leave no work behind on a GPU: where processes share one (MPS), that can end the others with errors."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


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


def shown(result: Any) -> Any:
    """A result with every text in it `printable`."""
    if isinstance(result, str):
        return printable(result)
    if isinstance(result, dict):
        return {shown(key): shown(value) for key, value in result.items()}
    return [shown(value) for value in result] if isinstance(result, list) else result


def show_notes(result: dict[str, Any]) -> None:
    """What one should know of the data; not on stdout, where the result is."""
    for note in result.get("notes", ()):
        typer.echo(f"note: {note}", err=True)


def share_cores() -> None:
    """Before torch is loaded, which reads it: where others are at work, threads that wait soon leave them the cores.

    Beside other runs on the same cores, threads that spin make a small graph train several times slower; alone, ones
    that do not spin make it take up to twice as long. A thousand turns are a few microseconds.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys() and _others_at_work():
        os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}


def _others_at_work() -> bool:
    """Whether others run on half of the cores or more, for a tenth of a second; no where the system does not say."""
    with other_cores() as others:
        time.sleep(0.1)
        busy = others()
    return busy is not None and round(busy) >= (os.cpu_count() or 1) / 2


def fail(message: str, status: int, verbose: bool) -> NoReturn:
    if verbose:
        traceback.print_exc()
    print(f"magna: {printable(' '.join(line.strip() for line in message.splitlines()))}", file=sys.stderr)
    raise typer.Exit(status)
