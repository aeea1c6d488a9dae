"""Many trainings at once on one device: every parameter carries a leading trial axis.

The model is the ordinary one under `torch.vmap`; the operators fold the trial axis into their heads
(`magna.ops.backend.folding`), so one walk over the edges serves all trials. Learning rates, decays, dropout rates,
alpha, K and seeds may differ from trial to trial; what changes the shape of a tensor may not. On a GPU an epoch, from
the first dropout to the choice of the best weights, is one CUDA graph.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from magna.config.options import Options
from magna.config.schema import Config
from magna.config.tables import NodeTask
from magna.errors import ArgumentError, Diverged
from magna.ops.cpu.memory_pool import machine_memory
from magna.tasks import Task
from magna.tasks.base import BatchTask, can_share_batch
from magna.tasks.metrics import METRIC_FORMS
from magna.training.capture import batch_size_for, matmul_precision, own_stream
from magna.training.loop import Epoch, OnReport, OnResults, Request, TrialResult, fit
from magna.training.step_memory import forecast
from magna.training.trial_batch import FILLER, Batch

_MOST_TRIALS = 512
# Entries of a state with which one training fills a GPU: on an H200 two of 19,717 x 8 x 512 take 1.2 times as long side
# by side as in turn.
_FILLS_GPU = 1 << 26


def structure(config: Config) -> Hashable:
    """The settings that all trials of one batch share.

    >>> structure(Config.from_dict({"train": {"lr": 0.1}})) == structure(Config.from_dict({"model": {"K": 3}}))
    True
    """
    # With free weights K is the length of a parameter.
    fixed = ("K",) if getattr(config.model, "hop_weights", None) == "theta" else ()
    # No consistency is another loss than a small one: it needs one pass.
    compared = getattr(config.task, "consistency", 0) > 0
    return compared, *(_shared(part, fixed) for part in (config.data, config.model, config.task, config.train))


def train_trials(
    configs: Sequence[Config],
    task: Task,
    *,
    read_test: bool = False,
    keep_weights: bool = False,
    report_every: int = 25,
    on_report: OnReport | None = None,
    on_results: OnResults | None = None,
    too_large: dict[int, str] | None = None,
) -> list[TrialResult]:
    """Train all configs on the data of one task, as many at once as have the same `structure` and fit in memory.

    A batch that turns out too large for the memory is halved and begun again. Trials of a task that shares no batch
    train one after the other, without test and weights. No file is written.

    Args:
        configs: what to train; the draws of a seed also depend on which trials share a batch.
        task: data and loss. The configs may name other random splits of the same data.
        read_test: also test the best weights; nothing else reads the test split. Results then have `peak_bytes`: on a
            GPU the peak of their batch divided by its trials, on the CPU the forecast of `magna plan` for a run alone.
        keep_weights: also return the best weights.
        report_every: epochs between two calls of `on_report`.
        on_report: gets the epoch, the indices of the running configs and their best validation scores so far, and
            returns the indices of those to stop.
        on_results: gets results by the indices of their configs, as soon as their batch continues without them or ends.
        too_large: gets the reason for each config that does not fit in memory alone; it has no result. None: that is
            an error.
    """
    assert can_share_batch(task) or not (read_test or keep_weights)
    groups: dict[Hashable, list[int]] = {}
    for index, config in enumerate(configs):
        if can_share_batch(task):
            _check_data(config, task)
        groups.setdefault(structure(config) if can_share_batch(task) else index, []).append(index)
    results: dict[int, TrialResult] = {}

    def take(ended: dict[int, TrialResult]) -> None:
        results.update(ended)
        if on_results is not None:
            on_results(ended)

    request = Request(read_test, keep_weights, report_every, on_report, take)
    for members in groups.values():
        # A batch walks as many hops as its farthest trial: those that walk alike stand together.
        members.sort(key=lambda index: getattr(configs[index].model, "K", 0))
        size = _batch_size(configs[members[-1]], task) if can_share_batch(task) else 1
        size = -(-len(members) // -(-len(members) // size))  # no batch much smaller than the others
        while part := [index for index in members if index not in results and index not in (too_large or ())][:size]:
            try:
                if can_share_batch(task):
                    _train_part(configs, part, task, request)
                else:
                    take({part[0]: _train_alone(part[0], configs[part[0]], task, request)})
            except torch.OutOfMemoryError as error:
                if len(part) > 1:
                    size = len(part) // 2
                elif too_large is None:
                    raise
                else:
                    too_large[part[0]] = shortage(error)
            else:
                continue
            # Free what the failed training left; its error, which holds the tensors of its frames, is gone.
            gc.collect()
            torch.cuda.empty_cache()
    return [results[index] for index in sorted(results)]


def shortage(error: torch.OutOfMemoryError) -> str:
    """The first sentences of an error of memory: what could not be allocated.

    >>> shortage(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has 1 GiB free."))
    'CUDA out of memory. Tried to allocate 9.00 GiB'
    """
    return ". ".join(str(error).split(". ")[:2])


def _train_part(configs: Sequence[Config], part: list[int], task: BatchTask, request: Request) -> None:
    """Train some of the configs, which have the same structure, in one batch."""
    with own_stream(task.device), matmul_precision(configs[part[0]].train.precision):
        on_gpu = task.device.type == "cuda"
        if on_gpu:
            part = part + [FILLER] * (batch_size_for(len(part)) - len(part))
            torch.cuda.reset_peak_memory_stats(task.device)
        peaks = _forecasts(configs, part, task) if request.read_test and not on_gpu else {}

        def take(ended: dict[int, TrialResult]) -> None:
            if request.read_test and on_gpu:
                share = torch.cuda.max_memory_allocated(task.device) // len(part)
                peaks.update(dict.fromkeys(ended, share))
            request.on_results({n: replace(result, peak_bytes=peaks.get(n)) for n, result in ended.items()})

        members = [configs[part[0] if index == FILLER else index] for index in part]
        Batch(members, part, task).run(request._replace(on_results=take))


def _forecasts(configs: Sequence[Config], part: list[int], task: BatchTask) -> dict[int, int]:
    """Bytes that each config needs alone; those that differ in the seed or the split are traced once."""
    bytes_of: dict[Hashable, int] = {}
    peaks = {}
    for index in part:
        config = configs[index]
        key = tuple(str(each) for each in (config.model, config.task, config.train.precision))
        if key not in bytes_of:
            bytes_of[key] = forecast(task, config, task.device).peak
        peaks[index] = bytes_of[key]
    return peaks


class _Stopped(Exception):
    pass


def _train_alone(index: int, config: Config, task: Task, request: Request) -> TrialResult:
    """Train one config by the loop of a lone run."""
    epochs: list[Epoch] = []

    def on_epoch(epoch: Epoch) -> None:
        epochs.append(epoch)
        if request.on_report is None or epoch.number % request.report_every or epoch.best is None:
            return
        if index in request.on_report(epoch.number, [index], [epoch.best[task.metric]]):
            raise _Stopped

    started = time.perf_counter()
    with own_stream(task.device), matmul_precision(config.train.precision):
        torch.manual_seed(config.train.seed)
        network = task.make_model(config.model).to(task.device)
        with suppress(_Stopped):
            try:
                fit(config, task, network, on_epoch)
            except Diverged:
                # A lone run that diverges leaves no result, whatever it had reached before.
                epochs = [replace(epoch, best=None) for epoch in epochs]
    best = next(
        (epoch.best for epoch in reversed(epochs) if epoch.best is not None),
        {task.metric: METRIC_FORMS[task.metric].worst},
    )
    return TrialResult(
        config=config,
        epochs=len(epochs),
        best_epoch=next((epoch.number - 1 for epoch in epochs if epoch.valid == best), -1),
        seconds=time.perf_counter() - started,
        valid=best,
        test=None,
        history=[{"loss": epoch.loss} for epoch in epochs if epoch.loss is not None],
        weights=None,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
    )


def _check_data(config: Config, task: BatchTask) -> None:
    """Refuse a config of other data or another metric than the task's: it would train on the task's all the same."""
    data, seed = task.data_config, getattr(config.data, "split_seed", 0)
    if config.data not in (data, replace(data, split="random", split_seed=seed)):
        raise ArgumentError("data", config.data, f"that of the task, {data}, or another random split of it")
    assert isinstance(config.task, NodeTask)  # as its data is that of nodes
    if config.task.metric not in (task.settings.metric, task.metric):
        raise ArgumentError("task.metric", config.task.metric, f"that of the task, {task.metric}")


def _shared(options: Options, fixed: Collection[str]) -> Hashable:
    """The values that all trials of a batch have."""
    free = options.per_trial() - set(fixed)
    return type(options), *((name, getattr(options, name)) for name in options.options() if name not in free)


def _batch_size(config: Config, task: BatchTask) -> int:
    """The number of trials that fit: their states, activations and moments into two thirds of the memory that is free.

    Those that are no faster side by side stay alone.
    """
    if task.device.type == "cuda" and task.num_nodes * _state_width(config.model) >= _FILLS_GPU:
        return 1
    free = torch.cuda.mem_get_info(task.device)[0] if task.device.type == "cuda" else machine_memory() // 4
    fit = 2 * free // 3 // _bytes_per_trial(config.model, config.task, task)
    members: int = config.model.members
    return max(1, min(_MOST_TRIALS // members, fit))


def _state_width(model: Any) -> int:
    """Numbers that the hops carry for each node."""
    heads = model.heads if getattr(model, "head_form", "split") == "full" else 1
    width: int = getattr(model, "hidden_channels", 64) * heads
    return width


def _bytes_per_trial(model: Any, settings: Any, task: BatchTask) -> int:
    """A generous estimate of what one trial keeps between forward and backward, and of its weights."""
    # A user's model may have other options.
    width, layers = getattr(model, "hidden_channels", 64), getattr(model, "num_layers", 2)
    states = _state_width(model)
    ffn = 3 * getattr(model, "ffn_multiplier", 4) if getattr(model, "feed_forward", True) else 0
    per_node = 3 * task.in_channels + layers * (width * (16 + ffn) + states * (getattr(model, "K", 6) + 4))
    per_edge = 8 * layers * getattr(model, "heads", 8)
    passes = settings.passes if settings.consistency > 0 else 1
    weights = width * (task.in_channels + layers * (states + width * (3 + 2 * (ffn // 3))))
    needed = passes * (task.num_nodes * per_node + task.num_edges * per_edge) + 8 * weights
    return int(4 * model.members * needed)
