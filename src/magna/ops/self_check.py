"""Every kernel that runs on this machine, on a graph of five nodes, against the definition in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import reference
from magna.ops.backend.registry import MODULES, why_not
from magna.ops.diffusion import attention_diffusion
from magna.ops.gpu.linear import linear
from magna.ops.gpu.norm import add_norm
from magna.ops.gpu.table import lookup
from magna.ops.loss import LossBackend, kvsall_loss
from magna.ops.ranking import rank_targets
from magna.ops.scores import edge_scores, head_scores
from magna.ops.seeded_dropout import dropout
from magna.ops.softmax import edge_softmax
from magna.typing import Backend

TOLERANCE = 1e-4  # of the largest number; correct float32 kernels come within 1e-6

# Parallel edges, a self-loop, and node 4 without an in-edge.
_EDGES = ((0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (3, 3), (0, 1), (4, 0))
_RELATIONS = (0, 1, 0, 1, 0, 1, 0, 1)
_NODES, _HEADS, _WIDTH = 5, 2, 3


class KernelCheck(NamedTuple):
    """Largest difference of a kernel from the definition, relative to the largest number."""

    kernel: str
    direction: str  # "forward" or "backward"
    backend: str
    device: str
    error: float | None  # None: it raised
    agrees: bool
    fault: str = ""  # message of the exception


class _Inputs:
    """The graph, and numbers that are the same in every type and on every device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        edges = torch.tensor(_EDGES, device=device).t()
        types = torch.tensor(_RELATIONS, device=device)
        self.graph = Graph.from_edge_index(edges, _NODES, types)
        self.leaves: list[Tensor] = []
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(0)

    def leaf(self, *shape: int) -> Tensor:
        """The next tensor of numbers between -1 and 1, which gets a gradient."""
        numbers = 2 * torch.rand(*shape, generator=self._generator, dtype=torch.float64) - 1
        # Few bits: exact in float32, so that ranks do not depend on rounding.
        self.leaves.append(((numbers * 64).round() / 64).to(self.device, self._dtype).requires_grad_())
        return self.leaves[-1]

    def numbers(self, *values: int) -> Tensor:
        return torch.tensor(values, device=self.device)


Run = Callable[[_Inputs, str], tuple[Tensor, ...]]


