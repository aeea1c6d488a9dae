"""One diffusion with its inputs, and the outputs and gradients of the operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion, edge_softmax
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


def diffuse(problem: Problem, backend: Backend, *, attention: Tensor | None = None, **options: Any) -> Results:
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


def softmax(problem: Problem, backend: Backend, **options: Any) -> Results:
    """The output of `edge_softmax` and the gradient of the scores."""
    scores = problem.scores.detach().clone().requires_grad_()
    out = edge_softmax(scores, problem.graph, backend=backend, **options)
    out.backward(uniform(*scores.shape, seed=9).to(scores))
    return {"out": out.detach(), "scores": gradient(scores)}


def gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def operator_matrix(graph: Graph, attention: Tensor, backend: Backend, **options: Any) -> Tensor:
    """The matrix [N, N] of a diffusion with one head: what it does to each unit vector."""
    device = device_of(backend)
    unit = torch.eye(graph.num_nodes, dtype=torch.float64, device=device)[:, None, :]
    out = attention_diffusion(unit, attention.to(device), graph.to(device), backend=backend, **options)
    return out[:, 0].cpu()
