"""The command line: it parses, calls and prints. Only commands that need torch import it."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from magna import __version__
from magna.cli.command import STOPPED, InputError, app, catch_signals, ignore_signals, tell

# Each module registers its command; the help lists them in this order.
for _verb in ("train", "evaluate", "predict", "plan", "sweep", "reproduce", "bench", "data"):
    import_module(f"magna.cli.{_verb}")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Print the version, or the help if no command is named."""
    if version:
        typer.echo(f"magna {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The `magna` program."""
    catch_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our letters shows a ? for them
    try:
        status = app(prog_name="magna", standalone_mode=False)
    except InputError as error:
        status = tell(_input_fault(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        ignore_signals()
        status = tell(STOPPED, 1)
    sys.exit(status or 0)


def _input_fault(error: Any) -> str:
    """The message of an error in the arguments, with what to try: for an option such as --epochs, its setting."""
    from magna.config.schema import Config
    from magna.config.spaces import keys

    command = getattr(getattr(error, "ctx", None), "command_path", "magna")
    option = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
    settings = [key for key in keys(Config()) if option and key.endswith(f".{option}")]
    hint = f"--set {settings[0]}=VALUE or {command} --help" if settings else f"{command} --help"
    return f"{error.format_message().rstrip('.')}; try {hint}"