def _head_scores(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    x, vector = inputs.leaf(_NODES, _HEADS, _WIDTH), inputs.leaf(_HEADS, _WIDTH)
    return (head_scores(x, vector, backend=cast(Backend, backend)),)


def _edge_scores(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    source, target, relation = inputs.leaf(_NODES, _HEADS), inputs.leaf(_NODES, _HEADS), inputs.leaf(2, _HEADS)
    return (edge_scores(source, target, inputs.graph, relation, backend=cast(Backend, backend)),)


def _softmax(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    scores, chosen = inputs.leaf(len(_EDGES), _HEADS), cast(Backend, backend)
    plain = edge_softmax(scores, inputs.graph, backend=chosen)
    return plain, edge_softmax(scores, inputs.graph, edge_dropout=0.3, top_k=2, seed=3, backend=chosen)


def _diffusion(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    x, attention = inputs.leaf(_NODES, _HEADS, _WIDTH), inputs.leaf(len(_EDGES), _HEADS)
    graph, chosen = inputs.graph, cast(Backend, backend)
    plain = attention_diffusion(x, attention, graph, K=4, alpha=0.1, backend=chosen)
    dropped = attention_diffusion(
        x, attention, graph, K=3, alpha=0.2, dropout=0.3, feature_dropout=0.2, seed=5, backend=chosen
    )
    return plain, dropped


def _exact_diffusion(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    x, scores = inputs.leaf(_NODES, _HEADS, _WIDTH), inputs.leaf(len(_EDGES), _HEADS)
    attention = edge_softmax(scores, inputs.graph, backend="reference")
    chosen = cast(Backend, backend)
    return (attention_diffusion(x, attention, inputs.graph, alpha=0.3, mode="exact", backend=chosen),)


def _dropout(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    return (dropout(inputs.leaf(_NODES, _WIDTH), 0.4, 7, backend=cast(Backend, backend)),)


def _norm(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    x, added, weight, bias = inputs.leaf(_NODES, 8), inputs.leaf(_NODES, 8), inputs.leaf(8), inputs.leaf(8)
    return add_norm(x, added, weight, bias, backend=cast(Backend, backend))


def _linear(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    x, weight, bias = inputs.leaf(_NODES, 8), inputs.leaf(4, 8), inputs.leaf(4)
    return (linear(x, weight, bias, relu=True, backend=cast(Backend, backend)),)


def _lookup(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    table, index = inputs.leaf(_NODES, 8), inputs.numbers(3, 0, 3, 1)
    return (table[index] if backend == "reference" else lookup(table, index),)


def _loss(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    query, entities, bias = inputs.leaf(3, 4), inputs.leaf(_NODES, 4), inputs.leaf(_NODES)
    answers = inputs.numbers(0, 2, 3, 3), inputs.numbers(0, 4, 2)
    chosen = cast(LossBackend, backend)
    return (kvsall_loss(query, entities, bias, answers, label_smoothing=0.1, backend=chosen),)


def _ranking(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:
    query, entities, bias = (each.detach() for each in (inputs.leaf(3, 4), inputs.leaf(_NODES, 4), inputs.leaf(_NODES)))
    asked, targets = inputs.numbers(0, 0, 1, 2), inputs.numbers(1, 3, 2, 4)
    known = inputs.numbers(0, 2, 3, 4), inputs.numbers(1, 3, 2, 4)
    rank = reference.rank_targets if backend == "reference" else rank_targets
    return tuple(counts.double() for counts in rank(query, entities, bias, asked, targets, known))


_OF_GRAPHS: dict[str, Run] = {
    "head scores": _head_scores,
    "edge scores with relations": _edge_scores,
    "edge softmax": _softmax,
    "diffusion": _diffusion,
    "exact diffusion": _exact_diffusion,
    "dropout": _dropout,
}
# On other backends these are plain PyTorch.
_OF_ROWS: dict[str, Run] = {"layer norm": _norm, "linear layer": _linear, "table lookup": _lookup}


def check_kernels() -> Iterator[KernelCheck]:
    """Compare the kernels of every backend, on every device of this machine, with the definition.

    >>> all(check.agrees for check in check_kernels())
    True
    """
    for device in devices():
        for backend in MODULES:
            if why_not(backend, device) is None:
                dense = _OF_ROWS if backend == "triton" else {}
                for name, run in (_OF_GRAPHS | dense).items():
                    yield from _compared(name, run, backend, device)
        for backend in ("blocked", "triton"):
            if backend == "blocked" or why_not(backend, device) is None:
                yield from _compared("loss over all entities", _loss, backend, device)
        yield from _compared("ranking", _ranking, "torch", device)


def devices() -> list[torch.device]:
    """The CPU, and the current GPU if there is one."""
    gpu = [torch.device("cuda", torch.cuda.current_device())] if torch.cuda.is_available() else []
    return [torch.device("cpu"), *gpu]


def _compared(name: str, run: Run, backend: str, device: torch.device) -> Iterator[KernelCheck]:
    try:
        results = _results(run, backend, torch.float32, device)
    except Exception as error:
        yield KernelCheck(name, "forward", backend, str(device), None, False, f"{type(error).__name__}: {error}")
        return
    truth = _results(run, "reference", torch.float64, torch.device("cpu"))
    for direction, expected in truth.items():
        if expected:
            off = max(map(_difference, results[direction], expected))
            yield KernelCheck(name, direction, backend, str(device), off, off <= TOLERANCE)


def _results(run: Run, backend: str, dtype: torch.dtype, device: torch.device) -> dict[str, list[Tensor]]:
    """Outputs and gradients of a kernel."""
    inputs = _Inputs(dtype, device)
    outputs = run(inputs, backend)
    if outputs[0].requires_grad:
        # Weights that differ, so that a gradient in the wrong place is seen.
        weighted = [(out * torch.arange(1, out.numel() + 1, device=device).view_as(out)).sum() for out in outputs]
        torch.stack(weighted).sum().backward()
    gradients = [leaf.grad for leaf in inputs.leaves if leaf.grad is not None]
    return {"forward": [out.detach() for out in outputs], "backward": gradients}


def _difference(result: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest number; infinite for NaN."""
    scale = max(float(expected.abs().max()), 1e-3)
    error = float((result.double().cpu() - expected).abs().max()) / scale
    return math.inf if math.isnan(error) else error
