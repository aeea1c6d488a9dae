"""Hop weights θ of Eq. 3, and how far a truncated sum stands from the whole one."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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


def truncation_error(K: int, alpha: float) -> float:
    """Bound on the distance between K hops (Eq. 5) and the whole diffusion (Eq. 3): 2 (1 − α)^K.

    ‖Z^(K) − 𝒜 Z^(0)‖∞ ≤ truncation_error(K, alpha) · ‖Z^(0)‖∞. A model trained with small K is
    a different model from the whole diffusion, not an approximation of it: at α = 0.1 and K = 6 hop 6 alone carries
    53 % of the weight.

    >>> round(truncation_error(6, 0.1), 3)
    1.063
    """
    _check(alpha)
    if K < 0:
        raise ValueError(f"K is {K}; allowed: 0 and above")
    return 2.0 * (1.0 - alpha) ** K


def hops_for(tolerance: float, alpha: float) -> int:
    """The smallest K whose `truncation_error` is at most `tolerance`.

    >>> [hops_for(0.01, alpha) for alpha in (0.15, 0.10, 0.05)]
    [33, 51, 104]
    """
    _check(alpha)
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}; allowed: above 0")
    if alpha == 0:
        raise ValueError("alpha is 0; allowed here: above 0 and at most 1 (without teleport the sum never settles)")
    if tolerance >= 2:
        return 0
    if alpha == 1:
        return 1
    K = max(0, math.ceil(math.log(tolerance / 2.0) / math.log1p(-alpha)) - 1)
    while truncation_error(K, alpha) > tolerance:
        K += 1
    return K


def _check(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}; allowed: 0 to 1")
