"""The values of a recipe: checked against the types of its dataclasses, read from TOML and written back."""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_BARE_POINT = re.compile(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Range:
    """Numbers that a search draws from, both ends included; whole numbers for a setting that is one."""

    low: float
    high: float
    log: bool = False  # evenly in the logarithm
    step: float | None = None


@cache
def hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def build(kind: Any, values: Mapping[str, Any], prefix: str) -> Any:
    known = hints(kind)
    arguments = {}
    for key, value in values.items():
        if key not in known:
            raise unknown(prefix + key, [prefix + name for name in known])
        arguments[key] = checked(prefix + key, value, known[key])
    return kind(**arguments)


def checked(key: str, value: Any, hint: Any) -> Any:
    """The value as the type that its field asks for."""
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} is {value!r}; allowed: a table, [{key}]")
        return build(hint, value, f"{key}.")
    if get_origin(hint) in (Union, types.UnionType):
        kinds = get_args(hint)
        if type(None) in kinds and value in (None, "none"):
            return None
        # `bool | int`: the exact type, so that true stays true; a whole number is a number as well.
        known = (kind for kind in kinds if type(value) is kind or (kind is float and type(value) is int))
        if (kind := next(known, None)) is None:
            raise ValueError(f"{key} is {value!r}; allowed: {' or '.join(_WORDS[kind] for kind in kinds)}")
        return checked(key, value, kind)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{key} is {value!r}; allowed: {', '.join(map(repr, get_args(hint)))}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if get_origin(hint) is not None:
        hint = get_origin(hint)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ValueError(f"{key} is {value!r}; allowed: {_WORDS.get(hint, hint.__name__)}")
    if hint is float and not math.isfinite(value):
        raise ValueError(f"{key} is {value}; allowed: a finite number")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): '"none"'}


def make_range(key: str, table: Mapping[str, Any], hint: Any) -> Range:
    kinds = get_args(hint) or (hint,)
    number = next((kind for kind in kinds if kind in (int, float)), None)
    if number is None:
        raise ValueError(f"{key} is a table; allowed: a list of values, because it is not a number")
    for name in table:
        if name not in ("low", "high", "log", "step"):
            raise unknown(f"{key}.{name}", [f"{key}.{known}" for known in ("low", "high", "log", "step")])
    if not {"low", "high"} <= table.keys():
        raise ValueError(f"{key} has no {'high' if 'low' in table else 'low'}; allowed: both low and high")
    low, high = (checked(f"{key}.{name}", table[name], number) for name in ("low", "high"))
    log = checked(f"{key}.log", table.get("log", False), bool)
    step = checked(f"{key}.step", table.get("step"), number | None)
    if low > high:
        raise ValueError(f"{key} goes from {low} to {high}; allowed: low at most as large as high")
    if log and (low <= 0 or step is not None):
        raise ValueError(f"{key} is logarithmic; allowed: low above 0, and no step")
    if step is not None and step <= 0:
        raise ValueError(f"{key}.step is {step}; allowed: more than 0")
    return Range(low, high, log, step)


def unknown(key: str, allowed: list[str]) -> ValueError:
    own = key.rpartition(".")[2]
    # The same name in another table, then one that begins so, then one that looks like it.
    near = [one for one in allowed if one.rpartition(".")[2] == own] or [one for one in allowed if one.startswith(key)]
    near = near or difflib.get_close_matches(key, allowed, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(allowed)}"
    return ValueError(f"{key} is not a key of a recipe; {hint}")


def parse(text: str) -> Any:
    """A TOML value; what is none is taken as text, so that quotes are not needed on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        # TOML wants a digit on either side of the point.
        return float(text) if _BARE_POINT.fullmatch(text.strip()) else text


def toml(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = [f"{toml_key(key)} = {toml(entry)}" for key, entry in value.items() if entry is not None]
        return f"{{ {', '.join(entries)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(entry) for entry in value)}]"
    # TOML knows no null; the word is read back as None.
    return _quoted("none" if value is None else value)


def toml_key(key: str) -> str:
    return key if key.isascii() and key.isidentifier() else _quoted(key)


def _quoted(value: Any) -> str:
    """As JSON writes it, which TOML reads but for one letter."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def at_least(name: str, value: float, low: float) -> None:
    if value < low:
        raise ValueError(f"{name} is {value}; allowed: {low} or more")
