"""Names that differ between the old commit and this one.

The record and the speed comparison run the same code under both. Everything that they use beyond this file is public
and the same on both sides: the layers' arguments, the command line, the run folder.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import magna

ISAS = ("baseline", "avx2", "avx512")


def build(kind: str, seed: int, *sizes: int, **options: Any) -> Any:
    """A module by the name of its class; the attention dropout has its new name where the old one is refused.

    Recomputing now gives the bits of saving; the old commit added in another order, so its states are saved instead.
    """
    made = getattr(import_module("magna.nn"), kind)
    if is_old() and options.get("memory") == "recompute":
        options["memory"] = "save"
    torch.manual_seed(seed)
    try:
        return made(*sizes, **options)
    except (TypeError, ValueError) as error:
        if "attention_dropout" not in options or "attention_dropout" not in str(error):
            raise
    options["dropout"] = options.pop("attention_dropout")
    torch.manual_seed(seed)
    return made(*sizes, **options)


def link_scores(model: nn.Module, edge_index: Tensor, edge_type: Tensor, head: Tensor, relation: Tensor) -> Tensor:
    """Scores [B, N] of queries (head, relation, ?) with every entity."""
    scores: Any = model(edge_index, edge_type, head, relation)
    result: Tensor = scores.scores() if is_old() else scores
    return result


def batch_losses(recipe: str, changes: list[dict[str, Any]]) -> list[list[float]]:
    """Training losses of each epoch, of one recipe with several changes trained as trials of one batch."""
    config = imported("config", "config.schema").load_recipe(recipe)
    configs = [config.with_settings(change) for change in changes]
    task = imported("tasks").make_task(configs[0], None, torch.device("cpu"))
    results = imported("trials", "training.trials").train_trials(configs, task)
    return [[row["loss"] for row in result.history] for result in results]


def imported(old: str, new: str | None = None) -> Any:
    """A module by its name at the old commit and by its name now."""
    return import_module(f"magna.{old if is_old() else new or old}")


def is_old() -> bool:
    """True where the imported package is the old commit."""
    assert magna.__file__ is not None
    return (Path(magna.__file__).parent / "trial_batch.py").exists()


def kernel_name() -> str:
    """Instruction set of the compiled CPU kernels; "reference" where there are none."""
    file = library()
    if file is None:
        return "reference"
    return os.environ.get("MAGNA_CPU_ISA") or ISAS[ctypes.CDLL(str(file)).magna_best_isa()]


def library() -> Path | None:
    """The file of the compiled CPU kernels."""
    assert magna.__file__ is not None
    return next((Path(magna.__file__).parent / "ops").rglob("libmagna.so"), None)
