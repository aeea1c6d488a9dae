"""Random splits: the sizes of the standard one, the same on every machine, and no node twice."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from tests.support.data import needs

from magna.config.tables import NodeDataOptions
from magna.data import NodeData, load_node_data
from magna.data.splits import with_random_split
from magna.paper.experiments import NUM_SPLITS


def fingerprint(data: NodeData) -> str:
    parts = b"".join(part.numpy().astype("<i8").tobytes() for part in (data.train, data.valid, data.test))
    return hashlib.sha256(parts).hexdigest()[:16]


@pytest.mark.slow
def test_digits_split_is_the_same_on_every_machine() -> None:
    public = load_node_data("digits")
    splits = [load_node_data(NodeDataOptions(split="random", split_seed=seed)) for seed in range(NUM_SPLITS)]
    assert len({fingerprint(data) for data in [public, *splits]}) == 11
    assert fingerprint(splits[0]) == "f80b681768dcd238"
    for data in splits:
        assert (len(data.train), len(data.valid), len(data.test)) == (100, 500, 1_197)
        assert torch.bincount(data.y[data.train]).tolist() == [10] * 10
        assert torch.unique(torch.cat([data.train, data.valid, data.test])).numel() == 1_797
    assert splits[3].notes == ("random split, seed 3",)
    # A split of a split does not depend on the first.
    assert fingerprint(with_random_split(splits[5], 2)) == fingerprint(splits[2])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cora", "0aa3310605edcf6f"), ("citeseer", "cbf6b899e2632988"), ("pubmed", "265cffd2d6a66be1")],
)
def test_planetoid_splits_have_the_standard_ratio(name: str, expected: str) -> None:
    needs(name)
    public = load_node_data(name)
    splits = [with_random_split(public, seed) for seed in range(NUM_SPLITS)]
    for data in splits:
        assert torch.bincount(data.y[data.train]).tolist() == [20] * data.num_classes
        assert (len(data.valid), len(data.test)) == (500, 1_000)
        together = torch.cat([data.train, data.valid, data.test])
        assert torch.unique(together).numel() == together.numel()
        assert (data.y[together] >= 0).all()
    # All ten, so that a result of any of them can be repeated.
    assert hashlib.sha256("".join(map(fingerprint, splits)).encode()).hexdigest()[:16] == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"split_seed": -1}, "split_seed is -1"),
        ({"standardise_features": True, "normalise_features": True}, "false with standardise_features"),
        ({"undirected": False}, "edges have no direction"),
        ({"split_seed": 3}, "split_seed is 3; allowed: 0, because digits has a split; try data.split"),
        ({"features": "stand-in"}, "allowed: published for digits"),
    ],
)
def test_settings_that_a_data_set_cannot_follow_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_node_data(NodeDataOptions(name="digits", **settings))
