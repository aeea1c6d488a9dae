"""The pool hands out writable memory, takes it back when the last tensor is gone, and stays within its limit."""

import gc
import sys
from pathlib import Path

import pytest
import torch

import magna.ops.cpu.memory_pool
from magna.ops.cpu.memory_pool import LARGE, Pool, machine_memory


@pytest.fixture
def pool() -> Pool:
    return Pool(limit=4 * LARGE)


def test_small_tensors_are_torchs_own(pool: Pool) -> None:
    tensor = pool.empty((3, 5), torch.float32)
    assert tensor.shape == (3, 5) and tensor.dtype == torch.float32
    del tensor
    assert pool.free == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_block_comes_back_and_is_used_again(pool: Pool, dtype: torch.dtype) -> None:
    shape = (2, LARGE // dtype.itemsize)
    first = pool.empty(shape, dtype)
    assert first.shape == shape and first.dtype == dtype
    first.fill_(3)
    where = first.data_ptr()
    view = first[1]
    del first
    gc.collect()
    assert pool.free == []  # a view still holds it
    assert bool((view == 3).all())
    del view
    gc.collect()
    assert len(pool.free) == 1
    assert pool.empty(shape, dtype).data_ptr() == where


def test_two_tensors_share_no_memory(pool: Pool) -> None:
    one, two = (pool.empty((LARGE,), torch.float32) for _ in range(2))
    one.fill_(1)
    two.fill_(2)
    assert bool((one == 1).all())


@pytest.mark.parametrize("size", [LARGE, 4_600_000, 6_300_000, 9_000_001])
def test_tensors_of_one_size_share_a_block(size: int) -> None:
    pool = Pool(limit=1 << 30)
    for _ in range(5):
        tensor = pool.empty((size,), torch.uint8)
        del tensor
        gc.collect()
    assert len(pool.free) == 1


def test_much_larger_blocks_do_not_serve(pool: Pool) -> None:
    pool.empty((LARGE,), torch.float32)
    small = pool.empty((LARGE // 4,), torch.float32)
    assert len(pool.free) == 1 and small.numel() == LARGE // 4


def test_the_oldest_blocks_go_above_the_limit(pool: Pool) -> None:
    tensors = [pool.empty((LARGE,), torch.uint8) for _ in range(6)]
    del tensors
    gc.collect()
    assert 0 < sum(map(len, pool.free)) <= pool.limit
    pool.clear()
    assert pool.free == []


def test_no_python_runs_when_a_tensor_is_freed(pool: Pool) -> None:
    """An exception raised there, such as an interrupt, would be lost."""
    tensors = [pool.empty((LARGE,), torch.uint8)]
    called: list[str] = []
    sys.setprofile(lambda frame, event, argument: called.append(event))
    tensors.clear()
    sys.setprofile(None)
    assert "call" not in called and len(pool.free) == 1


def test_a_container_has_less_than_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("free", "narrow", "missing")]
    files[0].write_text("max\n")
    files[1].write_text("1000000\n")
    monkeypatch.setattr(magna.ops.cpu.memory_pool, "_LIMITS", files)
    assert machine_memory.__wrapped__() == 1_000_000
    monkeypatch.setattr(magna.ops.cpu.memory_pool, "_LIMITS", [files[0], files[2]])
    assert machine_memory.__wrapped__() > 1_000_000
