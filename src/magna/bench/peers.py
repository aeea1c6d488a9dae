"""Programs that compute softmax and attention diffusion: our backends, and those that others would write.

A peer builds `forward(x, scores) -> z` for a problem; the backward pass is autograd's. A new peer is one class here
and one line in `PEERS`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion, edge_softmax
from magna.ops.backend.graph_tensors import pack
from magna.ops.backend.registry import why_not
from magna.typing import Backend, Memory

Forward = Callable[[Tensor, Tensor], Tensor]
Results = tuple[Tensor, Tensor, Tensor]  # the output, and the gradients to features and edge scores
Step = Callable[[], Results]

ALPHA = 0.1


@dataclass(frozen=True, eq=False)
class Problem:
    """One set of inputs, the same tensors for every peer."""

    graph: Graph
    x: Tensor  # [N, H, D]
    scores: Tensor  # [E, H]
    grad: Tensor  # [N, H, D], the gradient of the output
    K: int
    alpha: float = ALPHA

    @staticmethod
    def random(graph: Graph, heads: int, width: int, K: int, dtype: torch.dtype = torch.float32) -> Problem:
        generator = torch.Generator(graph.device).manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, device=graph.device)

        x, grad = (normal(graph.num_nodes, heads, width).to(dtype) for _ in range(2))
        scores = normal(graph.num_edges, heads)
        return Problem(graph, x.requires_grad_(), scores.requires_grad_(), grad, K)

    def tensors(self) -> list[Tensor]:
        return [self.x, self.scores, self.grad, *pack(self.graph)[0]]

    def sizes(self) -> dict[str, int]:
        """Sizes of the problem by their names."""
        heads, width = self.x.shape[1:]
        graph = self.graph
        return {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges, "heads": heads, "width": width, "K": self.K}

    def head(self, h: int, dtype: torch.dtype) -> Problem:
        """One head alone, in another precision."""
        x, scores, grad = (t.detach()[:, h : h + 1].to(dtype) for t in (self.x, self.scores, self.grad))
        return replace(self, x=x.requires_grad_(), scores=scores.requires_grad_(), grad=grad)


def step(problem: Problem, forward: Forward) -> Results:
    """One pass forward and backward."""
    z = forward(problem.x, problem.scores)
    grad_x, grad_scores = torch.autograd.grad(z, (problem.x, problem.scores), problem.grad)
    return z.detach(), grad_x, grad_scores


class Peer(Protocol):
    """A program that computes the forward pass of a problem."""

    def why_not(self, problem: Problem) -> str | None:
        """Reason why this peer cannot take the problem, or None."""

    def build(self, problem: Problem) -> Forward: ...


@dataclass(frozen=True)
class Ours:
    """`edge_softmax` and `attention_diffusion` on one backend; `reference` is plain gather and scatter."""

    backend: Backend
    memory: Memory = "auto"

    def why_not(self, problem: Problem) -> str | None:
        reason: str | None = why_not(self.backend, problem.graph.device)
        return reason

    def build(self, problem: Problem) -> Forward:
        def forward(x: Tensor, scores: Tensor) -> Tensor:
            attention = edge_softmax(scores, problem.graph, backend=self.backend, validate=False)
            return attention_diffusion(
                x, attention, problem.graph, problem.K, problem.alpha, memory=self.memory, backend=self.backend
            )

        return forward


class PyG:
    """A PyG user's loop over `MessagePassing`."""

    def why_not(self, problem: Problem) -> str | None:  # noqa: ARG002
        return _missing("torch_geometric")

    def build(self, problem: Problem) -> Forward:
        from torch_geometric.nn import MessagePassing
        from torch_geometric.utils import softmax

        class Diffusion(MessagePassing):  # type: ignore[misc]
            def __init__(self, K: int, alpha: float):
                super().__init__(aggr="add", node_dim=0)
                self.K, self.alpha = K, alpha

            def forward(self, x: Tensor, edge_index: Tensor, scores: Tensor) -> Tensor:
                attention = softmax(scores, edge_index[1], num_nodes=x.size(0)).to(x.dtype)
                z = x
                for _ in range(self.K):
                    z = (1 - self.alpha) * self.propagate(edge_index, x=z, attention=attention) + self.alpha * x
                return z

            def message(self, x_j: Tensor, attention: Tensor) -> Tensor:
                return attention.unsqueeze(-1) * x_j

        conv = Diffusion(problem.K, problem.alpha)
        return lambda x, scores: conv(x, problem.graph.edge_index, scores)


