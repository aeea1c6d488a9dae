"""Chance as an argument: a counter-based generator that every backend computes bit for bit alike.

A draw is a pure function of (seed, stream, index): no state, no order, nothing to store for the backward pass. The
same few 32-bit operations are written again in C++ (`cpu/kernels/draw.h`) and in Triton (`triton/draw.py`); a test
holds the three together.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF

# Streams: hop k draws attention dropout from stream 2k and feature dropout from stream 2k + 1.
EDGE_STREAM = 0x40000000
DENSE_STREAM = 0x40000001


def attention_stream(hop: int) -> int:
    return 2 * hop


def feature_stream(hop: int) -> int:
    return 2 * hop + 1


def _mix(h: Tensor) -> Tensor:
    # The "lowbias32" finaliser; int64 arithmetic wraps, so the low 32 bits of the products are exact.
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _MASK
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & _MASK
    return h ^ (h >> 16)


def bits(seed: Tensor, stream: int, index: Tensor) -> Tensor:
    """32 random bits for each index (int64, not negative), in one of the independent streams of a seed (int64 [1]).

    >>> bits(torch.tensor([7]), 0, torch.arange(3)).tolist()
    [2603854612, 1540904585, 1412412744]
    """
    key0 = _mix(((seed & _MASK) + 0x9E3779B9 * (stream + 1)) & _MASK)
    key1 = _mix((((seed >> 32) & _MASK) + (key0 ^ 0x5BF03635)) & _MASK)
    h = _mix((index & _MASK) ^ key0)
    return _mix(h ^ key1 ^ (((index >> 32) * 0x85EBCA6B) & _MASK))


def thresholds(rate: Tensor) -> Tensor:
    """Limits, int64, below which the bits of a dropped entry are. `rate` is float32, so every backend agrees."""
    return (rate.double() * 2.0**32).long()


def stays(seed: Tensor, stream: int, index: Tensor, rate: Tensor) -> Tensor:
    """Mask of the entries that stay, each with probability 1 - rate."""
    return bits(seed, stream, index) >= thresholds(rate)


def dropout_factor(seed: Tensor, stream: int, index: Tensor, rate: Tensor, dtype: torch.dtype) -> Tensor:
    """Factors of inverted dropout: 0 for dropped entries, 1 / (1 - rate) for the others."""
    return stays(seed, stream, index, rate).to(dtype) / (1 - rate.to(dtype))
