"""One decorator for every command: options, JSON, one line for an error, and the exit status."""

from __future__ import annotations

import errno
import inspect
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, get_args

import typer
from typer.core import TyperCommand

from magna.cli.options import OTHER, PANELS, AsJson, Verbose, printed
from magna.config.threads import other_cores
from magna.errors import ArgumentError, clean

Result = dict[str, Any]
# The base of typer's errors in input. Its home differs between versions of typer.
InputError: Any = typer.BadParameter.__mro__[2]
STOPPED = "stopped; a training run goes on with --resume, a search or a table when it is called again"
_IMPATIENT_SECONDS = 1.0  # a second Ctrl-C within this time is the same request

FIRST_STEPS = """First steps:
magna train
magna evaluate runs/digits
magna predict runs/digits --node 3"""


class Command(TyperCommand):
    """A command whose `--help` is the last line of its help."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option, without a type and below the others."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel, option.metavar = OTHER, ""
        return option


app = typer.Typer(
    name="magna",
    help="Multi-hop attention graph neural networks. The way: train → evaluate → predict.",
    epilog=FIRST_STEPS,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(
    *examples: str,
    show: Callable[[Result], None],
    panel: str | None = None,
    group: typer.Typer = app,
    name: str | None = None,
    trains: bool = False,
    failure: Callable[[Result], str | None] = lambda result: None,
    after: str = "",
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Register a function as a command that prints its result.

    The command also gets the options `--json` and `--verbose`.

    Args:
        examples: lines at the end of `--help`.
        show: prints the result for people; `--json` prints the result itself.
        panel: the heading of `magna --help` above the command.
        group: the group of commands.
        name: the name of the command; None: that of the function.
        trains: share the cores with other programs, before torch is imported.
        failure: the line of a result that is a failure, with exit status 1; None for a good result.
        after: a last line of `--help`.
    """

    def register(work: Callable[..., Result]) -> Callable[..., Result]:
        signature = inspect.signature(work, eval_str=True)

        def run(*, as_json: bool = False, verbose: bool = False, **arguments: Any) -> None:
            if trains:
                share_cores()
            result = finish(partial(work, **arguments), verbose, as_json, show, flags_of(signature))
            if (message := failure(result)) is not None:
                raise typer.Exit(tell(message, 1))

        options = {"as_json": AsJson, "verbose": Verbose}
        extra = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
            for option, annotation in options.items()
        ]
        run.__name__, run.__doc__ = work.__name__, work.__doc__
        run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()} | options
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=sorted([*signature.parameters.values(), *extra], key=_place), return_annotation=None
        )
        epilog = "\n".join(["Examples:", *examples]) + (f"\n\n{after}" if after else "")
        group.command(name, cls=Command, epilog=epilog, rich_help_panel=panel)(run)
        return work

    return register


def _place(parameter: inspect.Parameter) -> int:
    """Place of an option in the help: arguments, then the panels in their order; within a panel as in the function."""
    info = next(each for each in get_args(parameter.annotation) if hasattr(each, "param_decls"))
    return -1 if isinstance(info, type(typer.Argument())) else PANELS.index(info.rich_help_panel)


def finish(
    work: Callable[[], Result],
    verbose: bool,
    as_json: bool,
    show: Callable[[Result], None],
    flags: Mapping[str, str] | None = None,
) -> Result:
    """Run a command's work, print its result and return it; an error becomes one line and an exit status."""
    try:
        result = work()
        if as_json:
            from magna.use.files import to_json

            typer.echo(to_json(result))
        else:
            show(printed(result))
        return result
    except BrokenPipeError:
        raise  # the reader has closed the pipe: typer ends silently
    except KeyboardInterrupt:
        ignore_signals()
        fail(STOPPED, 1, verbose)
    except Exception as error:
        message, status = explained(error)
        if isinstance(error, ArgumentError) and error.name in (flags or {}):
            message = str(error.renamed((flags or {})[error.name]))
        fail(with_flags(message, flags or {}), status, verbose)


