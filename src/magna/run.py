"""The run folder: everything a run leaves behind. No file in it is a pickle, and reading one never executes code."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from magna.config import Config
from magna.nn import MAGNA

_PACKAGES = ("magna", "torch", "torch-geometric", "lightning", "numpy", "scipy", "scikit-learn", "triton")


class RunFolder:
    """`config.toml`, `environment.json`, `metrics.jsonl`, `summary.json`, `model/` and `checkpoint/` of one run.

    `summary.json` is written last: where it is, the run is finished.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @staticmethod
    def create(path: str | Path, config: Config, device: torch.device) -> RunFolder:
        """Start a run in a new or empty folder."""
        run = RunFolder(path)
        if run.exists():
            raise ValueError(f"{run.path} holds a run already; try --resume to go on with it, or another --run-dir")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise ValueError(f"{run.path} cannot be made ({error.strerror}); try another --run-dir") from error
        _write(run.path / "environment.json", _json(environment(device)))
        _write(run.path / "config.toml", config.to_toml().encode())
        return run

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """A folder that holds a run, finished or not."""
        run = RunFolder(path)
        if not run.exists():
            inside = sorted(child.parent.name for child in run.path.glob("*/config.toml"))
            hint = f"; try one of the runs inside: {', '.join(inside)}" if inside else ""
            raise ValueError(f"{run.path} holds no run (no config.toml){hint}")
        return run

    def exists(self) -> bool:
        return (self.path / "config.toml").is_file()

    @property
    def config(self) -> Config:
        return Config.from_toml(self.path / "config.toml")

    @property
    def summary(self) -> dict[str, Any] | None:
        """What the finished run reported, None while it is not finished."""
        file = self.path / "summary.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    def load_model(self) -> MAGNA:
        """The model that was evaluated."""
        if self.summary is None:
            raise ValueError(f"{self.path} holds an unfinished run; try magna train --resume --run-dir {self.path}")
        return MAGNA.from_pretrained(self.path / "model")

    def log(self, row: Mapping[str, Any]) -> None:
        """Add one line to `metrics.jsonl`."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def keep_metrics(self, epochs: int) -> None:
        """Forget the lines after an epoch: they were written after the checkpoint that the run goes on from."""
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
        _write(file, b"".join(lines[:epochs]))

    def save_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """One file, renamed into place: the checkpoint is whole at any moment."""
        content = safetensors.torch.save(dict(tensors), {"state": json.dumps(state)})
        _write(self.path / "checkpoint" / "state.safetensors", content)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        file = self.path / "checkpoint" / "state.safetensors"
        if not file.is_file():
            return None
        with safetensors.safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dict)
            return tensors, json.loads(stored.metadata()["state"])

    def finish(self, model: MAGNA, summary: Mapping[str, Any]) -> None:
        """Save the model, then the summary."""
        part = Path(tempfile.mkdtemp(prefix=".model-", dir=self.path))
        model.save_pretrained(part)
        shutil.rmtree(self.path / "model", ignore_errors=True)
        os.replace(part, self.path / "model")
        _write(self.path / "summary.json", _json(summary))


def environment(device: torch.device) -> dict[str, Any]:
    """What a run depends on besides its config."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "packages": {name: version for name in _PACKAGES if (version := package_version(name))},
    }


def pick_device(device: str) -> str:
    """`cpu` or `cuda`, `auto` being the GPU where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; allowed: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no GPU here; try --device cpu")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    """Write beside and rename, so that a file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