class DGL:
    """DGL's fused products, if DGL is installed."""

    def why_not(self, problem: Problem) -> str | None:
        return _missing("dgl") if problem.x.dtype == torch.float32 else "only measured in float32"

    def build(self, problem: Problem) -> Forward:
        import dgl  # type: ignore[import-not-found]

        edges = problem.graph.edge_index
        graph = dgl.graph((edges[0], edges[1]), num_nodes=problem.graph.num_nodes)
        graph.create_formats_()

        def forward(x: Tensor, scores: Tensor) -> Tensor:
            attention = dgl.ops.edge_softmax(graph, scores).unsqueeze(-1)
            z = x
            for _ in range(problem.K):
                z = (1 - problem.alpha) * dgl.ops.u_mul_e_sum(graph, z, attention) + problem.alpha * x
            return z

        return forward


class TorchCSR:
    """torch's sparse CSR product, head by head, on a softmax made with plain scatter."""

    def why_not(self, problem: Problem) -> str | None:
        if problem.x.dtype != torch.float32:
            return "only measured in float32"
        if problem.graph.num_nodes > 5_000:
            return "its gradient forms a dense product of all pairs of nodes"
        pairs = problem.graph.edge_index.unique(dim=1)
        return "it refuses parallel edges" if pairs.size(1) < problem.graph.num_edges else None

    def build(self, problem: Problem) -> Forward:
        graph, size = problem.graph, (problem.graph.num_nodes,) * 2
        # CSR products are silently wrong for columns that are not sorted inside a row.
        order = (graph.target * graph.num_nodes + graph.source).argsort()
        rowptr, col = graph.rowptr.long(), graph.source[order]
        with warnings.catch_warnings(action="ignore"):
            # torch warns once in a process that CSR is in beta state.
            torch.eye(1).to_sparse_csr()

        def forward(x: Tensor, scores: Tensor) -> Tensor:
            attention = edge_softmax(scores, graph, backend="reference", validate=False)[order]
            heads = []
            for head, values in enumerate(attention.unbind(1)):
                matrix = torch.sparse_csr_tensor(rowptr, col, values, size, check_invariants=False)
                z = first = x[:, head]
                for _ in range(problem.K):
                    z = (1 - problem.alpha) * (matrix @ z) + problem.alpha * first
                heads.append(z)
            return torch.stack(heads, dim=1)

        return forward


def _missing(module: str) -> str | None:
    try:
        __import__(module)
    except (ImportError, OSError) as error:
        return f"not installed ({str(error).splitlines()[0]})"
    return None


# Ours first, as in the tables.
PEERS: dict[str, Peer] = {
    "cpu": Ours("cpu"),
    "triton": Ours("triton"),
    "reference": Ours("reference"),
    "pyg": PyG(),
    "dgl": DGL(),
    "torch-csr": TorchCSR(),
}


def peers_on(device: torch.device) -> list[str]:
    """The peers for a device."""
    other = "cpu" if device.type == "cuda" else "triton"
    return [name for name in PEERS if name != other]


def truth(problem: Problem) -> Results:
    """The definition in float64, a head at a time because it keeps a row per edge and hop."""
    parts = []
    for h in range(problem.x.size(1)):
        alone = problem.head(h, torch.float64)
        parts.append(step(alone, Ours("reference").build(alone)))
    z, grad_x, grad_scores = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    return z, grad_x, grad_scores


def stepper(problem: Problem, peer: Peer) -> Step:
    return partial(step, problem, peer.build(problem))
