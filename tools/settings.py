"""Tables of every setting of a recipe, from the fields that define it."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from magna.config.options import Options
from magna.config.registry import find_model, model_names
from magna.config.tables import TASKS, TrainOptions
from magna.config.toml import toml
from magna.nn.custom import CUSTOM
from magna.paper.render import TextTable

TABLES = ("data", "model", "task", "train")
_SHORT = {"node_classification": "nodes", "link_prediction": "links"}


def settings_table(name: str) -> TextTable:
    """The settings of `data`, `model`, `task` or `train`.

    >>> settings_table("train").rows[0]
    ['`train.epochs`', '`200`', 'Largest number of epochs. 1 to 16777216.']
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for owner, kind in _kinds(name):
        for key in kind.in_recipes():
            row = (f"`{name}.{key}`", f"`{toml(getattr(kind, key))}`", _meaning(kind, key))
            rows.setdefault(row, []).append(owner)
    ordered = sorted(rows, key=lambda row: [other[0] for other in rows].index(row[0]))
    if name == "train":
        return TextTable(["setting", "default", "meaning"], [list(row) for row in ordered])
    return TextTable(["setting", "default", "meaning", "of"], [[*row, ", ".join(rows[row])] for row in ordered])


def _kinds(name: str) -> list[tuple[str, type[Options]]]:
    """The options of a table, by the tasks or models that have them."""
    if name == "train":
        return [("", TrainOptions)]
    if name == "model":
        # No recipe names a module of the user's.
        models = [(task, model) for task in TASKS for model in model_names(task) if model != CUSTOM]
        return [(f"{model} ({_SHORT[task]})", find_model(task, model).settings) for task, model in models]
    return [(_SHORT[task], kind.DATA if name == "data" else kind) for task, kind in TASKS.items()]


def _meaning(kind: type[Options], key: str) -> str:
    info = kind.options()[key]
    parts = [info.help.rstrip(".")]
    choices = list(info.names()) if info.names else _choices(kind.types()[key])
    if not all(choice in info.help for choice in choices):
        parts.append("One of " + ", ".join(map(toml, choices)))
    need = info.needs or info.model_needs
    parts += [info.range.capitalize()] * bool(info.range) + ([f"Needs {need.words}"] if need else [])
    return (". ".join(parts) + ".").replace("|", r"\|")


def _choices(hint: Any) -> list[str]:
    kinds = hint, *get_args(hint)
    return [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
