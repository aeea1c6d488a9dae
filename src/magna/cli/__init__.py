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
_VERBS = ("train", "evaluate", "predict", "data", "sweep", "reproduce", "doctor", "plan", "bench")
for _verb in _VERBS:
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
    """The message of an error in the arguments, with what to try."""
    message = error.format_message().rstrip(".")
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    verb = next((name for name in names[:1] if name in _VERBS), "")
    path = getattr(getattr(error, "ctx", None), "command_path", f"magna {verb}".strip())
    tries = [*_setting_for(getattr(error, "option_name", ""), path.partition(" ")[2]), f"{path} --help"]
    return f"{message}; try {' or '.join(tries)}"


def _setting_for(option: str, verb: str) -> list[str]:
    """The `--set` that stands for an option such as `--epochs 3`, if a command takes settings."""
    if not option.startswith("--") or verb not in ("train", "plan", "sweep"):
        return []
    from magna.config.schema import Config
    from magna.config.spaces import keys

    entry = option[2:].replace("-", "_")
    key = next((key for key in keys(Config()) if key.casefold().endswith(f".{entry.casefold()}")), None)
    return [] if key is None else [f"--set {key}={_value_of(option)}"]


def _value_of(option: str) -> str:
    """The value that was typed after an option, or VALUE."""
    for word, following in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        if word.startswith(f"{option}="):
            return word.partition("=")[2] or "VALUE"
        if word == option:
            return "VALUE" if not following or following.startswith("-") else following
    return "VALUE"
