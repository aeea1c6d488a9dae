"""Memory of a training step before it is taken: traced on tensors that have a shape but no memory."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from magna.config.schema import Config
from magna.graph.torch_internals import FakeTensorMode, TorchDispatchMode, storage_key, tree_leaves
from magna.nn.ensemble import members_of
from magna.ops.cpu.memory_pool import machine_memory
from magna.tasks import Task
from magna.tasks.base import Objective
from magna.training.capture import step_precision

# What an allocator holds over live tensors: on the CPU as the resident set of a quiet machine showed, on a GPU assumed.
HELD = {"cpu": 1.4, "cuda": 1.1}


@dataclass(frozen=True)
class StepMemory:
    """Bytes of one training step."""

    parameters: int  # the model's weights
    saved: int  # kept from the forward pass for the backward pass
    peak: int  # the worst moment: data, weights, gradients, Adam's moments, the best weights, all of the pass
    device: int  # what there is

    @property
    def fits(self) -> bool:
        return self.peak <= 0.9 * self.device


class MemoryLedger(TorchDispatchMode):
    """Live and peak bytes of all tensors that are made while it is on, and those saved for the backward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.saved: dict[int, int] = {}
        self.known: set[int] = set()
        self.weights: set[int] = set()

    def save(self, tensor: Tensor) -> Tensor:
        """Count a tensor that the backward pass will read; data and weights are not counted."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key in self.known - self.weights:
            self.saved[key] = storage.nbytes()
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and (key := storage_key(leaf.untyped_storage())) not in self.known:
                storage = leaf.untyped_storage()
                self.known.add(key)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._leave, key, storage.nbytes()).atexit = False
        return out

    def _leave(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def forecast(task: Task, config: Config, device: torch.device) -> StepMemory:
    """Memory of one training step at its worst moment."""
    # A small pass for real: whatever is computed once for a graph must be there before the trace.
    sizes: dict[str, Any] = {"hidden_channels": 2 * getattr(config.model, "heads", 1), "num_layers": 1}
    sizes |= {"head_form": "split", "out_projection": True, "decoder": "distmult"}
    small = replace(config.model, **{name: sizes[name] for name in config.model.options() if name in sizes})
    with torch.random.fork_rng():
        shrunk: Any = task.make_model(small)
        if getattr(shrunk, "num_layers", 1):  # else it reads no graph
            task.evaluate(shrunk.to(device), "valid")
        objective = objective_of(task, config)
        batch = objective.batches()[0]  # for real, too: it passes through pinned memory, which the trace does not know
        if hasattr(members_of(shrunk)[0], "auxiliary_loss"):  # it may read more of the graph than evaluation does
            objective.loss(shrunk.train(), batch)

    with FakeTensorMode(allow_non_fake_inputs=True), MemoryLedger() as ledger:
        with device:
            model = task.make_model(config.model)
        model.train()
        ledger.weights = set(ledger.known)
        hooks = torch.autograd.graph.saved_tensors_hooks(ledger.save, lambda tensor: tensor)
        with step_precision(config.train.precision, device), hooks:
            loss = objective.loss(model, batch, config.train.epochs)
        loss.backward()
    parameters = sum(each.nbytes for each in model.parameters())
    # Adam's two moments and the best weights so far stay from epoch to epoch, beside the step.
    peak = task.data_bytes + 3 * parameters + HELD[device.type] * ledger.peak
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else machine_memory()
    return StepMemory(parameters, sum(ledger.saved.values()), round(peak), total)


def objective_of(task: Task, config: Config) -> Objective:
    """The task's objective for the model of a config."""
    with torch.device("meta"):  # takes no memory, draws no number
        model: Any = task.make_model(config.model)
    return task.objective(config.task, model)
