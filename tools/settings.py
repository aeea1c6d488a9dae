"""Every setting of a recipe, its default and what it does, read where that is written: behind the setting in
`config.py`, or under the arguments of the model that has it. Reads files, never a model.
"""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Literal, get_args, get_origin

from magna.config.schema import DataConfig, ModelConfig, TaskConfig, TrainConfig
from magna.config.toml import hints, toml
from magna.paper.render import TextTable

TABLES = {"data": DataConfig, "model": ModelConfig, "task": TaskConfig, "train": TrainConfig}
# Where the arguments of models are explained; the first that has one speaks for it.
_MODELS = {"encoder": "MAGNA", "block": "MAGNABlock", "conv": "MAGNAConv", "link_predictor": "LinkPredictor"}
_WORDS = {"True": "true", "False": "false", "None": '"none"'}  # Python's, as a recipe writes them
_HERE = Path(__file__).parents[1] / "src" / "magna"


def settings_table(name: str) -> TextTable:
    """The settings of `data`, `model`, `task` or `train`.

    >>> settings_table("train").rows[0]
    ['`train.epochs`', '`200`', 'the most that a run has']
    """
    kind = TABLES[name]
    known, told = hints(kind), _beside(kind.__name__)
    if kind is ModelConfig:
        told = _arguments() | told
    rows = []
    for field in fields(kind):
        meaning = told[field.name]
        kinds = known[field.name], *get_args(known[field.name])
        choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        if not all(choice in meaning for choice in choices):
            meaning += "; one of " + ", ".join(map(toml, choices))
        rows.append([f"`{name}.{field.name}`", f"`{toml(field.default)}`", meaning.replace("|", r"\|")])
    return TextTable(["setting", "default", "meaning"], rows)


def _beside(kind: str) -> dict[str, str]:
    """What `config.py` says behind the settings of a table."""
    text = (_HERE / "config" / "schema.py").read_text(encoding="utf-8")
    body = text.split(f"\nclass {kind}:\n")[1].split("\n\n\n")[0]
    return dict(re.findall(r"^    (\w+): .+? = .+?  # (.+)$", body, flags=re.MULTILINE))


@cache
def _arguments() -> dict[str, str]:
    """What the models' docstrings say of their arguments."""
    told: dict[str, str] = {}
    for file, name in _MODELS.items():
        tree = ast.parse((_HERE / "nn" / f"{file}.py").read_text(encoding="utf-8"))
        model = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        arguments = (ast.get_docstring(model) or "").split("\nArgs:\n")[1].split("\n\n")[0]
        for argument, text in re.findall(r"^    (\w+): (.+(?:\n        .+)*)", arguments, flags=re.MULTILINE):
            plain = re.sub(r":\w+:`(\w+)`", r"`\1`", " ".join(text.split()).rstrip("."))
            told.setdefault(argument, re.sub(r"\b(True|False|None)\b", lambda word: _WORDS[word[0]], plain))
    return told
