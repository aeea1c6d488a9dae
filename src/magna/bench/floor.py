"""Least time of a pass that only moves its data: bytes of the fused algorithm over the measured bandwidth."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from magna.bench.measure import Call, elapsed_ms


class Floor(NamedTuple):
    """Two readings of the same traffic: without any cache, and with one that never misses inside a hop."""

    gathers: float  # every gathered row comes from memory
    once: float  # each row comes from memory once a hop


def traffic(num_nodes: int, num_edges: int, heads: int, width: int, K: int, element_bytes: int) -> Floor:
    """Bytes that softmax and K hops, forward and backward, have to move.

    Forward, a hop gathers the states of the sources, reads x and writes the new state. Backward, a hop gathers the
    gradients of the targets, once for both of its results, reads the saved state, writes the next gradient (not the
    last hop) and adds to the gradient of x (the first hop only writes it). Attention is read by every hop of both
    passes, its gradient is summed over the hops; the softmax reads and writes five values per edge. An index takes 4
    bytes, and a value per edge 4, or 8 in float64.

    >>> traffic(num_nodes=1, num_edges=1, heads=1, width=1, K=1, element_bytes=4)
    Floor(gathers=64.0, once=64.0)
    """
    rows = num_nodes * heads * width * element_bytes
    edge_values = num_edges * heads * max(4, element_bytes)
    indices = num_edges * 4
    moved = (2 * K + 4 * K - 2) * rows
    moved += (K + 3 * K - 1 + 5) * edge_values + 2 * K * indices
    gathered = 2 * K * num_edges * heads * width * element_bytes
    return Floor(float(moved + gathered), float(moved + 2 * K * rows))


def floor_ms(bytes_moved: Floor, bandwidth: float) -> Floor:
    """The traffic as milliseconds at a bandwidth in bytes per second."""
    return Floor(*(1e3 * part / bandwidth for part in bytes_moved))


def bandwidth(device: torch.device, seconds: float = 0.5) -> float:
    """Bytes per second, read and write counted, of the best of copies (b = a) and triads (c = a + 2 b)."""
    # Far larger than the caches, so that nothing stays in them.
    numel = 2**28 if device.type == "cuda" else 2**25
    a, b, c = (torch.ones(numel, device=device) for _ in range(3))
    copy = _fastest_ms(lambda: b.copy_(a), device, seconds / 2)
    triad = _fastest_ms(lambda: torch.add(a, b, alpha=2, out=c), device, seconds / 2)
    return 1e3 * a.nbytes * max(2 / copy, 3 / triad)


def _fastest_ms(call: Call, device: torch.device, seconds: float) -> float:
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        best = min(best, elapsed_ms(call, device))
    return best
