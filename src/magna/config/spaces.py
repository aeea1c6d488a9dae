"""Keys of settings, and the values that a search tries for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magna.config.toml import Range, make_range
from magna.errors import ArgumentError, UnknownName, similar

TABLES = ("source", "data", "model", "task", "train", "expected")


def split_key(key: str) -> list[str]:
    """The settings that a key names, mostly one.

    >>> split_key("model.input_dropout, model.output_dropout")
    ['model.input_dropout', 'model.output_dropout']
    """
    return [name.strip() for name in key.split(",")]


def keys(config: Any) -> Iterator[str]:
    """Every key that a recipe with the model and task of this one may have, such as `train.epochs`."""
    yield from ("task.name", "model.name")
    for table in TABLES:
        yield from (f"{table}.{name}" for name in getattr(config, table).in_recipes())


def unknown_key(key: str, known: list[str]) -> UnknownName:
    """The error of a key that no table has, with the nearest ones."""
    entry = key.rpartition(".")[2]
    # The same name in another table, else those that begin with it, else those of similar letters.
    near = [one for one in known if one.rpartition(".")[2] == entry] or [one for one in known if one.startswith(key)]
    near = near or similar(key, known) or [one for one in known if similar(entry, [one.rpartition(".")[2]], 1)]
    form = "a key such as train.epochs or model.alpha"
    return UnknownName("setting", key, near or form, "the config.toml of a run, which lists all")


def search_space(config: Any, key: str, values: Any) -> list[Any] | Range:
    """Values that `[search]` tries for a key: a list of values, or a table of bounds."""
    # All trials share the data, and the search draws the seeds.
    left_out = ("task.name", "model.name", "train.seed")
    searchable = [
        name for name in keys(config) if name.startswith(("model.", "task.", "train.")) and name not in left_out
    ]
    space: list[Any] | Range
    for name in split_key(key):
        if name not in searchable:
            raise unknown_key(f"search.{name}", [f"search.{known}" for known in searchable])
        table, entry = name.split(".")
        options = type(getattr(config, table))
        if isinstance(values, list | tuple) and values:
            space = list(values)
        elif isinstance(values, Mapping):
            space = make_range(f"search.{name}", values, options.types()[entry])
        else:
            raise ArgumentError(f"search.{name}", values, "a list of values, or a table such as { low = 1, high = 8 }")
        try:
            if isinstance(space, list):
                space = [options.checked_value(entry, value) for value in space]
            else:
                options.checked_value(entry, space.low), options.checked_value(entry, space.high)
        except ArgumentError as error:
            raise error.renamed(f"search.{name}") from None
    return space
