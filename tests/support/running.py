"""Devices, tasks and the program itself, as tests run them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from magna.config.schema import Config
from magna.tasks import NodeClassification, make_task

# A recipe that trains in a moment.
SMALL: dict[str, Any] = {
    "recipe": "small",
    "model": {"hidden_channels": 16, "num_layers": 1, "heads": 4, "K": 2, "input_dropout": 0.2, "dropout": 0.2},
    "train": {"epochs": 12, "lr": 0.02},
}


def small(*assignments: str) -> Config:
    """The small recipe with other values, such as `train.epochs=40`."""
    return Config.from_dict(SMALL).with_values(assignments)


# The least that a finished run reports.
SUMMARY: dict[str, Any] = {"seed": 0, "seconds": 1.0, "epochs": 1, "valid": {}, "test": {}}


def device_of(backend: str) -> torch.device:
    """The device a backend is tested on: the GPU for Triton if there is one, else the CPU."""
    return torch.device("cuda" if backend == "triton" and torch.cuda.is_available() else "cpu")


def interpreted(backend: str) -> bool:
    """True for the Triton interpreter, which is slow enough that only small graphs are tested."""
    return backend == "triton" and not torch.cuda.is_available()


def node_task(config: Config, data_dir: Path | None = None, device: torch.device | str = "cpu") -> NodeClassification:
    """The task of a config of node classification."""
    task = make_task(config, data_dir, torch.device(device))
    assert isinstance(task, NodeClassification)
    return task


def sign(run: Path, *names: str) -> None:
    """Write the hashes of changed files into a run folder, as the run itself would."""
    sums = run / "SHA256SUMS"
    lines = [line for line in sums.read_text().splitlines() if line.partition("  ")[2] not in names]
    lines += [f"{hashlib.sha256((run / name).read_bytes()).hexdigest()}  {name}" for name in names]
    sums.write_text("\n".join(lines) + "\n")


Program = Callable[..., tuple[str, str]]  # arguments and `status` → output on stdout and stderr
