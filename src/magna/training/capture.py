"""Training steps on a GPU: their stream, their precision, and their replay as a CUDA graph.

On small graphs launching the kernels takes longer than running them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from magna.ops import rounded_at_once

TRIAL_RUNS = 2  # of a step before it is captured, for what is compiled or allocated at first use


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Work on a stream that can be captured, as the default one cannot; nothing where there is no GPU."""
    if device.type != "cuda":
        yield
        return
    before, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        before.wait_stream(stream)  # a graph that was built inside outlives an error


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """`train.precision` for the matrix products inside; what bfloat16 asks of a step is `step_precision`."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision in ("tf32", "bfloat16") else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def step_precision(precision: str, device: torch.device, network: nn.Module | None = None) -> Iterator[None]:
    """The forward pass of a training step on a GPU with products of bfloat16 numbers, where `train.precision` says so.

    The layers of a network have their weights rounded all at once. Many processors take several times as long for
    such products as for those of float32: on a CPU they stay that.
    """
    if precision != "bfloat16" or device.type != "cuda":
        yield
        return
    layers = () if network is None else network.modules()
    weights = [each for layer in layers if isinstance(layer, nn.Linear) for each in layer.parameters(recurse=False)]
    # A cache of cast weights must not outlive a step that is replayed.
    with torch.autocast(device.type, torch.bfloat16, cache_enabled=False), rounded_at_once(weights, torch.bfloat16):
        yield


def captured(
    step: Callable[..., Tensor],
    example: Sequence[Tensor],
    adam: torch.optim.Optimizer,
    changed: Iterable[Tensor],
    model: Any,
) -> Callable[..., Tensor]:
    """The step, replayed as a CUDA graph for inputs of the shapes of `example`; without a GPU the step itself.

    Capturing runs the step a few times. What that changed is put back: `changed`, the moments of the optimiser, which
    must be `capturable`, and torch's generator. The step may not wait for the device, as the diffusion's exact mode
    does, which looks how near it is: that one is not captured. Model and optimiser must have been made inside
    `own_stream`.
    """
    device = adam.param_groups[0]["params"][0].device
    if device.type != "cuda" or getattr(model, "mode", None) == "exact":
        return step
    inputs = [tensor.clone() for tensor in example]
    before = [(tensor, tensor.clone()) for tensor in changed]
    moments = [tensor.clone() for tensor in _moments(adam)]
    chance = torch.cuda.get_rng_state(device)
    for _ in range(TRIAL_RUNS):
        step(*inputs)
    graph = torch.cuda.CUDAGraph()
    with _no_collection(), torch.cuda.graph(graph, stream=torch.cuda.current_stream(device)):
        out = step(*inputs)
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value)
        for i, tensor in enumerate(_moments(adam)):
            # Moments that were not there yet start at zero.
            tensor.copy_(moments[i]) if moments else tensor.zero_()
    torch.cuda.set_rng_state(chance, device)

    def replay(*values: Tensor) -> Tensor:
        if any(value.shape != buffer.shape for value, buffer in zip(values, inputs, strict=True)):
            return step(*values)
        for value, buffer in zip(values, inputs, strict=True):
            buffer.copy_(value)
        graph.replay()
        return out

    return replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """No automatic garbage collection: destroying the graph of an earlier run would invalidate the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def batch_size_for(trials: int) -> int:
    """The size of a batch on a GPU for some trials; the remaining places repeat the first trial.

    Kernels are compiled for a number of heads, so only a few sizes are used.

    >>> [batch_size_for(trials) for trials in (1, 5, 9, 20, 100)]
    [1, 5, 10, 20, 112]
    """
    step = max(1, (1 << (trials - 1).bit_length()) // 8)
    return -(-trials // step) * step


def _moments(adam: torch.optim.Optimizer) -> list[Tensor]:
    return [tensor for state in adam.state.values() for tensor in state.values()]