def explained(error: Exception) -> tuple[str, int]:
    """The line of an error, and its exit status: 2 for wrong input, 1 for a failure."""
    if isinstance(error, ValueError):
        return str(error), 2
    if isinstance(error, OSError):
        words = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        if error.errno == errno.ENAMETOOLONG:
            return f"{words}; try a shorter one", 2
        if isinstance(error, PermissionError) and error.filename:
            return f"{words}; try a file or folder that you may read and write", 2
        return words, 1
    words = f"{type(error).__name__}: {error}"
    # Torch has a class for it on a GPU alone.
    if isinstance(error, MemoryError) or "OutOfMemory" in words or "can't allocate memory" in words:
        return f"memory is not enough ({words}); magna plan says what a run needs and what would make it smaller", 1
    return words, 1


def flags_of(signature: inspect.Signature) -> dict[str, str]:
    """The flag of each option of a command, by the name of its argument.

    >>> from typing import Annotated
    >>> def train(run_dir: Annotated[str, typer.Option()], again: Annotated[bool, typer.Option("-a", "--again")]): ...
    >>> flags_of(inspect.signature(train, eval_str=True))
    {'run_dir': '--run-dir', 'again': '--again'}
    """
    flags = {}
    for name, parameter in signature.parameters.items():
        info = next((each for each in get_args(parameter.annotation) if hasattr(each, "param_decls")), None)
        if info is None or isinstance(info, type(typer.Argument())):
            continue
        words = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
        long = [word.partition("/")[0] for word in words if word.startswith("--")]
        flags[name] = long[0] if long else f"--{name.replace('_', '-')}"
    return flags


def with_flags(message: str, flags: Mapping[str, str]) -> str:
    """A message of the library with the command's flags in place of arguments.

    >>> with_flags("try resume=True, or another run_dir", {"resume": "--resume", "run_dir": "--run-dir"})
    'try --resume, or another --run-dir'
    """
    for name, flag in flags.items():
        plain = rf"|{name}" if "_" in name else rf"|(?<=another ){name}|(?<=more ){name}"
        message = re.sub(rf"(?<![\w./'\"-])(?:{name}=(?:True|…){plain})(?![\w./'\"-])", flag, message)
    return message


def catch_signals() -> None:
    """Make Ctrl-C and SIGTERM raise KeyboardInterrupt; a second one within a second is the same request."""
    last = -_IMPATIENT_SECONDS

    def stop(_number: int, _frame: object) -> None:
        nonlocal last
        now, before = time.monotonic(), last
        last = now
        if now - before >= _IMPATIENT_SECONDS:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as in the background of a shell
            signal.signal(number, stop)


def ignore_signals() -> None:
    """Let the program end after a Ctrl-C, whatever comes while it does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def share_cores() -> None:
    """Let waiting threads sleep if other programs use the cores; call it before torch is imported.

    While other programs run, threads that spin make a small graph train several times slower. On an idle machine,
    threads that sleep make it take up to twice as long. A thousand turns are a few microseconds.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys() and _others_at_work():
        os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}


def _others_at_work() -> bool:
    """True if others use half of the cores or more for a tenth of a second; False if the system does not tell."""
    with other_cores() as others:
        time.sleep(0.1)
        busy = others()
    return busy is not None and round(busy) >= (os.cpu_count() or 1) / 2


def say(line: str) -> None:
    """Print a line of progress on stderr."""
    typer.echo(line, err=True)


def fail(message: str, status: int, verbose: bool) -> NoReturn:
    """End the program with one line on stderr."""
    if verbose:
        import traceback

        traceback.print_exc()
    raise typer.Exit(tell(message, status))


def tell(message: str, status: int) -> int:
    """Print an error as one line on stderr and return the exit status."""
    typer.echo(f"magna: {clean(' '.join(line.strip() for line in message.splitlines()))}", err=True)
    return status
