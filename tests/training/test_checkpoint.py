"""The checkpoint: complete at any moment, the same bits when it is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from magna.errors import DataError
from magna.training.checkpoint import load_checkpoint, save_checkpoint


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    assert load_checkpoint(file) is None
    groups = {"model": {"a.x": torch.randn(3, 2), "step": torch.tensor(3.0)}, "random": {"cpu": torch.get_rng_state()}}
    save_checkpoint(file, groups, {"epoch": 3, "bests": [{"accuracy": 0.1 + 0.2}]})
    stored = load_checkpoint(file)
    assert stored is not None
    loaded, progress = stored
    assert progress == {"epoch": 3, "bests": [{"accuracy": 0.1 + 0.2}]}
    assert {name: values.keys() for name, values in loaded.items()} == {n: v.keys() for n, v in groups.items()}
    assert all(torch.equal(loaded[group][name], x) for group, values in groups.items() for name, x in values.items())


@pytest.mark.parametrize("part", [0, 4, 50, -1])
def test_a_damaged_checkpoint_says_what_to_do(tmp_path: Path, part: int) -> None:
    file = tmp_path / "state.safetensors"
    save_checkpoint(file, {"model": {"x": torch.zeros(100)}}, {"epoch": 1})
    file.write_bytes(file.read_bytes()[:part])
    with pytest.raises(DataError, match=r"is damaged.*delete it: resume=True"):
        load_checkpoint(file)
