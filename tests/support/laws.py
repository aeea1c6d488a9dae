"""Checks, graphs, measurements and the program itself, for all tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from magna.config.schema import Config
from magna.graph import Graph
from magna.ops import attention_diffusion, edge_softmax
from magna.tasks import NodeClassification, make_task
from magna.typing import Backend

Results = dict[str, Tensor]
Options = dict[str, Any]
# The least that a finished run reports.
SUMMARY: dict[str, Any] = {"seed": 0, "seconds": 1.0, "epochs": 1, "valid": {}, "test": {}}


def device_of(backend: str) -> torch.device:
    """Where a backend is tested: Triton on the GPU where there is one, else in its interpreter."""
    return torch.device("cuda" if backend == "triton" and torch.cuda.is_available() else "cpu")


def interpreted(backend: str) -> bool:
    """Whether a backend is so slow here that only small graphs are tested."""
    return backend == "triton" and not torch.cuda.is_available()


def uniform(*shape: int, seed: int, low: float = -1.0, high: float = 1.0) -> Tensor:
    numbers = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low + (high - low) * numbers


def integers(high: int, *shape: int, seed: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def random_graph(num_nodes: int, num_edges: int, seed: int = 0, *, fed: bool = False) -> Graph:
    """Random edges, self-loops and duplicates among them; `fed`: every node has an in-edge."""
    edges = integers(num_nodes, 2, num_edges, seed=seed)
    if fed:
        node = torch.arange(num_nodes)
        edges = torch.cat([edges, torch.stack([(node + 1) % num_nodes, node])], dim=1)
        edges = edges[:, torch.randperm(edges.size(1), generator=torch.Generator().manual_seed(seed))]
    return Graph.from_edge_index(edges, num_nodes)


def star(edges: int, leaves: int) -> Graph:
    """A hub with so many edges to it and from it, shared out among the leaves."""
    leaf = torch.arange(edges) % leaves + 1
    hub = torch.zeros_like(leaf)
    return Graph.from_edge_index(torch.cat([torch.stack([leaf, hub]), torch.stack([hub, leaf])], dim=1), leaves + 1)


def ring_triples(size: int) -> list[tuple[str, str, str]]:
    """A knowledge graph that a few steps can learn: who comes next in a ring, and who comes third."""
    steps = {"next": 1, "third": 3}
    return [(f"{i:02}", name, f"{(i + step) % size:02}") for name, step in steps.items() for i in range(size)]


def odd_graphs(hub: int) -> dict[str, Graph]:
    """The shapes on which kernels go wrong."""

    def graph(pairs: list[tuple[int, int]], num_nodes: int) -> Graph:
        return Graph.from_edge_index(torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t(), num_nodes)

    return {
        "no nodes": graph([], 0),
        "one node": graph([], 1),
        "one loop": graph([(0, 0)], 1),
        "no edges": graph([], 5),
        "isolated nodes": graph([(1, 3), (3, 1), (5, 3)], 8),
        "loops": graph([(0, 0), (1, 1), (2, 2), (0, 1), (2, 1)], 3),
        "duplicates": graph([(0, 1), (0, 1), (0, 1), (2, 1), (1, 0), (1, 0), (1, 1), (1, 1)], 3),
        "sorted by target": graph([(2, 0), (1, 0), (0, 1), (2, 1), (2, 2)], 3),
        "one piece exactly": graph([(i % 3, 1) for i in range(64)], 3),
        "hub": star(hub, leaves=-(-hub // 40)),
    }


@dataclass(frozen=True)
class Problem:
    """Everything one diffusion needs, on one device and of one type."""

    graph: Graph
    x: Tensor  # [N, H, D]
    scores: Tensor  # [E, H]
    theta: Tensor  # [H, K + 1]
    grad: Tensor  # [N, H, D], the gradient that comes in

    @staticmethod
    def of(
        graph: Graph,
        heads: int = 2,
        width: int = 3,
        K: int = 3,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> Problem:
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        return Problem(
            graph.to(device),
            uniform(graph.num_nodes, heads, width, seed=seed).to(device, dtype),
            uniform(graph.num_edges, heads, seed=seed + 1, low=-2.0, high=2.0).to(device, exact),
            uniform(heads, K + 1, seed=seed + 2, low=0.1, high=1.0).to(device, exact),
            uniform(graph.num_nodes, heads, width, seed=seed + 3).to(device, dtype),
        )

    @property
    def attention(self) -> Tensor:
        return edge_softmax(self.scores, self.graph, backend="reference")

    def to(self, dtype: torch.dtype) -> Problem:
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        return replace(
            self,
            x=self.x.to(dtype),
            scores=self.scores.to(exact),
            theta=self.theta.to(exact),
            grad=self.grad.to(dtype),
        )


def diffuse(problem: Problem, backend: Backend, *, attention: Tensor | None = None, **options) -> Results:
    """The output of `attention_diffusion` and the gradient of everything that can have one."""
    leaves: Options = {"x": problem.x, "attention": problem.attention if attention is None else attention}
    if not options.keys() & {"alpha", "K"}:
        leaves["theta"] = problem.theta
    elif isinstance(options["alpha"], Tensor):
        leaves["alpha"] = options.pop("alpha")
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    out = attention_diffusion(graph=problem.graph, backend=backend, **leaves, **options)
    out.backward(problem.grad)
    return {"out": out.detach()} | {name: gradient(leaf) for name, leaf in leaves.items()}


def softmax(problem: Problem, backend: Backend, **options) -> Results:
    """The output of `edge_softmax` and the gradient of the scores."""
    scores = problem.scores.detach().clone().requires_grad_()
    out = edge_softmax(scores, problem.graph, backend=backend, **options)
    out.backward(uniform(*scores.shape, seed=9).to(scores))
    return {"out": out.detach(), "scores": gradient(scores)}


def gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], **tolerance: Any) -> None:
    """Every output and gradient agrees."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        try:
            torch.testing.assert_close(found[name], value, **tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def same_bits(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    same(found, expected, rtol=0, atol=0)


def within_budget(found: Results, plain: Results, truth: Results, *, times: float = 2, floor: float = 0) -> None:
    """|fused − float64 truth| ≤ 2 |plain at the same precision − truth|, and one rounding of the largest number."""
    for name, true in truth.items():
        if true.numel() == 0:
            continue
        error, allowed = ((result[name].double() - true).abs().max() for result in (found, plain))
        rounding = max(floor, torch.finfo(found[name].dtype).eps) * true.abs().max()
        assert error <= times * allowed + rounding, f"{name}: off by {error:.3g}, plain PyTorch by {allowed:.3g}"


def operator_matrix(graph: Graph, attention: Tensor, backend: Backend, **options) -> Tensor:
    """The matrix [N, N] of a diffusion with one head: what it does to each unit vector."""
    device = device_of(backend)
    unit = torch.eye(graph.num_nodes, dtype=torch.float64, device=device)[:, None, :]
    out = attention_diffusion(unit, attention.to(device), graph.to(device), backend=backend, **options)
    return out[:, 0].cpu()


def saved_tensors(forward: Callable[[], object]) -> list[Tensor]:
    """The tensors that autograd keeps for the backward pass, each storage once."""
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return list(kept.values())


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """How much memory `work` holds at most, beyond what is held already."""
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
    """Refuses what a CUDA graph cannot hold: numbers copied to the device, and whatever waits for its results.

    >>> with Capturable():
    ...     torch.ones(2).sum().item()
    Traceback (most recent call last):
    AssertionError: _local_scalar_dense
    """

    REFUSED = (
        "lift_fresh",
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_consecutive",
        "equal",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.REFUSED, name
        by_bools = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
        assert not by_bools, "index by bools"
        return func(*args, **(kwargs or {}))


def node_task(config: Config, data_dir: Path | None = None, device: torch.device | str = "cpu") -> NodeClassification:
    """The task of a config of node classification."""
    task = make_task(config, data_dir, torch.device(device))
    assert isinstance(task, NodeClassification)
    return task


def run_magna(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the program with these arguments."""
    from magna import cli  # here, as most tests need no command line

    monkeypatch.setattr(sys, "argv", ["magna", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)
