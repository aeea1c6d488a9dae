"""The run folder: everything a run leaves behind. No file in it is a pickle, and reading one never executes code."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from magna.config.atomic_files import check_free, forget_parts, make_folder, write_whole, writing
from magna.config.schema import Config
from magna.data import DATASETS
from magna.errors import ArgumentError, DataError, nearest_path
from magna.nn.ensemble import model_class
from magna.nn.hub import Saved
from magna.nn.scaling import FeatureScaling
from magna.training.environment import environment, installed

FORMAT = 1  # grows when an older version could no longer read a run folder
SUMS = "SHA256SUMS"
MEMBERS = "portfolio.json"
_MODEL = ("model/config.json", "model/model.safetensors")
# Files of a run before config.toml makes it one, and after.
_BEGIN, _LATER = ("environment.json", "schema.json"), ("metrics.jsonl", "summary.json", "model", MEMBERS, "checkpoint")
_FILES = ("config.toml", SUMS, MEMBERS, *_BEGIN, *_LATER[:2], "checkpoint/state.safetensors")
_CALIBRATION = ("temperature", "slope", "bias")
_COPY = "a copy of the run folder, or train again"


class RunFolder:
    """`config.toml`, `environment.json`, `schema.json`, `metrics.jsonl`, `summary.json`, `model/` and `checkpoint/`.

    `SHA256SUMS` has the hash of each file that is read back, in the format of the program `sha256sum`; a checkpoint,
    which is replaced every few seconds, is complete or absent. `summary.json` is written last: where it is, the run
    has ended. A portfolio is the run of its best member, with `portfolio.json`, which names all members, beside it.
    """

    config: Config  # of a run that was opened, or began here

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @staticmethod
    def create(
        path: str | Path, config: Config, device: torch.device, schema: Mapping[str, Any] | None = None
    ) -> RunFolder:
        """Start a run in a new or empty folder."""
        run = RunFolder(path)
        with run.alone():
            run.begin(config, device, schema or {})
        return run

    def begin(self, config: Config, device: torch.device, schema: Mapping[str, Any]) -> None:
        """Start a run while this process is `alone`; `schema` describes the columns that the model needs."""
        if self.exists():
            raise DataError(self.path, "it holds a run already", hint="resume=True, or another run_dir")
        self._check_free()
        versions = {"format": FORMAT, **environment(device), "packages": installed()}
        files = {"environment.json": _json(versions), "schema.json": _json(dict(schema))}
        files["config.toml"] = config.to_toml().encode()  # last: where it is, the folder holds a run
        self._write_sums(files)
        for name, content in files.items():
            write_whole(self.path / name, content)
        self.config = config
        self._forget_parts()

    @staticmethod
    def open(path: str | Path | RunFolder) -> RunFolder:
        """A folder that holds a run, ended or not, with its settings read; they are read once."""
        if isinstance(path, RunFolder):
            return path
        run = RunFolder(path)
        if not run.exists():
            inside = sorted(child.parent.name for child in run.path.glob("*/config.toml"))
            near = nearest_path(run.path, "config.toml") or "the folder of a run"
            hint = f"one of the runs inside: {', '.join(inside)}" if inside else near
            raise DataError(run.path, "it holds no run (no config.toml)", hint=hint)
        run._check_format()
        run._read("config.toml")
        run.config = Config.from_toml(run.path / "config.toml")
        return run

    def exists(self) -> bool:
        return (self.path / "config.toml").is_file()

    def _check_free(self) -> None:
        """Refuse a folder without a run that has files which a run would replace or continue."""
        begun = "environment.json" in self._sums()  # a run was killed before it had its config.toml
        names = _LATER if begun else (SUMS, *_BEGIN, *_LATER)
        check_free(self.path, names, "no run (no config.toml)", "run_dir")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Train in this folder, made where it is new, while no other process does; the lock ends with the process."""
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
            raise DataError(self.path, "it is being trained by another process", hint="another run_dir") from None
        try:
            if self.exists():
                self._forget_parts()
            yield
        finally:
            os.close(folder)

    def _forget_parts(self) -> None:
        forget_parts(self.path / name for name in _FILES)

    def _check_format(self) -> None:
        """Refuse a folder in a format of a later version."""
        stored = json.loads(self._read("environment.json"))
        if stored["format"] > FORMAT:
            raise DataError(
                self.path,
                f"it has run format {stored['format']}, written by magna {stored['packages'].get('magna')}",
                allowed=f"up to {FORMAT}",
                hint="the version that wrote it, or train again",
            )

    def check_data(self, hint: str) -> None:
        """Refuse a run whose data, of the user's own, is no longer where it was; `hint` says what helps."""
        name = self.config.data.name
        if name not in DATASETS and not Path(name).exists():
            raise DataError(self.path, f"it was trained on {name}, which is missing", hint=hint)

    def check_schema(self, schema: Mapping[str, Any]) -> None:
        """Refuse data that has changed since the run was started; a scale may differ in its last bits."""
        for name, value in self.schema.items():
            if not _same(value, schema.get(name), last_bits=name.endswith(("_shift", "_scale"))):
                raise DataError(
                    self.path,
                    f"it was started on other data than {self.config.data.name} holds now (schema.json: {name})",
                    allowed="the same data",
                    hint="to put it back, or another run_dir",
                )

    @property
    def summary(self) -> dict[str, Any] | None:
        """Results of the run; None while it has not ended."""
        return json.loads(self._read("summary.json")) if (self.path / "summary.json").exists() else None

    @property
    def calibration(self) -> dict[str, Any]:
        """Values that fit probabilities to validation; none for a portfolio, whose members have their own."""
        if self.members:
            return {}
        return {name: value for name, value in (self.summary or {}).items() if name in _CALIBRATION}

    @property
    def schema(self) -> dict[str, Any]:
        """Names of features, classes and relations, and fingerprints of the data."""
        schema: dict[str, Any] = json.loads(self._read("schema.json"))
        return schema

    @property
    def members(self) -> list[tuple[RunFolder, float]]:
        """The runs of a portfolio that has ended, and their weights, whose sum is 1; [] for a run of one model."""
        if not self._has(MEMBERS):
            return []
        rows = json.loads((self.path / MEMBERS).read_bytes()).get("members", [])
        total = math.fsum(row["weight"] for row in rows)
        return [(RunFolder.open(self.path / row["run"]), row["weight"] / total) for row in rows]

    def load_model(self, **parts: Any) -> Saved:
        """The model with its best weights, of a portfolio the best member; it takes features that a task has scaled.

        `parts` are arguments that its files do not hold, as a user's `module`.
        """
        return self.load_parts(**parts)[0]

    def load_parts(self, **parts: Any) -> tuple[Saved, FeatureScaling | None]:
        """The model of `load_model` and the scaling that leads to its features; None in runs of earlier versions."""
        if self.summary is None:
            raise DataError(self.path, "its run has not ended", hint="resume=True")
        for name in _MODEL:
            self._read(name)
        model: Saved = model_class(self.config.model).from_pretrained(self.path / "model", **parts)
        return model, model.detach_scaling()

    def is_done(self, **parts: Any) -> bool:
        """True if the run has ended; a model that is missing or damaged is made again from the checkpoint."""
        if self.summary is None:
            return False
        try:
            self.load_model(**parts)
        except DataError:
            if not self.checkpoint.is_file():
                raise
            return False
        return True

    def log(self, *rows: Mapping[str, Any]) -> None:
        """Add a line to `metrics.jsonl` for each row."""
        path = self.path / "metrics.jsonl"
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    def keep_metrics(self, epochs: int) -> None:
        """Keep the lines of the first epochs; later ones were written after the checkpoint."""
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
        write_whole(file, b"".join(lines[:epochs]))

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint" / "state.safetensors"

    def has_begun(self) -> bool:
        """True if the run has a checkpoint or has ended."""
        return self.checkpoint.is_file() or self.summary is not None

    def finish(self, model: Saved, summary: Mapping[str, Any], scaling: FeatureScaling | None = None) -> None:
        """Save the model with the scaling of its features, then the summary."""
        part, target, end = self.path / ".model.part", self.path / "model", self.path / "summary.json"
        with writing(target):
            shutil.rmtree(part, ignore_errors=True)
            model.save_pretrained(part, scaling)
            end.unlink(missing_ok=True)  # it is of the model that is replaced now
            shutil.rmtree(target, ignore_errors=True)
            os.replace(part, target)
        files = {name: (self.path / name).read_bytes() for name in (*_MODEL, "metrics.jsonl") if self._has(name)}
        self._write_sums(files | {end.name: _json(summary)})
        write_whole(end, _json(summary))

    def _has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def _sums(self) -> dict[str, str]:
        """SHA-256 of each file by its name."""
        if not self._has(SUMS):
            return {}
        lines = (self.path / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
        return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}

    def _write_sums(self, files: Mapping[str, bytes]) -> None:
        sums = self._sums() | {name: sha256(content).hexdigest() for name, content in files.items()}
        write_whole(self.path / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode())

    def _read(self, name: str) -> bytes:
        """Content of a file, which must be what the run wrote."""
        path = self.path / name
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise DataError(path, "it is missing", hint=_COPY) from error
        if self._sums().get(name) != sha256(content).hexdigest():
            raise DataError(path, f"it has changed since the run wrote it (its hash is not that in {SUMS})", hint=_COPY)
        return content


def _same(old: Any, new: Any, last_bits: bool) -> bool:
    """True for equal values; numbers may differ in their `last_bits`."""
    if not last_bits or old is None or new is None or len(old) != len(new):
        return bool(old == new)
    return all(math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12) for one, other in zip(old, new, strict=True))


def pick_device(device: str) -> torch.device:
    """The device of a name; auto is the GPU where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise ArgumentError("device", device, ["auto", "cpu", "cuda"])
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", device, ["auto", "cpu"], "'cpu', as torch finds no GPU")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
