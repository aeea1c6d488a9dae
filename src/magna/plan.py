"""What a run will need, before it starts: memory by tracing one step without memory, time by a few real epochs."""

from __future__ import annotations

import contextlib
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from magna.capture import step_precision
from magna.config import Config, ModelConfig
from magna.ops.pool import machine_memory
from magna.tasks import NodeClassification, Task
from magna.train import Epoch, shares_batch, train

# What an allocator holds over live tensors: on the CPU as the resident set of a quiet machine showed, on a GPU assumed.
HELD = {"cpu": 1.4, "cuda": 1.1}
_WARM_UP, _LEAST_INTERVALS, _LEAST_SECONDS, _MOST_SECONDS = 2, 4, 1.0, 60.0


@dataclass(frozen=True)
class Memory:
    """Bytes of one training step."""

    parameters: int  # the model's weights
    saved: int  # kept from the forward pass for the backward pass
    peak: int  # the worst moment: data, weights, gradients, Adam's moments, the best weights, all of the pass
    device: int  # what there is

    @property
    def fits(self) -> bool:
        return self.peak <= 0.9 * self.device


def plan(
    config: Config,
    *,
    seeds: int = 1,
    data_dir: str | Path | None = None,
    device: str = "auto",
    together: bool | None = None,
    measure: bool = True,
) -> dict[str, Any]:
    """Memory and time of `magna train` with this config; what `magna plan --json` prints.

    Memory is a forecast: one step of the real model on the real graph is traced on tensors that have a shape but no
    memory. Time is measured: the loop itself runs for a few epochs in a folder that is thrown away, and early stopping
    is left out. Where the run would not fit, or with `measure=False`, there is no time. Of seeds that train together as
    many share a batch as there is memory; the forecast is that of one.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; allowed: 1 or more")
    found: dict[str, Any] = {}
    clock = _Clock()

    def on_start(task: Task, where: torch.device) -> None:
        memory = forecast(task, config, where)
        found.update(
            task=config.task.name,
            dataset=task.dataset,
            recipe=config.recipe,
            device=where.type,
            nodes=task.num_nodes,
            edges=task.num_edges,
            together=isinstance(task, NodeClassification) and shares_batch(seeds, where, together),
            parameters=memory.parameters // 4,
            memory=asdict(memory) | {"fits": memory.fits},
            advice=[] if memory.fits else _advice(task, config, where),
        )
        if not (measure and memory.fits):
            raise _Enough

    with tempfile.TemporaryDirectory(prefix="magna-plan-") as folder:
        run_dir = Path(folder) / "run"
        with contextlib.suppress(_Enough):
            train(
                config,
                run_dir=run_dir,
                seeds=seeds,
                data_dir=data_dir,
                device=device,
                together=together,
                on_start=on_start,
                on_epoch=clock,
            )
    seconds = clock.seconds()
    turns = 1 if found["together"] else seeds
    found["time"] = {
        "measured": len(clock.intervals),
        "epoch_seconds": seconds,
        "epochs": config.train.epochs,
        "seeds": seeds,
        "seconds": None if seconds is None else seconds * config.train.epochs * turns,
    }
    return found


def forecast(task: Task, config: Config, device: torch.device) -> Memory:
    """What one training step of a config holds at its worst moment."""
    # A small pass for real: whatever is computed once for a graph must be there before the trace.
    small = replace(
        config.model,
        hidden_channels=2 * config.model.heads,
        num_layers=1,
        head_form="split",
        out_projection=True,
        decoder="distmult",
    )
    with torch.random.fork_rng():
        task.evaluate(task.make_model(small).to(device), "valid")

    with FakeTensorMode(allow_non_fake_inputs=True), _Ledger() as ledger:
        with device:
            model = task.make_model(config.model)
        model.train()
        ledger.count_saved_from_here()
        hooks = torch.autograd.graph.saved_tensors_hooks(ledger.save, lambda tensor: tensor)
        with step_precision(config.train.precision, device), hooks:
            loss = task.loss(model, next(task.batches()), config.train.epochs)
        loss.backward()
    parameters = sum(each.nbytes for each in model.parameters())
    # Adam's two moments and the best weights so far stay from epoch to epoch, beside the step.
    peak = task.data_bytes + 3 * parameters + HELD[device.type] * ledger.peak
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else machine_memory()
    return Memory(parameters, sum(ledger.saved.values()), round(peak), total)


def _advice(task: Task, config: Config, device: torch.device) -> list[str]:
    """What would make the run smaller, with the memory it would then need."""
    half = max(config.model.heads, config.model.hidden_channels // 2)
    changes: list[tuple[str, Callable[[ModelConfig], ModelConfig]]] = [
        ("model.memory=recompute", lambda model: replace(model, memory="recompute")),
        (f"model.hidden_channels={half}", lambda model: replace(model, hidden_channels=half)),
    ]
    lines = []
    for words, change in changes:
        memory = forecast(task, replace(config, model=change(config.model)), device)
        lines.append(f"--set {words}: {memory.peak / 1e9:.1f} GB{', which fits' if memory.fits else ''}")
    return lines


class _Enough(Exception):
    """All that was to be measured has been measured."""


class _Clock:
    """Seconds of an epoch; stops the loop when it has seen enough of them."""

    def __init__(self) -> None:
        self.intervals: list[float] = []
        self._begin = self._last = 0.0
        self._number = 0

    def __call__(self, epoch: Epoch) -> None:
        now = time.perf_counter()
        if self._number < _WARM_UP:
            self._begin = now
        else:
            # Seeds that train together report every few epochs.
            self.intervals.append((now - self._last) / (epoch.number - self._number))
        self._last, self._number = now, epoch.number
        spent = now - self._begin
        enough = spent >= _LEAST_SECONDS and len(self.intervals) >= _LEAST_INTERVALS
        if enough or spent > _MOST_SECONDS or epoch.number == epoch.of:
            raise _Enough

    def seconds(self) -> float | None:
        return median(self.intervals) if self.intervals else None


class _Ledger(TorchDispatchMode):
    """Adds up the memory of all tensors that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.saved: dict[int, int] = {}
        self._known: set[int] = set()
        self._weights: set[int] = set()

    def count_saved_from_here(self) -> None:
        """What is there by now, the weights, is not counted as saved by the pass."""
        self._weights = set(self._known)

    def save(self, tensor: Tensor) -> Tensor:
        """Called with each tensor that the backward pass will want; the data is not the pass's own."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._known and storage._cdata not in self._weights:
            self.saved[storage._cdata] = storage.nbytes()
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._enter(leaf.untyped_storage())
        return out

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._leave, key, size).atexit = False

    def _leave(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
