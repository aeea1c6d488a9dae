"""Values of TOML: read, written, and the bounds of a search."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from magna.config.options import checked
from magna.errors import ArgumentError, UnknownName

_BARE_POINT = re.compile(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Range:
    """Numbers that a search draws from, both ends included; whole numbers for a setting that is one."""

    low: float
    high: float
    log: bool = False  # evenly in the logarithm
    step: float | None = None


def make_range(key: str, table: Mapping[str, Any], hint: Any) -> Range:
    """A range from the table of its bounds, for a setting of type `hint`."""
    number = next((kind for kind in get_args(hint) or (hint,) if kind in (int, float)), None)
    if number is None:
        raise ArgumentError(key, dict(table), "a list of values, as the setting is not a number")
    for name in table:
        if name not in ("low", "high", "log", "step"):
            raise UnknownName(f"bound of {key}", name, ["low", "high", "log", "step"])
    if not {"low", "high"} <= table.keys():
        raise ArgumentError(key, dict(table), "both low and high")
    low, high = (checked(f"{key}.{name}", table[name], number) for name in ("low", "high"))
    log = checked(f"{key}.log", table.get("log", False), bool)
    step = checked(f"{key}.step", table.get("step"), number | None)
    if low > high:
        raise ArgumentError(f"{key}.low", low, f"at most {key}.high, {high}")
    if log and (low <= 0 or step is not None):
        raise ArgumentError(f"{key}.log", log, "true only with low above 0 and without a step")
    if step is not None and step <= 0:
        raise ArgumentError(f"{key}.step", step, "above 0")
    return Range(low, high, log, step)


def parse(text: str) -> Any:
    """A TOML value; anything else is taken as text, so that quotes are not needed on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        # TOML wants a digit on either side of the point.
        return float(text) if _BARE_POINT.fullmatch(text.strip()) else text


def toml(value: Any) -> str:
    """A value as TOML writes it; None as the text "none"."""
    if isinstance(value, Mapping):
        entries = [f"{toml_key(key)} = {toml(entry)}" for key, entry in value.items() if entry is not None]
        return f"{{ {', '.join(entries)} }}" if entries else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(entry) for entry in value)}]"
    return _quoted("none" if value is None else value)


def toml_key(key: str) -> str:
    """A key of a table, quoted if TOML asks for it."""
    return key if key.isascii() and key.isidentifier() else _quoted(key)


def _quoted(value: Any) -> str:
    """A value as JSON writes it, which TOML reads but for one letter."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
