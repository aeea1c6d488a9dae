"""Dropout: its mean, its seed, its silence in evaluation."""

import pytest
import torch

from magna.nn import Dropout


def test_the_mean_stays_and_the_rate_is_met():
    torch.manual_seed(0)
    dropped = Dropout(0.3)(torch.ones(200, 200))
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)


def test_manual_seed_governs_it():
    dropout, x = Dropout(0.5), torch.ones(64)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_the_gradient_has_the_same_mask():
    x = torch.ones(64, requires_grad=True)
    out = Dropout(0.5)(x)
    out.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, out.detach())


def test_evaluation_passes_through():
    x = torch.ones(8)
    assert Dropout(0.5).eval()(x) is x


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_bad_rate(rate):
    with pytest.raises(ValueError, match=f"input_dropout is {rate}; allowed: 0 up to"):
        Dropout(rate, name="input_dropout")
