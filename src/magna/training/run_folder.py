"""The run folder: everything a run leaves behind. No file in it is a pickle, and reading one never executes code."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from magna import __version__
from magna.config.atomic_files import check_free, forget_parts, make_folder, write_whole, writing
from magna.config.schema import Config
from magna.data import DATASETS
from magna.tasks.models import Model, model_class

# Grows when an older magna could no longer read a run folder; folders of smaller numbers stay readable.
FORMAT = 1
# What every summary.json has, whatever its task.
_REPORTED = ("seed", "seconds", "epochs", "valid", "test")
# What schema.json has as lists of names or numbers, where it has it.
_NAMED = ("feature_names", "class_names", "relation_names", "entities", "relations")
_LISTED = dict.fromkeys(_NAMED, str) | dict.fromkeys(("feature_shift", "feature_scale"), (float, int))
# What a run begins with, before config.toml says that it is one, and what it leaves after that.
_BEGIN, _LATER = ("environment.json", "schema.json"), ("metrics.jsonl", "summary.json", "model", "checkpoint")
_FILES = ("config.toml", *_BEGIN, *_LATER[:2], "checkpoint/state.safetensors")
_PACKAGES = ("magna", "torch", "numpy", "triton")  # that numbers depend on


class RunFolder:
    """`config.toml`, `environment.json`, `schema.json`, `metrics.jsonl`, `summary.json`, `model/` and `checkpoint/`.

    `summary.json` is written last: where it is, the run is finished.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @staticmethod
    def create(
        path: str | Path, config: Config, device: torch.device, schema: Mapping[str, Any] | None = None
    ) -> RunFolder:
        """Start a run in a new or empty folder."""
        run = RunFolder(path)
        with run.alone():
            run.begin(config, device, schema)
        return run

    def begin(self, config: Config, device: torch.device, schema: Mapping[str, Any] | None = None) -> None:
        """Start a run here, while this process is `alone`; `schema` is what the model must know of another graph's
        columns.
        """
        if self.exists():
            raise ValueError(f"{self.path} holds a run already; try --resume to go on with it, or another --run-dir")
        self._check_free()
        facts = {"format": FORMAT, **environment(device), "packages": _installed()}
        write_whole(self.path / "environment.json", _json(facts))
        if schema is not None:
            write_whole(self.path / "schema.json", _json(schema))
        # Last: where it is, the folder holds a run.
        write_whole(self.path / "config.toml", config.to_toml().encode())
        self._forget_parts()

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """A folder that holds a run, finished or not."""
        run = RunFolder(path)
        if not run.exists():
            inside = sorted(child.parent.name for child in run.path.glob("*/config.toml"))
            hint = f"one of the runs inside: {', '.join(inside)}" if inside else "a folder that magna train has left"
            raise ValueError(f"{run.path} holds no run (no config.toml); try {hint}")
        run.check_format()
        return run

    def exists(self) -> bool:
        return (self.path / "config.toml").is_file()

    def _check_free(self) -> None:
        """Refuse a folder of no run with files that a run would replace, or go on from."""
        try:
            begun = "format" in (self._read("environment.json") or {})  # by a run that was killed before it was one
        except ValueError:
            begun = False
        check_free(self.path, _LATER if begun else (*_BEGIN, *_LATER), "no run (no config.toml)", "run_dir")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Train in this folder, made where it is new, while no other process does; the lock goes with the process,
        however it ends.
        """
        make_folder(self.path, "run_dir")
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise ValueError(f"{self.path} is being trained by another process; try another --run-dir") from None
        try:
            if self.exists():
                self._forget_parts()
            yield
        finally:
            os.close(folder)

    def _forget_parts(self) -> None:
        forget_parts(self.path / name for name in _FILES)

    def check_format(self) -> None:
        """Refuse a folder that a newer magna has written in a form this one does not know."""
        environment = self._read("environment.json") or {}
        number = environment.get("format", 0)
        if not isinstance(number, int) or number > FORMAT:
            packages = environment.get("packages")
            wrote = packages.get("magna", "?") if isinstance(packages, dict) else "of a later version"
            raise ValueError(
                f"{self.path} has run format {number}, written by magna {wrote}; allowed: up to {FORMAT}, what magna "
                f"{__version__} reads; try the magna that wrote it, or train again"
            )

    def check_data(self, hint: str) -> None:
        """Refuse a run whose data, of the user's own, is no longer where it was; `hint` says what helps."""
        name = self.config.data.name
        if name not in DATASETS and not Path(name).exists():
            raise ValueError(f"{self.path} was trained on {name}, which is not there; {hint}")

    def check_schema(self, schema: Mapping[str, Any]) -> None:
        """Refuse data that has changed since the run was started; a scale may differ in its last bits."""
        for name, kept in (self.schema or {}).items():
            if not _same(kept, schema.get(name), last_bits=name in ("feature_shift", "feature_scale")):
                raise ValueError(
                    f"{self.path} was started on other data than {self.config.data.name} holds now (schema.json: "
                    f"{name}); allowed: the same data; try to put it back, or another --run-dir"
                )

    @property
    def config(self) -> Config:
        file = self.path / "config.toml"
        if file.is_file() and not file.stat().st_size:  # which would be a recipe that leaves all as it is
            raise self.damaged(file.name, "it is empty")
        return Config.from_toml(file)

    @property
    def summary(self) -> dict[str, Any] | None:
        """What the finished run reported, None while it is not finished."""
        summary = self._read("summary.json", _REPORTED)
        for split in ("valid", "test"):
            if summary is not None and not isinstance(summary[split], dict):
                raise self.damaged("summary.json", f"{split!r} holds no scores")
        return summary

    @property
    def schema(self) -> dict[str, Any] | None:
        """Names of features, classes and relations of the data; None where a run of format 0 has not kept them."""
        schema = self._read("schema.json")
        for name, kind in _LISTED.items():
            value = (schema or {}).get(name) or []
            if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
                raise self.damaged("schema.json", f"{name!r} is no list")
        return schema

    def load_model(self) -> Model:
        """The model that was evaluated."""
        if self.summary is None:
            again = f"magna train --resume --run-dir {shlex.quote(str(self.path))}"
            raise ValueError(f"{self.path} holds an unfinished run; try {again}")
        folder, kind = self.path / "model", model_class(self.config)
        for name in ("config.json", "model.safetensors"):
            if not (folder / name).is_file():
                raise ValueError(f"{folder / name} is missing; try a copy of the run folder, or train again")
            (folder / name).open("rb").close()  # safetensors would say of one that may not be read that it is not there
        try:
            return kind.from_pretrained(folder)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, safetensors.SafetensorError) as error:
            raise ValueError(f"{folder} is damaged ({error}); try a copy of the run folder, or train again") from error

    def is_done(self) -> bool:
        """Whether the run has ended; one whose model is gone since can be ended again from its checkpoint."""
        if self.summary is None:
            return False
        try:
            self.load_model()
        except ValueError:
            if not self.checkpoint.is_file():
                raise
            return False
        return True

    def log(self, *rows: Mapping[str, Any]) -> None:
        """Add a line to `metrics.jsonl` for each row."""
        path = self.path / "metrics.jsonl"
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    def _read(self, name: str, needed: Sequence[str] = ()) -> dict[str, Any] | None:
        """A JSON file of the folder with at least what is needed of it, None where it is not there."""
        file = self.path / name
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise self.damaged(name, "it is a folder") from error
        except ValueError as error:
            raise self.damaged(name, f"it is not JSON ({error})") from error
        if not isinstance(content, dict):
            raise self.damaged(name, "it holds no JSON object")
        for key in needed:
            if key not in content:
                raise self.damaged(name, f"it has no {key!r}")
        return content

    def damaged(self, name: str, fault: str) -> ValueError:
        """The error that one of its files is."""
        return ValueError(f"{self.path / name} is damaged: {fault}; try a copy of it, or train again")

    def keep_metrics(self, epochs: int) -> None:
        """Forget the lines after an epoch: they were written after the checkpoint that the run goes on from."""
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
        write_whole(file, b"".join(lines[:epochs]))

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint" / "state.safetensors"

    def has_begun(self) -> bool:
        """Whether there is something to go on from: a checkpoint, or the end of the run."""
        return self.checkpoint.is_file() or self.summary is not None

    def finish(self, model: Model, summary: Mapping[str, Any]) -> None:
        """Save the model, then the summary."""
        part, whole = self.path / ".model.part", self.path / "model"
        with writing(whole):
            shutil.rmtree(part, ignore_errors=True)
            try:
                model.save_pretrained(part)
            except safetensors.SafetensorError as error:  # what it makes of a full disk
                known = re.search(r"os error (\d+)", str(error))
                raise OSError(*([int(known[1]), os.strerror(int(known[1]))] if known else [str(error)])) from error
            # Safetensors keeps its file to the owner; whoever may read the others may read this one.
            shutil.copymode(part / "config.json", part / "model.safetensors")
            shutil.rmtree(whole, ignore_errors=True)
            os.replace(part, whole)
        write_whole(self.path / "summary.json", _json(summary))


def _same(kept: Any, found: Any, last_bits: bool) -> bool:
    """Whether a value is what it was; numbers may differ in their `last_bits`."""
    if not last_bits or kept is None or found is None or len(kept) != len(found):
        return kept == found
    return all(math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12) for one, other in zip(kept, found, strict=True))


def environment(device: torch.device) -> dict[str, Any]:
    """What a run depends on besides its config."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "packages": {name: version for name in _PACKAGES if (version := package_version(name))},
    }


def pick_device(device: str) -> torch.device:
    """The device of a name; auto is the GPU where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; allowed: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no GPU here; try --device cpu")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def package_version(package: str) -> str | None:
    """Version of an installed package, or None."""
    if package == "magna":
        return __version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _installed() -> dict[str, str]:
    """Version of every installed package."""
    versions = {each.name: each.version for each in metadata.distributions()}
    return dict(sorted((versions | {"magna": __version__}).items()))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
