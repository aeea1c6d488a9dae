"""Hop weights θ of Eq. 3, and the distance of a truncated sum from the whole one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph import durable
from magna.ops import checks

# Entries stay: a captured step goes on reading them.
_FIXED_THETA: dict[tuple[float, int, int, torch.dtype, torch.device], Tensor] = {}


def geometric_weights(alpha: Tensor, K: int | Tensor, most: int | None = None) -> Tensor:
    """θ of the truncated recursion (Eq. 5), differentiable in alpha.

    θ_k = α (1 − α)^k for k < K and θ_K = (1 − α)^K: the last hop carries all the weight that is left, so
    the weights sum to 1. Where K is a tensor, `most` is its largest value, and hops beyond K weigh nothing.

    Shapes: alpha [H] → θ [H, K + 1], or [H, most + 1].

    >>> geometric_weights(torch.tensor([0.5]), K=2)
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    if most is None:
        assert isinstance(K, int)
        most = K
    hop = torch.arange(most + 1, device=alpha.device)
    decay = (1 - alpha)[:, None] ** hop
    return torch.where(hop < K, alpha[:, None] * decay, torch.where(hop == K, decay, 0.0))


def per_head(value: float | Tensor | None, heads: int, like: Tensor) -> Tensor:
    """One value per head, in the type and on the device of `like`."""
    if isinstance(value, Tensor):
        return value.to(like.dtype).expand(heads).contiguous()
    assert value is not None
    return torch.full((heads,), value, dtype=like.dtype, device=like.device)


def fixed_theta(alpha: float | Tensor | None, K: int | None, heads: int, like: Tensor) -> Tensor:
    """θ of K hops [H, K + 1], computed once for each number `alpha`."""
    assert alpha is not None and K is not None
    if isinstance(alpha, Tensor):
        return geometric_weights(per_head(alpha, heads, like), K)
    key = float(alpha), K, heads, like.dtype, like.device
    theta = None if checks.traced(like) else _FIXED_THETA.get(key)
    if theta is None:
        with durable():
            start = torch.full((heads,), alpha, dtype=torch.float64, device=like.device)
            # Hop by hop in memory, as the hops read it.
            theta = geometric_weights(start, K).to(like.dtype).t().contiguous().t()
        # Tensors made while a CUDA graph is captured belong to the graph.
        if checks.values_readable(like):
            _FIXED_THETA[key] = theta
    return theta


def truncation_error(K: int, alpha: float) -> float:
    """Bound on the distance between K hops (Eq. 5) and the whole diffusion (Eq. 3): 2 (1 − α)^K.

    ‖Z^(K) − 𝒜 Z^(0)‖∞ ≤ truncation_error(K, alpha) · ‖Z^(0)‖∞. A model trained with small K is
    a different model from the whole diffusion, not an approximation of it: at α = 0.1 and K = 6 hop 6 alone carries
    53 % of the weight.

    >>> round(truncation_error(6, 0.1), 3)
    1.063
    """
    checks.hops(K)
    checks.alpha(alpha, 1, validate=True)
    return 2.0 * (1.0 - alpha) ** K


def hops_for(tolerance: float, alpha: float) -> int:
    """The smallest K whose `truncation_error` is at most `tolerance`.

    >>> [hops_for(0.01, alpha) for alpha in (0.15, 0.10, 0.05)]
    [33, 51, 104]
    """
    checks.alpha(alpha, 1, validate=True, above_zero=True)  # without teleport the sum never settles
    if not checks.is_number(tolerance) or not tolerance > 0:
        raise ArgumentError("tolerance", tolerance, "above 0")
    if tolerance >= 2:
        return 0
    if alpha == 1:
        return 1
    K = max(0, math.ceil(math.log(tolerance / 2.0) / math.log1p(-alpha)) - 1)
    while truncation_error(K, alpha) > tolerance:
        K += 1
    return K
