"""The paper's propositions as measured laws: the largest deviation of the kernels from each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion, attention_matrix, edge_softmax, truncation_error
from magna.paper.render import TextTable
from magna.paper.study import Outcome, StudyJob

ALPHAS = (0.05, 0.1, 0.25, 0.5)
HOPS = (1, 2, 4, 8, 16, 32)
SEEDS, QUICK_SEEDS = 10, 3
_NODES, _DEGREE = 60, 4
_TOLERANCE = 1e-13  # of the kernel's solve, relative
# Rounding of eigenvectors grows with their condition number; everything else is of the order of float64.
_SMALL, _LOOSE = 1e-10, 1e-7
_HEADER = ["law", "statement", "largest deviation", "allowed", "holds"]


class Sample(NamedTuple):
    """Random attention on a directed graph, where A is not symmetric and has complex eigenvalues."""

    graph: Graph
    attention: Tensor  # [E, 1]
    alpha: float

    def operator(self, K: int | None = None) -> Tensor:
        """The kernel's operator as a matrix: it is applied to the identity; without K, all hops."""
        identity = torch.eye(self.graph.num_nodes, dtype=torch.float64)[:, None]
        if K is not None:
            return attention_diffusion(identity, self.attention, self.graph, K=K, alpha=self.alpha)[:, 0]
        return attention_diffusion(
            identity, self.attention, self.graph, alpha=self.alpha, mode="exact", tolerance=_TOLERANCE
        )[:, 0]

    @property
    def dense(self) -> Tensor:
        return attention_matrix(self.attention, self.graph)[0]

    def series(self, K: int) -> Tensor:
        """Σ θ_k A^k for k up to K, with the rest of the weight on the last power (Eq. 5)."""
        power, total = torch.eye(self.graph.num_nodes, dtype=torch.float64), torch.zeros_like(self.dense)
        for k in range(K):
            total = total + self.alpha * (1 - self.alpha) ** k * power
            power = self.dense @ power
        return total + (1 - self.alpha) ** K * power


class Law(NamedTuple):
    """One statement, the deviation of a sample from it, and the largest deviation that rounding explains."""

    name: str
    statement: str
    deviation: Callable[[Sample], float]
    allowed: float


def _steps(sample: Sample) -> float:
    return _worst([_largest(sample.operator(K) - sample.series(K)) for K in HOPS])


def _bound(sample: Sample) -> float:
    """Excess over the bound 2 (1 − α)^K; 0 where the bound holds."""
    limit = sample.operator()
    distances = (float((sample.operator(K) - limit).abs().sum(1).max()) for K in HOPS)
    excess = [distance - truncation_error(K, sample.alpha) for K, distance in zip(HOPS, distances, strict=True)]
    return _worst([0.0, *excess])


def _pagerank(sample: Sample) -> float:
    identity = torch.eye(sample.graph.num_nodes, dtype=torch.float64)
    closed = sample.alpha * torch.linalg.inv(identity - (1 - sample.alpha) * sample.dense)
    return _largest(sample.operator() - closed)


def _rows(sample: Sample) -> float:
    return _worst([_largest(matrix.sum(1) - 1) for matrix in (sample.operator(), *map(sample.operator, HOPS))])


def _eigenvectors(sample: Sample) -> float:
    """Largest residual of 𝒜 v = λ̂ v over the eigenvectors v of A."""
    values, vectors = torch.linalg.eig(sample.dense)
    return _largest(sample.operator().to(vectors.dtype) @ vectors - vectors * _diffused(values, sample.alpha))


def _eigenvalues(sample: Sample) -> float:
    """Distance of each eigenvalue of 𝒜, from its own decomposition, to the nearest one of the formula."""
    expected = _diffused(torch.linalg.eigvals(sample.dense), sample.alpha)
    distances = (torch.linalg.eigvals(sample.operator())[:, None] - expected).abs()
    return _worst([_largest(distances.amin(0)), _largest(distances.amin(1))])


def _ratio(sample: Sample) -> float:
    """Deviation of (1 − λ̂) / (1 − λ) from 1 / (α / (1 − α) + 1 − λ), with λ̂ measured along each eigenvector."""
    values, vectors = torch.linalg.eig(sample.dense)
    image = sample.operator().to(vectors.dtype) @ vectors
    measured = 1 - (vectors.conj() * image).sum(0) / vectors.abs().square().sum(0)
    laplacian = 1 - values
    proper = laplacian.abs() > 1e-6  # the ratio of the constant vector is 0 / 0
    formula = 1 / (sample.alpha / (1 - sample.alpha) + laplacian)
    return _largest((measured / laplacian - formula)[proper])


LAWS = (
    Law("Eq. 5", "K steps are the finite sum of powers of A", _steps, _SMALL),
    Law("Proposition 1", "the distance of K steps to the limit is at most 2 (1 − α)^K", _bound, _SMALL),
    Law("Proposition 2", "ratio of Laplacian eigenvalues: 1 / (α / (1 − α) + λ)", _ratio, _LOOSE),
    Law("Proposition 3", "the limit is PageRank: α inv(I − (1 − α) A)", _pagerank, _SMALL),
    Law("Lemma 1", "eigenvalues of the limit: α / (1 − (1 − α) λ)", _eigenvalues, _LOOSE),
    Law("Appendix", "A and its diffusion share their eigenvectors", _eigenvectors, _LOOSE),
    Law("Section 2.2", "rows of diffused attention sum to 1", _rows, _SMALL),
)


def measure_laws(job: StudyJob) -> Outcome:
    """Measure each law on random attention: `seeds` graphs, each with every alpha."""
    count = job.count(SEEDS, QUICK_SEEDS)
    samples = [_sample(seed, alpha) for seed in range(count) for alpha in ALPHAS]
    rows = []
    for law in LAWS:
        worst = _worst([law.deviation(sample) for sample in samples])
        holds = "yes" if worst <= law.allowed else "no"
        rows.append([law.name, law.statement, f"{worst:.1e}", f"{law.allowed:.0e}", holds])
    caption = (
        f"Largest deviation of the kernels from each statement of the paper in float64, over {count} random directed "
        f"graphs of {_NODES} nodes with random attention, whose matrices are not symmetric, and alpha "
        f"{', '.join(map(str, ALPHAS))}."
    )
    return Outcome(TextTable(_HEADER, rows), caption)


def _sample(seed: int, alpha: float) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    target = torch.arange(_NODES).repeat_interleave(_DEGREE)  # every node has in-edges, so that rows sum to 1
    source = torch.randint(_NODES, target.shape, generator=generator)
    graph = Graph.from_edge_index(torch.stack([source, target]), _NODES)
    scores = 2 * torch.randn(target.numel(), 1, dtype=torch.float64, generator=generator)
    return Sample(graph, edge_softmax(scores, graph), alpha)


def _diffused(values: Tensor, alpha: float) -> Tensor:
    """Eigenvalues after diffusion (Lemma 1)."""
    return alpha / (1 - (1 - alpha) * values)


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def _worst(deviations: list[float]) -> float:
    """The largest number; NaN if one of them is, which holds no law."""
    return float(torch.tensor(deviations, dtype=torch.float64).max())
