"""Bytes that a pass must move, and the bandwidth of memory."""

from __future__ import annotations

import pytest
import torch

from magna.bench import floor
from magna.bench.floor import Floor, floor_ms, traffic


def test_traffic_counted_by_hand() -> None:
    # 3 nodes, 5 edges, 2 heads of width 4, 2 hops, float32: a row of all nodes is 96 bytes, a value per edge 40.
    forward = 2 * (96 + 96) + 2 * (40 + 20)
    backward = (96 + 96 + 96) + (96 + 96 + 96) + (40 + 40 + 20) + (40 + 80 + 20)
    softmax = 5 * 40
    by_edge, by_node = 4 * 5 * 32, 4 * 96
    moved = traffic(num_nodes=3, num_edges=5, heads=2, width=4, K=2, element_bytes=4)
    assert moved == Floor(forward + backward + softmax + by_edge, forward + backward + softmax + by_node)


def test_half_precision_halves_the_rows_and_keeps_the_attention() -> None:
    single, half = (traffic(10, 40, 2, 8, 3, size) for size in (4, 2))
    rows = 10 * 2 * 8 * (6 * 3 - 2) + 2 * 3 * 40 * 2 * 8
    assert single.gathers - half.gathers == 2 * rows


def test_milliseconds() -> None:
    assert floor_ms(Floor(2e9, 1e9), bandwidth=1e12) == pytest.approx(Floor(2.0, 1.0))


def test_bandwidth_is_that_of_the_better_of_copy_and_triad(monkeypatch: pytest.MonkeyPatch) -> None:
    # A copy moves two arrays of 2²⁷ bytes, a triad three.
    for copy_ms, triad_ms, expected in ((1.0, 2.0, 2 * 2**27 * 1e3), (2.0, 1.0, 3 * 2**27 * 1e3)):
        times = iter([copy_ms, triad_ms])
        monkeypatch.setattr(floor, "_fastest_ms", lambda call, *_, times=times: (call(), next(times))[1])
        assert floor.bandwidth(torch.device("cpu")) == expected
