"""One diffusion with its inputs, and the outputs and gradients of the operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion, edge_softmax
from magna.ops.backend.registry import accumulator
from magna.typing import Backend
from tests.support.comparing import Results
from tests.support.graphs import uniform
from tests.support.running import device_of

Options = dict[str, Any]


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
        return Problem(
            graph,
            uniform(graph.num_nodes, heads, width, seed=seed),
            uniform(graph.num_edges, heads, seed=seed + 1, low=-2.0, high=2.0),
            uniform(heads, K + 1, seed=seed + 2, low=0.1, high=1.0),
            uniform(graph.num_nodes, heads, width, seed=seed + 3),
        ).to(dtype, device)

    @property
    def attention(self) -> Tensor:
        return edge_softmax(self.scores, self.graph, backend="reference")

    def to(self, dtype: torch.dtype, device: torch.device | str | None = None) -> Problem:
        """The same in another type, on another device; scores and theta are float32 at least."""
        place = self.x.device if device is None else device
        x, grad = self.x.to(place, dtype), self.grad.to(place, dtype)
        scores, theta = (t.to(place, accumulator(dtype)) for t in (self.scores, self.theta))
        return Problem(self.graph.to(place), x, scores, theta, grad)


def with_gradients(function: Callable[..., Tensor], grad: Tensor | int = 9, **inputs: Tensor) -> Results:
    """The output of a function and the gradients of its inputs, from `grad` or from numbers of this seed."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in inputs.items()}
    out = function(**leaves)
    out.backward(grad if isinstance(grad, Tensor) else uniform(*out.shape, seed=grad).to(out))
    return {"out": out.detach()} | {name: gradient(leaf) for name, leaf in leaves.items()}


def diffuse(problem: Problem, backend: Backend, *, attention: Tensor | None = None, **options: Any) -> Results:
    """The output of `attention_diffusion` and the gradient of everything that can have one."""
    leaves = {"x": problem.x, "attention": problem.attention if attention is None else attention}
    if not options.keys() & {"alpha", "K"}:
        leaves["theta"] = problem.theta
    elif isinstance(options["alpha"], Tensor):
        leaves["alpha"] = options.pop("alpha")
    function = partial(attention_diffusion, graph=problem.graph, backend=backend, **options)
    return with_gradients(function, problem.grad, **leaves)


def output_of(problem: Problem, backend: Backend, **options: Any) -> Tensor:
    """The output of `attention_diffusion` alone; an option may replace an input."""
    inputs: Options = {"x": problem.x, "attention": problem.attention, "graph": problem.graph, "backend": backend}
    return attention_diffusion(**inputs | options)


def softmax(problem: Problem, backend: Backend, **options: Any) -> Results:
    """The output of `edge_softmax` and the gradient of the scores."""
    function = partial(edge_softmax, graph=problem.graph, backend=backend, **options)
    return with_gradients(function, scores=problem.scores)


def gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def operator_matrix(graph: Graph, attention: Tensor, backend: Backend, **options: Any) -> Tensor:
    """The matrix [N, N] of a diffusion with one head: what it does to each unit vector."""
    device = device_of(backend)
    unit = torch.eye(graph.num_nodes, dtype=torch.float64, device=device)[:, None, :]
    out = attention_diffusion(unit, attention.to(device), graph.to(device), backend=backend, **options)
    return out[:, 0].cpu()
