"""Filtered ranks: against the definition, against a count by hand, against PyKEEN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from magna.data.knowledge_graph import KnowledgeGraph
from magna.data.triples import Triples
from magna.ops import RankCounts, rank_scores, rank_targets, reference
from magna.ops.answers import Answers
from magna.tasks.metrics import Ranks, TieRule
from tests.support.graphs import integers
from tests.support.measuring import peak_bytes

pytestmark = pytest.mark.usefixtures("poisoned")


def csr(rows: list[list[int]]) -> Answers:
    ptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    return ptr, torch.tensor([entity for row in rows for entity in row], dtype=torch.int64)


def by_hand(scores: list[list[float]], query: int, target: int, known: list[list[int]]) -> tuple[int, int]:
    """(better, equal) of one target, said once more in plain Python."""
    others = [s for j, s in enumerate(scores[query]) if j != target and j not in known[query]]
    true = scores[query][target]
    if math.isnan(true):
        return len(others), 0
    return sum(s > true for s in others), sum(s == true for s in others)


def rank(scores: Tensor, query_index: list[int], target: list[int], known: list[list[int]] | None) -> RankCounts:
    """Any scores at all: the candidates are unit vectors."""
    unit = torch.eye(scores.size(1), dtype=scores.dtype)
    filters = None if known is None else csr(known)
    query, entity = (torch.tensor(numbers, dtype=torch.int64) for numbers in (query_index, target))
    return rank_targets(scores, unit, None, query, entity, filters)


def test_autocast_has_no_say_in_the_ranks() -> None:
    scores = torch.arange(1.0, 1.5, 0.001)[None]  # in bfloat16 many of them would be equal
    with torch.autocast("cpu", torch.bfloat16):
        assert [t.tolist() for t in rank(scores, [0], [100], None)] == [[len(scores[0]) - 101], [0]]


def test_a_small_case() -> None:
    scores = torch.tensor([[5.0, 4.0, 4.0, 4.0, 3.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    for known, better in (([[0, 1], [2]], [0, 0, 2, 0]), (None, [1, 0, 4, 0])):
        actual = rank(scores, [0, 1, 0, 0], [1, 2, 4, 0], known)
        assert [t.tolist() for t in actual] == [better, [2, 4, 0, 0]]


def test_nan_loses() -> None:
    nan = torch.nan
    bias = torch.tensor([nan, 2.0, 1.0, nan, 2.0])
    query, candidates, target = torch.zeros(1, 1), torch.zeros(5, 1), torch.arange(5)
    filters: list[list[int]] = [[0, 1], [2, 3], []]
    for known in filters:
        actual = rank_targets(query, candidates, bias, torch.zeros_like(target), target, csr([known]))
        expected = [by_hand([bias.tolist()], 0, j, [known]) for j in range(5)]
        assert list(zip(*(t.tolist() for t in actual), strict=True)) == expected
    # Among all: NaN is below every other entity, and above none.
    assert actual.better.tolist() == [4, 0, 2, 4, 0]
    assert actual.equal.tolist() == [0, 1, 0, 0, 1]


@pytest.mark.parametrize("block", [None, 1, 3, 100])
def test_blocks_equal_the_definition(block: int | None) -> None:
    entities, queries, targets = 30, 11, 60
    # Small whole numbers: the products are exact, and many are tied.
    query, candidates = integers(3, queries, 2, seed=1).double() - 1, integers(3, entities, 2, seed=2).double()
    bias = integers(2, entities, seed=3).double()
    known = [sorted(set(integers(entities, 5 * (q % 3), seed=q).tolist())) for q in range(queries)]
    query_index, target = integers(queries - 2, targets, seed=4), integers(entities, targets, seed=5)
    self_bias = integers(entities, queries, seed=6), integers(5, queries, seed=7).double() - 2
    for filters, added in ((csr(known), None), (None, None), (csr(known), self_bias)):
        arguments = (query, candidates, bias, query_index, target, filters, added)
        actual = rank_targets(*arguments, block=block)
        for ours, theirs in zip(actual, reference.rank_targets(*arguments), strict=True):
            assert ours.tolist() == theirs.tolist()
    assert actual.equal.max() > 2


@pytest.mark.parametrize("block", [None, 1, 3])
def test_scores_of_any_form_are_ranked_like_products(block: int | None) -> None:
    query, candidates = integers(3, 7, 2, seed=1).float() - 1, integers(3, 20, 2, seed=2).float()
    known = csr([sorted(set(integers(20, 3 * (q % 3), seed=q).tolist())) for q in range(7)])
    query_index, target = integers(7, 40, seed=4), integers(20, 40, seed=5)
    table = query @ candidates.T
    counts = rank_scores(lambda rows: table[rows], 7, 20, query_index, target, known, block=block)
    expected = rank_targets(query, candidates, None, query_index, target, known)
    assert all(torch.equal(one, other) for one, other in zip(counts, expected, strict=True))
    assert counts.equal.max() > 0
    with pytest.raises(ValueError, match="an entry of target is 20; allowed: 0 to 19"):
        rank_scores(lambda rows: table[rows], 7, 20, torch.tensor([0, 0]), torch.tensor([0, 20]), known)
    for scores in (table[:, :1], table.repeat(2, 1)):  # one column for all would be broadcast
        with pytest.raises(ValueError, match=r"scores is .*; allowed: \[\d, 20\], a row per query"):
            rank_scores(lambda rows, scores=scores: scores, 7, 20, query_index, target, known, block=block)  # type: ignore[misc]


def test_any_scores_and_filters() -> None:
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    number = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, math.inf, math.nan])

    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)  # type: ignore[untyped-decorator]
    @hypothesis.given(data=st.data())  # type: ignore[untyped-decorator]
    def check(data: Any) -> None:
        entities, queries = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
        entity = st.integers(0, entities - 1)
        row = data.draw(st.lists(number, min_size=entities, max_size=entities))
        known = [sorted(data.draw(st.sets(entity))) for _ in range(queries)]
        asked = data.draw(st.lists(st.tuples(st.integers(0, queries - 1), entity), max_size=8))
        # Each query has the same scores: they are all in the bias, where infinities and NaN survive.
        actual = rank_targets(
            torch.zeros(queries, 1),
            torch.zeros(entities, 1),
            torch.tensor(row),
            torch.tensor([q for q, _ in asked], dtype=torch.int64),
            torch.tensor([t for _, t in asked], dtype=torch.int64),
            csr(known),
            block=data.draw(st.integers(1, 4)),
        )
        expected = [by_hand([row] * queries, q, t, known) for q, t in asked]
        assert list(zip(*(t.tolist() for t in actual), strict=True)) == expected

    check()


def test_scores_of_all_queries_are_never_stored() -> None:
    queries, entities = 2000, 1000
    query, candidates = torch.randn(queries, 4), torch.randn(entities, 4)
    target = integers(entities, queries, seed=0)

    def work() -> None:
        rank_targets(query, candidates, None, torch.arange(queries), target, None, block=20)

    work()
    assert peak_bytes(work, query.device) < 4 * queries * entities / 10


def random_knowledge(entities: int, relations: int, triples: int) -> KnowledgeGraph:
    """Many answers per query, in all three splits."""
    number = torch.stack([integers(size, triples, seed=size) for size in (entities, relations, entities + 1)], 1)
    rows = (number % torch.tensor([entities, relations, entities])).unique(dim=0)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    names = tuple(f"e{i}" for i in range(entities)), tuple(f"r{i}" for i in range(relations))
    train, valid, test = rows.tensor_split([len(rows) // 2, len(rows) * 3 // 4])
    return KnowledgeGraph.from_triples(Triples("random", *names, train, valid, test))


def test_agrees_with_pykeen_to_the_last_rank() -> None:
    pytest.importorskip("pykeen")
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.evaluation.evaluator import create_sparse_positive_filter_, filter_scores_

    graph = random_knowledge(entities=40, relations=3, triples=900)
    ranking, triples = graph.ranking("test"), graph.triples
    everything = torch.cat([triples.train, triples.valid, triples.test])
    query, candidates = integers(3, len(ranking.queries), 2, seed=1).float(), integers(3, 40, 2, seed=2).float()
    ours = Ranks(*rank_targets(query, candidates, None, ranking.query, ranking.target, ranking.known))
    assert (ours.equal > 3).double().mean() > 0.5

    ties: tuple[TieRule, ...] = ("realistic", "optimistic", "pessimistic")
    evaluator = RankBasedEvaluator()
    sides: tuple[tuple[Any, int], ...] = (("tail", 2), ("head", 0))
    for side, column in sides:
        rows = ranking.side(side)
        scores = (query @ candidates.T)[ranking.query[rows]]
        true = scores.gather(1, triples.test[:, column, None])
        positives, _ = create_sparse_positive_filter_(triples.test, everything, filter_col=column)
        scores = filter_scores_(scores, positives)
        scores.scatter_(1, triples.test[:, column, None], true)
        evaluator.process_scores_(triples.test, side, scores, true)
        for tie in ties:
            (theirs,) = evaluator.ranks[side, tie]
            assert ours.select(rows).ranks(tie).tolist() == theirs.tolist()
    results = evaluator.finalize()
    names = {"mrr": "inverse_harmonic_mean_rank", "mr": "arithmetic_mean_rank"}
    names |= {f"hits@{k}": f"hits_at_{k}" for k in (1, 3, 10)}
    for tie in ties:
        for side in ("head", "tail", "both"):
            metrics = (ours if side == "both" else ours.select(ranking.side(side))).metrics(tie)
            for name, value in metrics.items():
                assert value == pytest.approx(results.get_metric(f"{side}.{tie}.{names[name]}"))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "query_index": ({"query_index": torch.tensor([0])}, r"query_index is torch.int64 \[1\] .*: torch.int64 \[2\]"),
    "no such query": ({"query_index": torch.tensor([0, 3])}, "an entry of query_index is 3; allowed: 0 to 2"),
    "no such entity": ({"target": torch.tensor([-1, 3])}, "an entry of target is -1; allowed: 0 to 3"),
    "type": ({"target": torch.tensor([1.0, 2.0])}, "target is torch.float32"),
    "channels": ({"candidates": torch.zeros(4, 3)}, r"candidates is torch.float32 \[4, 3\]"),
    "unsorted": ({"known": csr([[2, 1], [], []])}, r"query 0 is \[2, 1\]; allowed: increasing"),
    "too few": ({"known": csr([[2]])}, r"known: ptr is torch.int64 \[2\] .*; allowed: torch.int64 \[4\]"),
    "block": ({"block": 0}, "block is 0"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input(name: str) -> None:
    good: dict[str, Any] = {"query": torch.zeros(3, 2), "candidates": torch.zeros(4, 2), "bias": None, "known": None}
    good |= {"query_index": torch.tensor([0, 2]), "target": torch.tensor([1, 3])}
    bad, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        rank_targets(**good | bad)
