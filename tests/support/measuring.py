"""Memory that a pass holds, and operations that a CUDA graph refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode


def saved_tensors(forward: Callable[[], object]) -> list[Tensor]:
    """The tensors that autograd keeps for the backward pass, each storage once."""
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return list(saved.values())


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Peak memory of `work`, above the memory allocated before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


class Capturable(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: numbers copied to the device, and whatever waits for its results."""

    REFUSED = "lift_fresh", "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "equal"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.REFUSED, name
        by_bools = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
        assert not by_bools, "index by bools"
        return func(*args, **(kwargs or {}))
