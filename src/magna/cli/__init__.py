"""The command line: it parses, calls and prints. Only commands that need torch import it."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from magna import __version__
from magna.cli.command import STOPPED, InputError, catch_signals, tell
from magna.cli.data import data_app
from magna.cli.runs import run_app
from magna.cli.studies import study_app
from magna.cli.use import use_app

app = typer.Typer(
    name="magna",
    help="Multi-hop attention graph neural networks: train, evaluate, measure.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(run_app)
app.add_typer(use_app)
app.add_typer(study_app)
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Print the version, or the help where no command is named."""
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
        command = getattr(getattr(error, "ctx", None), "command_path", "magna")
        status = tell(f"{error.format_message().rstrip('.')}; try {command} --help", error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        status = tell(STOPPED, 1)
    sys.exit(status or 0)
