"""Time, memory and error of a pass."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import quantiles
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from magna.bench.peers import Results, Step
from magna.training.memory import peak_bytes

T = TypeVar("T")

Call = Callable[[], object]

LEAST_TURNS = 3


class Timing(NamedTuple):
    """Milliseconds of several calls."""

    ms: float  # median
    spread: float  # from the first to the third quartile
    samples: int


def interleaved(
    steps: Mapping[str, Call], device: torch.device, budget_s: float, rounds: int = 20
) -> dict[str, Timing]:
    """Time each step in turn, round after round, so that a noisy moment meets all of them.

    A step leaves the rounds once its turns have taken `budget_s`, but never before `LEAST_TURNS`.
    """
    samples: dict[str, list[float]] = {name: [] for name in steps}
    turns, spent = dict.fromkeys(steps, 0), dict.fromkeys(steps, 0.0)
    for _ in range(rounds):
        for name, step in steps.items():
            if spent[name] >= budget_s and turns[name] >= LEAST_TURNS:
                continue
            begin = time.perf_counter()
            samples[name] += _turn(step, device)
            spent[name] += time.perf_counter() - begin
            turns[name] += 1
    return {name: summary(values) for name, values in samples.items()}


def summary(values: list[float]) -> Timing:
    """Median and quartiles.

    >>> summary([1.0, 2.0, 3.0, 4.0, 5.0])
    Timing(ms=3.0, spread=2.0, samples=5)
    """
    first, median, third = quantiles(values, n=4, method="inclusive")
    return Timing(median, third - first, len(values))


def _turn(call: Call, device: torch.device) -> list[float]:
    # The first calls of a turn fill caches and pages that the step before has taken: they are not counted.
    first = elapsed_ms(call, device)
    calls = max(1, min(20, round((10 if device.type == "cuda" else 300) / first)))
    if device.type == "cuda":
        return [elapsed_ms(call, device, calls)]
    for _ in range(calls // 4):
        call()
    return [elapsed_ms(call, device) for _ in range(calls)]


def elapsed_ms(call: Call, device: torch.device, calls: int = 1) -> float:
    """Milliseconds a call; on a GPU between two CUDA events, with the launches that the GPU waits for."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / calls
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e3 * (time.perf_counter() - begin) / calls


def as_cuda_graph(step: Step) -> Step:
    """The step as a CUDA graph: one launch replays all of its kernels on the same tensors."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()

    def replay() -> Results:
        graph.replay()
        return results

    return replay


class PassMemory(NamedTuple):
    """Bytes that a pass needs."""

    peak_bytes: int | None  # above the inputs at the worst moment of the pass
    saved_bytes: int  # between forward and backward


def memory_of(call: Callable[[], T], inputs: Iterable[Tensor], device: torch.device) -> tuple[T, PassMemory]:
    """Run a call once, and return its result and its memory above the inputs.

    The peak is that of :func:`magna.training.memory.peak_bytes`.
    """
    with peak_bytes(device) as peak, _saved_bytes(inputs) as saved:
        result = call()
    return result, PassMemory(peak(), saved())


@contextlib.contextmanager
def _saved_bytes(inputs: Iterable[Tensor]) -> Iterator[Callable[[], int]]:
    known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        # A sparse matrix saves its values.
        dense = tensor if tensor.layout == torch.strided else tensor.detach().values()
        storage = dense.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(saved.values())


def errors(results: Results, truths: Results) -> dict[str, float]:
    """Distance to the truth relative to its norm, of the output and both gradients."""
    names = ("output", "grad_x", "grad_scores")
    return {
        name: float((result.double() - exact).norm() / exact.norm())
        for name, result, exact in zip(names, results, truths, strict=True)
    }
