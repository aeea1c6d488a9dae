"""Random splits: the sizes of the standard one, the same on every machine, and no node twice."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.data import needs, node_graph, write_texts

from magna.config.tables import NodeDataOptions
from magna.data import NodeData, load_node_data
from magna.data.splits import with_drawn_split, with_random_split
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
        ({"valid_share": 0.3}, "data.valid_share is 0.3; allowed: none, because digits has a split"),
        ({"valid_share": 0.5}, "valid_share is 0.5; allowed: above 0 and below 0.5"),
        ({"features": "stand-in"}, "allowed: published for digits"),
    ],
)
def test_settings_that_a_data_set_cannot_follow_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_node_data(NodeDataOptions(name="digits", **settings))


def sizes(data: NodeData) -> tuple[int, int, int]:
    nodes = torch.cat([data.train, data.valid, data.test])
    assert torch.unique(nodes).numel() == nodes.numel() and data.labelled[nodes].all()
    return len(data.train), len(data.valid), len(data.test)


def labelled(*counts: int) -> NodeData:
    """A graph with so many nodes of each class, and as many without a label."""
    y = [label for label, count in enumerate(counts) for _ in range(count)]
    return node_graph([], y + [-1] * len(y))


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((150, 150), None, (180, 60, 60)),
        ((149, 149), None, (40, 60, 198)),  # fewer than 150 a class on average
        ((250, 48), None, (40, 44, 214)),
        ((33, 33), None, (40, 13, 13)),
        ((10, 10), None, (12, 4, 4)),
        ((149, 149), 0.1, (240, 29, 29)),
        ((1, 9), None, (7, 1, 2)),
        ((1, 1), None, (0, 0, 0)),
    ],
)
def test_a_drawn_split_by_the_number_of_labels(
    counts: tuple[int, ...], share: float | None, expected: tuple[int, ...]
) -> None:
    data = with_drawn_split(labelled(*counts), 3, share)
    assert sizes(data) == expected
    per_class = torch.bincount(data.y[data.train], minlength=2)
    if expected == (40, 60, 198):
        assert per_class.tolist() == [20, 20] and torch.bincount(data.y[data.valid]).tolist() == [30, 30]
        assert data.notes[0].startswith("no split given and fewer than 150 labels a class: up to 20 of each class")
    if share is not None:
        assert data.notes == ("no split given: 80/10/10 drawn at random, seed 3",)
    assert not expected[0] or per_class.min() > 0


def test_several_labels_and_numbers_are_split_at_random() -> None:
    nan, y = float("nan"), torch.arange(100.0)
    y[50:] = nan
    for target, values in (("number", y), ("labels", torch.stack([y, y * nan], 1))):
        data: NodeData = replace(labelled(50), target=target, y=values, num_classes=1)  # type: ignore[arg-type]
        drawn = with_drawn_split(data, 0)
        assert sizes(drawn) == (30, 10, 10) and sizes(with_random_split(drawn, 1)) == (30, 10, 10)
        assert not torch.equal(with_random_split(drawn, 1).train, drawn.train)


def test_validation_is_drawn_from_training_where_the_split_has_none(tmp_path: Path) -> None:
    words = ["train"] * 20 + ["test"] * 6
    nodes = "id,x,label,split\n" + "".join(f"n{row},{row},{'ab'[row % 2]},{word}\n" for row, word in enumerate(words))
    name = str(write_texts(tmp_path, ".csv", nodes=nodes, edges="source,target\n"))
    data = load_node_data(name)
    assert sizes(data) == (16, 4, 6) and torch.bincount(data.y[data.valid]).tolist() == [2, 2]
    assert data.test.tolist() == [*range(20, 26)] and max(data.valid.tolist()) < 20
    assert data.notes == ("no validation node given: 4 of the training nodes drawn at random, seed 0",)
    other = load_node_data(NodeDataOptions(name=name, split_seed=1, valid_share=0.4))
    assert sizes(other) == (12, 8, 6) and not set(other.valid.tolist()) <= set(data.valid.tolist())
