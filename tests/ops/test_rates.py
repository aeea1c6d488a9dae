"""Rates of dropout as tensors: made once, and kept only where a later call may use what is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from magna.ops import checks, dropout
from tests.support.measuring import Capturable

CPU = torch.device("cpu")


WATCHED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference mode": torch.inference_mode,
    "fake tensors": FakeTensorMode,
    "a dispatch mode": Capturable,
}


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_FIXED_RATES", {})


def rates() -> Tensor:
    return checks.rates(0.3, 2, CPU)


def test_a_number_becomes_one_tensor() -> None:
    assert torch.equal(rates(), torch.tensor([0.3, 0.3])) and rates() is rates()
    assert rates() is not checks.rates(0.3, 3, CPU) and rates() is not checks.rates(0.4, 2, CPU)


@pytest.mark.parametrize("mode", WATCHED)
def test_what_is_made_while_somebody_looks_on_is_not_kept(mode: str) -> None:
    with WATCHED[mode]():
        fresh = rates()
        assert rates() is not fresh and not checks._FIXED_RATES
    remaining = rates()
    assert remaining is not fresh and not remaining.is_inference() and type(remaining) is Tensor
    with WATCHED[mode]():
        assert rates() is not remaining


def test_nor_under_transforms_and_compilers() -> None:
    def dropped(x: Tensor) -> Tensor:
        return dropout(x, 0.3, seed=1, validate=False).sum()

    torch.func.grad(dropped)(torch.ones(4))
    torch.vmap(dropped, randomness="different")(torch.ones(2, 4))
    torch.compile(dropped, fullgraph=True, backend="eager")(torch.ones(4))
    assert not checks._FIXED_RATES
    dropped(torch.ones(4))
    assert len(checks._FIXED_RATES) == 1


def test_a_capture_uses_what_is_kept_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    remaining = rates()
    monkeypatch.setattr(checks, "values_readable", lambda tensor: False)
    assert rates() is remaining
    assert checks.rates(0.4, 2, CPU) is not checks.rates(0.4, 2, CPU)


def test_no_more_are_kept_than_so_many_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_MOST_RATES", 2)
    first, second = rates(), checks.rates(0.4, 2, CPU)
    assert checks.rates(0.5, 2, CPU) is not checks.rates(0.5, 2, CPU)
    assert rates() is first and checks.rates(0.4, 2, CPU) is second
