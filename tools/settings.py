"""Tables of every setting of a recipe, from the fields that define it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from magna.config.options import HUGE, Option, Options
from magna.config.registry import find_model, model_names
from magna.config.tables import TASKS, TrainOptions
from magna.config.toml import toml
from magna.nn.custom import CUSTOM
from magna.paper.render import TextTable

TABLES = ("data", "model", "task", "train")
_TASK_TITLES = {"nodes": "Node classification", "links": "Link prediction"}
# Groups of the settings of MAGNA, by the class that defines an option first, or by the option.
_TITLE_OF = {
    "MAGNAOptions": "Sizes",
    "AttentionOptions": "Attention",
    "DiffusionOptions": "Diffusion",
    "ConvOptions": "Heads and output of a layer",
    "BlockOptions": "Block",
    "EncoderOptions": "Around the blocks",
    "DropoutOptions": "Dropout",
    "LinkPredictorOptions": "Knowledge graphs",
}
_PLACED = {
    "K": "Diffusion",
    "alpha": "Diffusion",
    "diffusion": "Diffusion",
    "bias": "Heads and output of a layer",
    "edge_dropout_shared": "Dropout",
    "backend": "Computation",
    "memory": "Computation",
    "init": "Computation",
}
_TITLES = (*_TITLE_OF.values(), "Computation", "Ensembles")
_SHORT = {"node_classification": "nodes", "link_prediction": "links"}


def settings_table(name: str) -> TextTable:
    """The settings of `data`, `model`, `task` or `train`.

    >>> settings_table("train").rows[0]
    ['`train.epochs`', '`200`', 'Largest number of epochs. 1 or more.']
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


def settings_sections(name: str) -> str:
    """The settings of a table of a recipe, one Markdown table for each group of them."""
    if name == "train":
        return settings_table(name).markdown()
    parts = []
    for title, rows in _groups(name).items():
        # A column that says the same in every row is left out.
        tasks = {row[-1] for row in rows}
        header = ["setting", "default", "meaning", "task"][: 3 + (len(tasks) > 1)]
        table = TextTable(header, [row[: len(header)] for row in rows]).markdown()
        parts.append(f"### {title}\n\n{table}")
    return "\n\n".join(parts)


def _groups(name: str) -> dict[str, list[list[str]]]:
    """Rows of setting, default, meaning and tasks, by the title of their group."""
    groups: dict[str, dict[tuple[str, ...], list[str]]] = {title: {} for title in _TITLES} if name == "model" else {}
    for owner, kind in _kinds(name):
        model, _, task = owner.rpartition(" ")
        for key in kind.in_recipes():
            title = _title(model, kind, key) if name == "model" else _TASK_TITLES[owner]
            row = (f"`{name}.{key}`", f"`{toml(getattr(kind, key))}`", _meaning(kind, key))
            tasks = groups.setdefault(title, {}).setdefault(row, [])
            tasks += [task.strip("()")] if task.strip("()") not in tasks else []
    return {title: [[*row, ", ".join(tasks)] for row, tasks in rows.items()] for title, rows in groups.items() if rows}


def _title(model: str, kind: type[Options], key: str) -> str:
    """The group of a setting of a model: of MAGNA by its purpose, of another by the model."""
    if key == "members":
        return "Ensembles"
    if model != "magna":
        return f"Model `{model}`"
    first = next(base for base in reversed(kind.__mro__) if key in vars(base).get("__annotations__", {}))
    if key in _PLACED:
        return _PLACED[key]
    return "Dropout" if "dropout" in key and first.__name__ != "LinkPredictorOptions" else _TITLE_OF[first.__name__]


def _kinds(name: str) -> list[tuple[str, type[Options]]]:
    """The options of a table, by the tasks or models that have them."""
    if name == "train":
        return [("", TrainOptions)]
    if name == "model":
        # No recipe names a module of the user's.
        models = [(task, model) for task in TASKS for model in model_names(task) if model != CUSTOM]
        return [(f"{model} ({_SHORT[task]})", find_model(task, model).settings) for task, model in models]
    return [(_SHORT[task], kind.DATA if name == "data" else kind) for task, kind in TASKS.items()]


def limits_of(info: Option) -> str:
    """The numbers that are allowed, as a sentence without its point; a limit that nobody reaches is left out.

    >>> limits_of(Option("", low=1, high=HUGE)), limits_of(Option("", low=0, high=1))
    ('1 or more', '0 to 1')
    """
    return (replace(info, high=None) if info.high == HUGE else info).range.capitalize()


def _meaning(kind: type[Options], key: str) -> str:
    info = kind.options()[key]
    parts = [info.help.rstrip(".")]
    choices = list(info.names()) if info.names else _choices(kind.types()[key])
    if not all(choice in info.help for choice in choices):
        parts.append("One of " + ", ".join(map(toml, choices)))
    need = info.needs or info.model_needs
    limits = limits_of(info)
    parts += [limits] * bool(limits) + ([f"Needs {need.words}"] if need else [])
    return (". ".join(parts) + ".").replace("|", r"\|")


def _choices(hint: Any) -> list[str]:
    kinds = hint, *get_args(hint)
    return [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
