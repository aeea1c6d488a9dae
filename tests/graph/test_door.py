"""`as_graph` notices memory that changed behind torch's counter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from magna.graph import as_graph
from tests.support.graphs import integers

EDGES, NODES = 700, 40


def swap(row: int, one: int, other: int) -> Callable[[np.ndarray], None]:
    def change(buffer: np.ndarray) -> None:
        buffer[row, [one, other]] = buffer[row, [other, one]]

    return change


CHANGES: dict[str, Callable[[np.ndarray], None]] = {
    "refilled": lambda buffer: buffer.__setitem__(..., integers(NODES, 2, EDGES, seed=9).numpy()),
    "one entry": lambda buffer: buffer.__setitem__((1, -1), (buffer[1, -1] + 1) % NODES),
    "turned": lambda buffer: buffer.__setitem__(..., buffer[::-1].copy()),
    "two targets swapped": swap(1, 3, 600),
    "two swapped at one place of two blocks": swap(0, 3, 3 + 512),
    "shuffled": lambda buffer: buffer.__setitem__(..., buffer[:, np.random.default_rng(0).permutation(EDGES)]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_change_of_the_buffer_is_noticed(change: str, dtype: torch.dtype) -> None:
    buffer = integers(NODES, 2, EDGES, seed=1).to(dtype).numpy()
    buffer[:, 3], buffer[:, 600], buffer[:, 3 + 512] = 1, 2, 5
    edges = torch.from_numpy(buffer)
    first = as_graph(edges, NODES, None, None)
    assert as_graph(edges, NODES, None, None) is first
    version = edges._version
    CHANGES[change](buffer)
    assert edges._version == version
    second = as_graph(edges, NODES, None, None)
    assert second is not first and torch.equal(second.edge_index, edges.long())
    assert torch.equal(second.col, edges[0, second.by_target.order.long()].int())


def test_types_and_data_are_watched_too() -> None:
    edges, kinds = integers(NODES, 2, EDGES, seed=1), integers(3, EDGES, seed=2)
    first = as_graph(edges, NODES, kinds, 3)
    kinds.numpy()[5] = (kinds[5] + 1) % 3
    second = as_graph(edges, NODES, kinds, 3)
    assert second is not first and torch.equal(second.with_types(kinds, 3).by_relation.ptr, second.by_relation.ptr)  # type: ignore[union-attr]
    edges.data.copy_(edges.flip(1))
    assert as_graph(edges, NODES, kinds, 3) is not second
