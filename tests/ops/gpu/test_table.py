"""Rows of tables: the Triton ops against torch's own, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.ops.gpu.test_linear import DEVICE, pytestmark, tensors, with_grads
from tests.support.comparing import same, same_bits, within_budget
from torch import Tensor

from magna.ops import lookup, lookups
from magna.ops.gpu.table import _TableAndRows, lookup_backward_op, lookup_op

__all__ = ["pytestmark"]

table_and_rows: Callable[..., tuple[Tensor, Tensor]] = _TableAndRows.apply


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_lookup(dtype: torch.dtype) -> None:
    table, index = tensors((7, 3), dtype=dtype)[0], torch.tensor([3, 0, 3, 3, 6, 0], device=DEVICE)
    expected = with_grads(lambda table: table[index], table)
    for function in (lookup, lookup_op):
        actual = with_grads(lambda table: function(table, index), table)  # noqa: B023
        assert torch.equal(actual["out 0"], expected["out 0"])
        same(actual, expected)
    assert with_grads(lambda table: lookup_op(table, index[:0]), table)["gradient 0"].abs().sum() == 0


def _positions(kind: str, rows: int) -> Tensor:
    number = torch.Generator().manual_seed(3)
    chosen = {
        "none": torch.empty(0, dtype=torch.long),
        "one": torch.tensor([rows - 1]),
        "each once, out of order": torch.randperm(rows, generator=number),
        "a few often": torch.randint(3, (70,), generator=number) * (rows // 3),
        "hubs among others": torch.cat([torch.randint(rows, (40,), generator=number), torch.full((300,), 5)]),
        "as many as a tile": torch.tensor([4] * 4 + [1] * 36 + [2] * 37 + [0] * 5),
    }[kind]
    return chosen[torch.randperm(len(chosen), generator=number)].to(DEVICE)


POSITIONS = ["none", "one", "each once, out of order", "a few often", "hubs among others", "as many as a tile"]


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "sorted"])
@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("width", [1, 5, 300])
def test_the_gradient_of_rows(kind: str, width: int, counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from magna.ops.triton import table as triton_table

    monkeypatch.setattr("magna.ops.gpu.table._FEW_ROWS", 0)
    if not counted:
        monkeypatch.setattr(triton_table, "_COUNTED", 0)
    index = _positions(kind, 31)
    table, grad, whole = tensors((31, width), (len(index), width), (31, width))
    expected = torch.zeros_like(table).index_put_((index,), grad, accumulate=True)
    torch.testing.assert_close(lookup_backward_op(grad, index, None, 31), expected)
    remaining = whole.clone()
    torch.testing.assert_close(lookup_backward_op(grad, index, whole, 31), expected + whole)
    assert torch.equal(whole, remaining)  # autograd may share it


@pytest.mark.parametrize("kind", ["none", "a few often"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_of_rows_not_looked_up(dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magna.ops.gpu.table._FEW_ROWS", 0)
    index = _positions(kind, 31)
    grad, whole = tensors((len(index), 5), (5, 31), dtype=dtype)
    untouched = torch.ones(31, dtype=torch.bool, device=DEVICE).index_fill_(0, index, False)
    for factors in (whole.t(), whole.t().contiguous(), whole[:1, :5].expand(31, 5)):
        actual = lookup_backward_op(grad, index, factors, 31)
        assert actual.is_contiguous()
        assert actual.data_ptr() != factors.data_ptr()
        assert torch.equal(actual[untouched], factors[untouched])
        assert torch.equal(actual, lookup_backward_op(grad, index, factors.contiguous(), 31))
    assert not lookup_backward_op(grad, index, None, 31)[untouched].any()


@pytest.mark.parametrize("few", [True, False], ids=["few rows", "many rows"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_table_and_rows_of_it(dtype: torch.dtype, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not few:
        monkeypatch.setattr("magna.ops.gpu.table._FEW_ROWS", 0)
    index = _positions("hubs among others", 31)
    factors = tensors((31, 7))

    def ours(table: Tensor) -> tuple[Tensor, ...]:
        table, rows = table_and_rows(table, index)
        return table * 2, rows

    def theirs(table: Tensor) -> tuple[Tensor, ...]:
        return table * 2, table[index]

    truth = with_grads(theirs, *factors)
    rounded = [one.to(dtype) for one in factors]
    actual = with_grads(ours, *rounded)
    if dtype == torch.float64:
        same(actual, truth)
    else:
        within_budget(actual, with_grads(theirs, *rounded), with_grads(theirs, *(one.double() for one in rounded)))
    same_bits(actual, with_grads(ours, *rounded))


@pytest.mark.parametrize("used", [0, 1], ids=["the table", "the rows"])
def test_a_table_and_rows_of_which_one_is_used(used: int) -> None:
    index = torch.tensor([2, 0, 2], device=DEVICE)
    (table,) = tensors((5, 3))
    actual = with_grads(lambda table: table_and_rows(table, index)[used], table)
    same(actual, with_grads(lambda table: (table * 1, table[index])[used], table))


def test_the_gradient_of_a_table_may_be_shared() -> None:
    """A sum hands one gradient to both sides; adding that of the rows must not change the other side's."""
    index = torch.tensor([2, 0, 2], device=DEVICE)
    factors = tensors((5, 3), (5, 3))

    def ours(table: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        table, rows = table_and_rows(table, index)
        return table + other, rows

    same(with_grads(ours, *factors), with_grads(lambda table, other: (table + other, table[index]), *factors))


def test_several_lookups() -> None:
    first, second = torch.tensor([2, 0, 2], device=DEVICE), torch.tensor([4], device=DEVICE)
    factors = tensors((5, 3))
    actual = with_grads(lambda table: lookups(table * 1, first, second), *factors)
    same(actual, with_grads(lambda table: (table * 1, table[first], table[second]), *factors))
