"""Fixtures: a fixed seed for every test, each backend where it can run, and counts of kernel calls."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

# Triton's interpreter runs the kernels on the CPU; the variable must be set before triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from magna.ops.backend.registry import KERNELS, MODULES, kernels, why_not
from tests.support.running import Program, device_of, interpreted


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    torch.manual_seed(0)
    random.seed(0)


def _or_skip(backend: str) -> str:
    reason = why_not(backend, device_of(backend))
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    return backend


FUSED = [pytest.param(name, marks=pytest.mark.slow) if interpreted(name) else name for name in MODULES]


@pytest.fixture(params=["reference", *FUSED])
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend."""
    return _or_skip(request.param)


@pytest.fixture(params=FUSED)
def fused(request: pytest.FixtureRequest) -> str:
    """Every backend but the reference."""
    return _or_skip(request.param)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Count of calls of each kernel of each backend, as calls["cpu", "hop"]."""
    counter: Counter[tuple[str, str]] = Counter()

    def counted(backend: str, name: str) -> Callable[..., Any]:
        kernel = getattr(kernels(backend), name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counter[backend, name] += 1
            return kernel(*args, **kwargs)

        return call

    for backend in MODULES:
        if why_not(backend, device_of(backend)) is None:
            for name in KERNELS:
                monkeypatch.setattr(kernels(backend), name, counted(backend, name))
    return counter


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """The program: it runs with some arguments, must exit with `status`, and returns its stdout and stderr."""

    def run(*arguments: object, status: int = 0) -> tuple[str, str]:
        from magna import cli  # most tests need no command line

        monkeypatch.setattr(sys, "argv", ["magna", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == status, err
        return out, err

    return run


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fill fresh memory with NaN, so that values a kernel forgets to write show."""
    deterministic, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    memory: Any = torch.utils.deterministic  # a module that takes its switch as a property
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    assert torch.empty(8).isnan().all()
    yield
    memory.fill_uninitialized_memory = filled
    torch.use_deterministic_algorithms(deterministic, warn_only=warns)
