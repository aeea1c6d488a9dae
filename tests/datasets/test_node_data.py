"""Digits, ogbn-arxiv, and what all node data share."""

from __future__ import annotations

import hashlib

import pytest
import torch

from magna.datasets import NodeData, files_of, load_arxiv, load_digits, load_node_data, present


@pytest.fixture(scope="module")
def digits() -> NodeData:
    return load_digits()


def test_digits_counts(digits: NodeData) -> None:
    assert digits.x is not None
    assert digits.x.shape == (1_797, 64)
    assert digits.edge_index.shape == (2, 15_044)
    assert (len(digits.train), len(digits.valid), len(digits.test)) == (100, 500, 1_197)
    assert torch.bincount(digits.y[digits.train]).tolist() == [10] * 10
    assert torch.cat([digits.train, digits.valid, digits.test]).unique().numel() == 1_797


def test_digits_are_the_same_on_every_machine(digits: NodeData) -> None:
    parts = (digits.edge_index, digits.train, digits.valid, digits.test)
    together = b"".join(part.numpy().astype("<i8").tobytes() for part in parts)
    assert hashlib.sha256(together).hexdigest() == "217bc35720cb91f5ccb865034fb7d715571829ea998c3d9ce55214a3b99a9f1b"


def test_self_loops_are_added_once(digits: NodeData) -> None:
    looped = digits.with_self_loops()
    assert looped.edge_index.size(1) == 15_044 + 1_797
    source, target = looped.edge_index
    assert torch.equal(source[source == target], torch.arange(1_797))
    assert torch.equal(target, target.sort().values)
    assert torch.equal(looped.with_self_loops().edge_index, looped.edge_index)


def test_rows_are_normalised_and_zeros_stay() -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    data = NodeData(
        "tiny",
        torch.zeros(2, 0, dtype=torch.long),
        torch.zeros(2, dtype=torch.long),
        1,
        nothing,
        nothing,
        nothing,
        torch.tensor([[1.0, 3.0], [0.0, 0.0]]),
    )
    normalised = data.with_row_normalised_features().x
    assert normalised is not None
    assert normalised.tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: digits, cora"):
        load_node_data("karate")


def test_arxiv_counts() -> None:
    if any(present(path) is None for path in files_of("ogbn-arxiv")):
        pytest.skip("ogbn-arxiv is not in the data folder (MAGNA_DATA_DIR)")
    data = load_arxiv()
    assert (data.num_nodes, data.num_classes, data.edge_index.size(1)) == (169_343, 40, 2_315_598)
    assert (len(data.train), len(data.valid), len(data.test)) == (90_941, 29_799, 48_603)
    assert data.x is None
    source, target = load_arxiv(directed=True).edge_index
    assert source.numel() == 1_166_243
    assert (data.y[source] == data.y[target]).float().mean() == pytest.approx(0.655, abs=0.001)
