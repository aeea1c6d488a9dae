"""The page of the command line, from the functions that define the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import typer

import magna.cli  # noqa: F401 (registers the commands)
from magna.cli.command import app
from magna.paper.render import TextTable


class Command(NamedTuple):
    """A command by its full name, with what typer knows of it."""

    name: str  # such as "magna data list"
    info: Any


def commands(group: typer.Typer = app, prefix: str = "magna") -> Iterator[Command]:
    """Every command that the help lists."""
    for info in group.registered_commands:
        if not info.hidden and info.callback is not None:
            yield Command(f"{prefix} {info.name or info.callback.__name__}", info)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, f"{prefix} {inner.name}")


def command_sections() -> str:
    """A heading, the help, the arguments and options, and an example of each command."""
    return "\n\n".join(map(_section, commands()))


def _section(command: Command) -> str:
    words = inspect.getdoc(command.info.callback) or ""
    entries = list(_entries(command.info.callback))
    usage = " ".join([command.name, *(entry.usage for entry in entries if entry.is_argument), "[OPTIONS]"])
    parts = [f"## {command.name}", " ".join(words.split()), f"```text\n{usage}\n```"]
    for panel in dict.fromkeys(entry.panel for entry in entries):
        rows = [entry.row for entry in entries if entry.panel == panel]
        parts += [f"**{panel}**"] if panel else []
        parts.append(TextTable(["argument or option", "meaning", "default"], rows).markdown())
    if command.info.epilog:
        example = command.info.epilog.removeprefix("Example: ")
        parts.append(f"Example:\n\n```console\n$ {example}\n```")
    return "\n\n".join(parts)


class _Entry(NamedTuple):
    is_argument: bool
    usage: str
    panel: str
    row: list[str]


def _entries(callback: Any) -> Iterator[_Entry]:
    """Arguments first, then options, each group in the order of the function."""
    entries = [_entry(each) for each in inspect.signature(callback).parameters.values()]
    yield from sorted(entries, key=lambda entry: not entry.is_argument)


def _entry(parameter: inspect.Parameter) -> _Entry:
    kind, info = get_args(parameter.annotation)[:2]
    is_argument = isinstance(info, type(typer.Argument()))
    name = parameter.name.replace("_", "-")
    required = parameter.default is inspect.Parameter.empty
    # typer stores the first of the declared names as the default of an annotated parameter.
    words = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
    if is_argument:
        shown = info.metavar or name.upper()
    else:
        flags = [flag for word in words for flag in word.split("/")] or [f"--{name}"]
        if _plain(kind) is bool and not words and parameter.default is not False:
            flags += [f"--no-{name}"]
        value = "" if _plain(kind) is bool else f" {info.metavar or _value(kind)}"
        shown = ", ".join(f"{flag}{value if flag.startswith('--') else ''}" for flag in flags)
    usage = shown if required else f"[{shown}]"
    meaning, default = _split(_meaning(info))
    names = " / ".join(f"`{part}`" for part in shown.split(", ")).replace("|", r"\|")
    row = [names, meaning, default or _default(parameter.default, required)]
    return _Entry(is_argument, usage, info.rich_help_panel or "", row)


def _plain(kind: Any) -> Any:
    """The type of a value that may be None or come several times.

    >>> _plain(int | None), _plain(list[str] | None)
    (<class 'int'>, <class 'str'>)
    """
    if get_origin(kind) in (Union, UnionType):
        return _plain(next(each for each in get_args(kind) if each is not type(None)))
    return _plain(get_args(kind)[0]) if get_origin(kind) is list else kind


def _value(kind: Any) -> str:
    """The form of a value.

    >>> _value(Literal["auto", "cpu"]), _value(list[str] | None)
    ('auto|cpu', 'TEXT')
    """
    kind = _plain(kind)
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return {str: "TEXT", int: "INTEGER", float: "NUMBER"}.get(kind, "PATH")


def _split(help: str) -> tuple[str, str]:
    """A help text without its default, and the default.

    >>> _split("Run folder. Default: runs/RECIPE.")
    ('Run folder.', 'runs/RECIPE')
    """
    match = re.search(r" Default: ([^.]+(?:\.\w[^.]*)*)\.", help)
    return (help.replace(match[0], ""), match[1]) if match else (help, "")


def _default(value: Any, required: bool) -> str:
    if required:
        return "required"
    if value in (None, False, ()):
        return ""
    return "on" if value is True else f"`{value}`"


def _meaning(info: Any) -> str:
    ends = [info.min, info.max]
    words = (info.help or "").replace("|", r"\|")
    if ends == [None, None]:
        return words
    limits = f"{info.min:,} or more" if info.max is None else f"at most {info.max:,}"
    limits = limits if None in ends else f"{info.min:,} to {info.max:,}"
    return f"{words} {limits.capitalize()}."
