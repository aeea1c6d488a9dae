"""The checkpoint of a run: one file of named groups of tensors, with the progress beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from magna.config.atomic_files import write_whole
from magna.errors import DataError

Groups = dict[str, dict[str, Tensor]]
WITHOUT_CHECKPOINT = "to delete it: resume=True then starts this run from the beginning"


def save_checkpoint(file: Path, groups: Mapping[str, Mapping[str, Tensor]], progress: Mapping[str, Any]) -> None:
    """Write a checkpoint; the file is complete at any moment."""
    tensors = {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_whole(file, safetensors.torch.save(plain, {"state": json.dumps(progress)}))


def load_checkpoint(file: Path) -> tuple[Groups, dict[str, Any]] | None:
    """Groups of tensors and the progress; None where there is no checkpoint."""
    if not file.exists():
        return None
    groups: Groups = {}
    try:
        with safetensors.safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 (not a dict)
                group, name = key.split("/", 1)
                groups.setdefault(group, {})[name] = stored.get_tensor(key)
            return groups, json.loads(stored.metadata()["state"])
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(file, f"it is damaged ({error})", hint=WITHOUT_CHECKPOINT) from error
