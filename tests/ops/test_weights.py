"""Hop weights and the distance between a truncated diffusion and the whole one."""

from __future__ import annotations

import math

import pytest
import torch

from magna.ops import geometric_weights, hops_for, truncation_error


@pytest.mark.parametrize("K", [0, 1, 2, 7])
def test_weights_sum_to_one_and_decay(K: int) -> None:
    alpha = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=torch.float64)
    theta = geometric_weights(alpha, K)
    assert theta.shape == (4, K + 1)
    torch.testing.assert_close(theta.sum(1), torch.ones(4).double())
    for k in range(K):
        torch.testing.assert_close(theta[:, k], alpha * (1 - alpha) ** k)
    torch.testing.assert_close(theta[:, K], (1 - alpha) ** K)


def test_share_of_the_last_hop() -> None:
    # Point 30 of the paper's differences: a truncated model is not PageRank.
    shares = {(0.15, 4): 52, (0.1, 6): 53, (0.1, 10): 35, (0.2, 2): 64}
    for (alpha, K), percent in shares.items():
        assert round(100 * geometric_weights(torch.tensor([alpha]), K)[0, K].item()) == percent


def test_weights_are_differentiable_everywhere() -> None:
    alpha = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: geometric_weights(a, 4), (alpha,))
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    geometric_weights(ends, 3).square().sum().backward()
    assert ends.grad is not None and ends.grad.isfinite().all()


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("tolerance", [1.9, 1e-2, 1e-6, 1e-12])
def test_hops_for_is_the_smallest(alpha: float, tolerance: float) -> None:
    K = hops_for(tolerance, alpha)
    assert truncation_error(K, alpha) <= tolerance
    assert K == 0 or truncation_error(K - 1, alpha) > tolerance


def test_bounds_at_the_ends() -> None:
    assert hops_for(2.0, 0.1) == 0
    assert truncation_error(0, 0.3) == 2 and truncation_error(3, 1.0) == 0 and truncation_error(5, 0.0) == 2


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_alpha_out_of_range(alpha: float) -> None:
    with pytest.raises(ValueError, match=rf"alpha is {alpha}; allowed: 0 to 1"):
        truncation_error(3, alpha)
    with pytest.raises(ValueError, match=f"alpha is {alpha}; allowed: above 0 and at most 1"):
        hops_for(0.1, alpha)


def test_other_bad_values() -> None:
    for K in (-1, math.nan, "3", 2.5):
        with pytest.raises(ValueError, match=f"K is {K!r}; allowed: an int, 0 and above"):
            truncation_error(K, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tolerance is 0; allowed: above 0"):
        hops_for(0, 0.1)
    with pytest.raises(ValueError, match=r"alpha is 0.0; allowed: above 0"):
        hops_for(0.1, 0)
