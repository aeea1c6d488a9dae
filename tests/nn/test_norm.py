"""Norms: formulas, eps on row-normalised bags of words (docs/explanation/switches.md, point 8), types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from magna.nn.norm import BatchNorm, LayerNorm, UnbiasedLayerNorm, make_norm
from magna.typing import Norm


def test_unbiased_norm_is_its_formula_with_finite_gradients() -> None:
    x = torch.randn(5, 7, dtype=torch.float64)
    norm = UnbiasedLayerNorm(7).double()
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    deviation = ((x - x.mean(1, keepdim=True)) ** 2).sum(1, keepdim=True).div(6).sqrt()
    expected = norm.weight * (x - x.mean(1, keepdim=True)) / (deviation + 1e-6) + norm.bias
    torch.testing.assert_close(norm(x), expected)
    constant = torch.ones(2, 7, dtype=x.dtype, requires_grad=True)
    norm(constant).square().sum().backward()
    assert constant.grad is not None and constant.grad.isfinite().all()


def test_batch_norm_is_torchs_in_training_and_in_evaluation() -> None:
    x, norm, theirs = torch.randn(9, 5), BatchNorm(5), nn.BatchNorm1d(5)
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    theirs.load_state_dict(norm.state_dict(), strict=False)
    torch.testing.assert_close(norm(x), theirs(x))
    # Evaluation has all nodes, too: no running mean, nothing to save but gain and shift.
    assert torch.equal(norm.eval()(x), norm.train()(x)) and norm.state_dict().keys() == {"weight", "bias"}


def test_batch_norm_of_one_row_and_of_bfloat16() -> None:
    norm = BatchNorm(3)
    assert torch.equal(norm(torch.ones(1, 3)), torch.zeros(1, 3))
    x = torch.randn(1000, 3).bfloat16() + 100  # the sum of all rows would not fit in 8 bits
    assert norm(x).dtype == torch.bfloat16
    torch.testing.assert_close(norm(x).float(), norm(x.float()), rtol=0.01, atol=0.01)


def test_eps_of_the_standard_norm_shrinks_bags_of_words() -> None:
    x = torch.zeros(1, 1433)
    x[0, :18] = 1 / 18  # a row of Cora: about 18 words of 1433
    sizes = {name: make_norm(name, 1433)(x).std().item() for name in ("layer", "unbiased")}
    assert sizes["layer"] < 0.95
    assert sizes["unbiased"] > 0.999
    assert make_norm("layer", 1433, 1e-12)(x).std().item() > 0.999


def test_autocast_does_not_widen_the_standard_norm() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    norm, x = make_norm("layer", 8).to(device), torch.randn(5, 8, device=device)
    with torch.autocast(device, torch.bfloat16):
        narrow = norm(x.bfloat16())
        assert narrow.dtype == torch.bfloat16 and norm(x).dtype == torch.float32
    torch.testing.assert_close(narrow.float(), norm(x), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("name", "eps"), [("layer", 1e-5), ("unbiased", 1e-6), ("batch", 1e-5)])
def test_each_name_gives_its_norm_with_its_eps(name: Norm, eps: float) -> None:
    norms: list[Any] = [make_norm(name, 4), make_norm(name, 4, 0.5)]
    assert type(norms[0]) is {"layer": LayerNorm, "unbiased": UnbiasedLayerNorm, "batch": BatchNorm}[name]
    assert [norm.eps for norm in norms] == [eps, 0.5]
    assert isinstance(make_norm("none", 4), nn.Identity)


def test_a_width_without_deviation_is_refused() -> None:
    with pytest.raises(ValueError, match="channels is 1; allowed: 2 or more with norm 'unbiased'"):
        make_norm("unbiased", 1)
