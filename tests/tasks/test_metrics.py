from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from magna.tasks.metrics import RANK_METRICS, Ranks, correct, difference, holm, paired_test, spread


def test_the_largest_score_counts_and_nan_loses() -> None:
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [math.nan, 0.0], [1.0, 0.0]])
    assert correct(scores, torch.tensor([1, 0, 0, 0, 0])).tolist() == [True, True, False, False, True]


def test_spread_is_mean_and_sample_deviation() -> None:
    values = spread([1.0, 2.0, 3.0, 6.0])
    assert (values.mean, values.size) == (3.0, 4) and values.std == pytest.approx(np.std([1, 2, 3, 6], ddof=1))
    assert values.standard_error == pytest.approx(stats.sem([1, 2, 3, 6]))
    assert spread([5.0]) == (5.0, 0.0, 1)
    with pytest.raises(ValueError, match="values is"):
        spread([])


def test_the_error_of_a_difference_is_welchs() -> None:
    one, other = [80.1, 81.0, 79.5], [78.0, 79.9, 78.2, 79.0]
    by, error = difference(spread(one), spread(other))
    welch = stats.ttest_ind(one, other, equal_var=False)
    assert by / error == pytest.approx(welch.statistic)


def test_paired_tests_are_scipys() -> None:
    ours, theirs = [0.83, 0.82, 0.85, 0.84, 0.80], [0.82, 0.80, 0.85, 0.81, 0.81]
    result = paired_test(ours, theirs)
    assert result.difference.mean == pytest.approx(0.01)
    assert result.t_test == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert result.wilcoxon == pytest.approx(stats.wilcoxon(np.subtract(ours, theirs)).pvalue)


def test_differences_that_agree_up_to_rounding_are_ties() -> None:
    ours, theirs = [0.82, 0.89, 0.81, 0.84, 0.81, 0.87], [0.87, 0.87, 0.90, 0.86, 0.83, 0.81]
    in_hundredths = [-5, 2, -9, -2, -2, 6]
    assert paired_test(ours, theirs).wilcoxon == pytest.approx(stats.wilcoxon(in_hundredths).pvalue)


def test_equal_pairs_have_p_values_of_1() -> None:
    assert paired_test([0.5, 0.6], [0.5, 0.6])[1:] == (1.0, 1.0)
    with pytest.raises(ValueError, match="as many values as ours, 3"):
        paired_test([1, 2, 3], [1, 2])


def test_ranks_by_each_tie_rule() -> None:
    ranks = Ranks(better=torch.tensor([0, 0, 9, 2]), equal=torch.tensor([0, 4, 1, 0]))
    assert ranks.ranks("optimistic").tolist() == [1, 1, 10, 3]
    assert ranks.ranks("realistic").tolist() == [1, 3, 10.5, 3]
    assert ranks.ranks("pessimistic").tolist() == [1, 5, 11, 3]
    metrics = ranks.metrics()
    assert tuple(metrics) == RANK_METRICS
    assert metrics["mr"] == 17.5 / 4
    assert metrics["mrr"] == pytest.approx((1 + 1 / 3 + 1 / 10.5 + 1 / 3) / 4)
    # A rank of 10.5 is no hit at 10.
    assert (metrics["hits@1"], metrics["hits@3"], metrics["hits@10"]) == (0.25, 0.75, 0.75)
    assert ranks.metrics("optimistic")["hits@10"] == 1.0
    with pytest.raises(ValueError, match="tie is 'random'"):
        ranks.ranks("random")  # type: ignore[arg-type]


def test_ranks_of_a_side_and_of_each_relation() -> None:
    ranks = Ranks(better=torch.tensor([0, 1, 2, 3]), equal=torch.zeros(4, dtype=torch.int64))
    assert ranks.select(slice(2, None)).ranks().tolist() == [3, 4]
    groups = ranks.by(torch.tensor([7, 0, 7, 0]))
    assert {group: part.ranks().tolist() for group, part in groups.items()} == {0: [2, 4], 7: [1, 3]}
    assert sum(map(len, groups.values())) == len(ranks)
    assert all(math.isnan(value) for value in ranks.select(slice(0)).metrics().values())


def _rejected(p_values: list[float], level: float) -> list[bool]:
    """Holm's procedure in its own words: from the smallest on, until the first that is above its share of the level."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] > level / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def test_holm_adjusts_so_that_a_level_rejects_what_the_procedure_does() -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    for size in (1, 2, 5, 12):
        p_values = (draw.uniform(size=size) ** 4).tolist()
        adjusted = holm(p_values)
        for level in (0.001, 0.01, 0.05, 0.2, 0.7):
            assert [value <= level for value in adjusted] == _rejected(p_values, level)
    assert holm([0.03, 0.02, 0.025]) == pytest.approx([0.06] * 3), "no value is below that of a smaller p"
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
    with pytest.raises(ValueError, match=r"p_values is 1\.2; allowed: 0 to 1"):
        holm([0.1, 1.2])
