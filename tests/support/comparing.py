"""Comparisons of outputs, and checks of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Results = dict[str, Tensor]


def same(results: Mapping[str, Tensor], expected: Mapping[str, Tensor], **tolerance: Any) -> None:
    """Check that every output and gradient agrees."""
    torch.testing.assert_close(dict(results), dict(expected), **tolerance)


def same_bits(results: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    same(results, expected, rtol=0, atol=0)


def within_budget(fused: Results, plain: Results, truth: Results, *, times: float = 2, floor: float = 0) -> None:
    """Check |fused − float64 truth| ≤ 2 |plain at the same precision − truth| + one rounding of the largest number."""
    for name, true in truth.items():
        if true.numel() == 0:
            continue
        error, allowed = ((result[name].double() - true).abs().max() for result in (fused, plain))
        rounding = max(floor, torch.finfo(fused[name].dtype).eps) * true.abs().max()
        assert error <= times * allowed + rounding, f"{name}: off by {error:.3g}, plain PyTorch by {allowed:.3g}"


def all_learn(module: nn.Module) -> None:
    """Check that a gradient reached every parameter."""
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
