"""The command line: parses, calls, prints. Torch is imported only by the commands that need it."""

from __future__ import annotations

import io
import signal
import sys
from typing import Annotated

import typer

from magna import __version__
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
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(f"magna {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The `magna` program."""
    # Asked to end, as by batch systems, it stops as with Ctrl-C: nothing half written, trials back in their study.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our letters shows a ? for them
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
