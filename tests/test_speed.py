"""The comparison of speeds with the old commit."""

from __future__ import annotations

import pytest
from tools.speed import LIMIT, compared


def test_the_interval_holds_the_median_and_widens_with_noise() -> None:
    steady = compared([1.0 + 0.001 * (i % 5) for i in range(40)], [1.0] * 40)
    noisy = compared([1.0 + 0.2 * (i % 5) for i in range(40)], [1.0] * 40)
    assert steady.low <= steady.median <= steady.high < LIMIT
    assert noisy.high - noisy.low > steady.high - steady.low


def test_one_slow_pair_of_many_is_no_slowdown() -> None:
    assert compared([9.0] + [1.0] * 39, [1.0] * 40).high == 1.0


def test_a_slower_program_is_seen() -> None:
    ratio = compared([1.05 + 0.001 * (i % 7) for i in range(30)], [1.0] * 30)
    assert ratio.low > LIMIT


def test_pairs_are_compared_one_by_one() -> None:
    with pytest.raises(ValueError, match="shorter"):
        compared([1.0, 2.0], [1.0])
