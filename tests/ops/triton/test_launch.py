"""Bound kernels: which variables share a compiled kernel, and which do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from magna.ops.triton import launch as triton_launch
from magna.ops.triton.launch import Bound, bound


class Compiled:
    """A stand-in for a compiled kernel that remembers its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.launches.append((grid, *args))


class Function:
    """A kernel (x, y, size, A, B) with the constants A and B that remembers its compilations."""

    def __init__(self) -> None:
        names = ["x", "y", "size", "A", "B"]
        self.params = [SimpleNamespace(name=name, is_constexpr=name.isupper()) for name in names]
        self.compiled: list[Compiled] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*variables: Any, **constants: Any) -> Compiled:
            assert constants == {"B": 2, "A": 1, "num_warps": 4}
            self.compiled.append(Compiled())
            return self.compiled[-1]

        return run


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Function:
    monkeypatch.setattr(triton_launch, "_DIRECT", True)
    return Function()


def test_a_second_launch_takes_the_compiled_kernel(function: Function) -> None:
    kernel, x = Bound(function, B=2, A=1, num_warps=4), torch.zeros(64)
    kernel[(3,)](x, None, 5)
    assert len(function.compiled) == 1 and not function.compiled[0].launches
    other = torch.ones(64)
    kernel[(7, 2)](other, None, 6)
    assert len(function.compiled) == 1
    # All variables, then the constants in the order of the signature; always three sizes of a grid.
    assert function.compiled[0].launches == [((7, 2, 1), other, None, 6, 1, 2)]


def test_other_kinds_of_variables_compile_anew(function: Function) -> None:
    kernel = Bound(function, B=2, A=1, num_warps=4)
    for other in ((torch.zeros(64), None, 5), (torch.zeros(64), torch.zeros(64), 5)):
        for _ in range(2):
            kernel[(1,)](*other)
    assert len(function.compiled) == 2 and all(len(compiled.launches) == 1 for compiled in function.compiled)


def test_keys_differ_where_those_of_triton_do() -> None:
    """A key that misses a part of Triton's would launch a kernel that was compiled for other variables.

    The test catches, for one, a key without `variable == 1`.
    """
    compiler, jit = pytest.importorskip("triton.backends.compiler"), pytest.importorskip("triton.runtime.jit")
    if not hasattr(jit, "native_specialize_impl"):
        pytest.skip("this Triton has its key elsewhere")
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
    tensors = [torch.zeros(64, dtype=dtype)[start:] for dtype in dtypes for start in (0, 1, 2, 4, 8, 16)]
    exponents = (0, 1, 2, 3, 4, 5, 8, 16, 31, 32, 62)
    numbers = [sign * 2**power + offset for power in exponents for offset in (-1, 0, 1) for sign in (1, -1)]
    variables = [None, *tensors, *numbers, -(2**31), 2**31 - 1]
    keys: dict[Any, Any] = {}
    for variable in variables:
        key = jit.native_specialize_impl(compiler.BaseBackend, variable, False, True, True)
        assert keys.setdefault(Bound.kinds((variable,)), key) == key, variable


def test_the_interpreter_gets_kernels_as_they_are(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_launch, "_DIRECT", False)
    kernel = Bound(function, B=2, A=1, num_warps=4)
    for _ in range(2):
        kernel[(1,)](torch.zeros(64), None, 5)
    assert len(function.compiled) == 2


def test_the_same_constants_share_a_compiled_kernel(function: Function) -> None:
    for _ in range(2):
        bound(function, B=2, A=1, num_warps=4)[(1,)](torch.zeros(64), None, 5)
    assert len(function.compiled) == 1 and len(function.compiled[0].launches) == 1
    assert bound(function, B=3, A=1, num_warps=4) is not bound(function, B=2, A=1, num_warps=4)
    assert bound(Function(), B=2, A=1, num_warps=4) is not bound(function, B=2, A=1, num_warps=4)
