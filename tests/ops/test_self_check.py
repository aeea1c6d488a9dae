"""The comparison of all kernels with the definition, which `magna doctor` prints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from magna.ops import self_check
from magna.ops.backend.registry import KERNELS, MODULES, kernels, why_not
from magna.ops.self_check import check_kernels

pytestmark = pytest.mark.skipif(why_not("cpu", torch.device("cpu")) is not None, reason="no compiled kernels")


@pytest.fixture(autouse=True)
def without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.delitem(MODULES, "triton")
        monkeypatch.setattr(self_check, "why_not", lambda name, device: "slow" if name == "triton" else None)


def test_every_kernel_is_compared_forward_and_backward() -> None:
    checks = list(check_kernels())
    assert all(check.agrees and check.error is not None and check.error < 1e-5 for check in checks)
    names = {(check.kernel, check.direction) for check in checks if check.device == "cpu"}
    assert names >= {
        (kernel, direction)
        for kernel in ("edge scores with relations", "edge softmax", "diffusion", "loss over all entities")
        for direction in ("forward", "backward")
    }
    assert ("ranking", "forward") in names and ("ranking", "backward") not in names


def test_every_function_of_a_backend_is_called(calls: Any) -> None:
    assert all(check.agrees for check in check_kernels())
    assert set(KERNELS) - {name for _, name in calls} == set()


@pytest.mark.parametrize("wrong", [1.01, float("nan")])
def test_a_wrong_kernel_is_seen(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels("cpu").edge_softmax

    def scaled(scores: Tensor, graph: Any) -> Tensor:
        return right(scores, graph) * wrong

    monkeypatch.setattr(kernels("cpu"), "edge_softmax", scaled)
    assert ("edge softmax", "forward") in {
        (check.kernel, check.direction) for check in check_kernels() if not check.agrees
    }


def test_a_kernel_that_raises_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels("cpu"), "dropout", None)
    (fault,) = (check for check in check_kernels() if not check.agrees)
    assert fault.kernel == "dropout" and fault.error is None and "TypeError" in fault.fault
