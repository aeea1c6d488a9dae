"""A knowledge graph as training reads it, against its definition written out in loops."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.support.data import knowledge_graph, write_texts

from magna.data import Answers, KnowledgeGraph, load_knowledge_graph
from magna.data.triples import SPLITS


def drawn(seed: int) -> KnowledgeGraph:
    """A small random knowledge graph, with loops, repeated pairs and entities that training does not see."""
    draw = random.Random(seed).randrange
    rows = [(f"e{draw(12)}", f"r{draw(3)}", f"e{draw(9)}") for _ in range(39)]
    return knowledge_graph(rows[:25], rows[25:31], rows[31:])


def listed(answers: Answers) -> list[list[int]]:
    return [answers.index[start:end].tolist() for start, end in pairwise(answers.ptr.tolist())]


def truth(graph: KnowledgeGraph, splits: tuple[str, ...]) -> dict[tuple[int, int], list[int]]:
    """(head, relation) → its answers, inverse relations included."""
    by_query: dict[tuple[int, int], set[int]] = {}
    for split in splits:
        for head, relation, tail in graph.triples.split(split).tolist():
            by_query.setdefault((head, relation), set()).add(tail)
            by_query.setdefault((tail, relation + graph.num_relations), set()).add(head)
    return {query: sorted(answers) for query, answers in sorted(by_query.items())}


@pytest.mark.parametrize("seed", range(5))
def test_edges_and_training_queries(seed: int) -> None:
    graph = drawn(seed)
    train, R, N = graph.triples.train.tolist(), graph.num_relations, graph.num_entities
    edges = [(h, r, t) for h, r, t in train] + [(t, r + R, h) for h, r, t in train] + [(n, 2 * R, n) for n in range(N)]
    source, target = graph.edge_index.tolist()
    assert list(zip(source, graph.edge_type.tolist(), target, strict=True)) == edges

    queries = [(head, relation) for head, relation in graph.queries.tolist()]
    expected = truth(graph, ("train",))
    assert queries == list(expected) and listed(graph.answers) == list(expected.values())
    for (head, relation, tail), answered, reverse in zip(
        edges, graph.edge_query.tolist(), graph.reverse_query.tolist(), strict=True
    ):
        if relation == 2 * R:
            assert answered == reverse == -1
        else:
            assert queries[answered] == (head, relation) and queries[reverse] == (tail, (relation + R) % (2 * R))
    # A query is answered by as many edges as it has answers: weights and masks agree.
    assert torch.equal(torch.bincount(graph.edge_query[: 2 * len(train)]), graph.answers.counts)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("split", ["valid", "test"])
def test_ranking_asks_both_sides_and_knows_all_splits(seed: int, split: str) -> None:
    graph = drawn(seed)
    triples, R, ranking = graph.triples.split(split).tolist(), graph.num_relations, graph.ranking(split)
    queries = [(head, relation) for head, relation in ranking.queries.tolist()]
    assert queries == sorted(set(queries)) and ranking.num_triples == len(triples)
    asked = [(*queries[at], target) for at, target in zip(ranking.query.tolist(), ranking.target.tolist(), strict=True)]
    assert asked[ranking.side("tail")] == [(h, r, t) for h, r, t in triples]
    assert asked[ranking.side("head")] == [(t, r + R, h) for h, r, t in triples]
    assert ranking.rel_type.tolist() == [r for _, r, _ in triples] * 2
    everything = truth(graph, SPLITS)
    assert listed(ranking.known) == [everything[query] for query in queries]


def test_any_query_has_answers_even_if_none() -> None:
    graph = drawn(0)
    every = torch.cartesian_prod(torch.arange(graph.num_entities), torch.arange(2 * graph.num_relations))
    queries = every[torch.randint(len(every), (200,), generator=torch.Generator().manual_seed(0))]
    for splits in (SPLITS, ("train",), ("valid", "test")):
        expected = truth(graph, splits)
        answers = listed(graph.answers_to(queries, splits))
        assert answers == [expected.get((head, relation), []) for head, relation in queries.tolist()]
    assert listed(graph.answers_to(queries[:0])) == []


def test_one_triple_and_an_entity_only_in_test(tmp_path: Path) -> None:
    texts = {"train": "a\tonce\tb\na\tr\ta\n", "valid": "", "test": "new\tonce\tb\nb\tnever\tnew\n"}
    graph = load_knowledge_graph(write_texts(tmp_path, ".tsv", **texts))
    assert graph.triples.entities == ("a", "b", "new") and graph.triples.relations == ("never", "once", "r")
    # The new entity has its self-loop alone, and takes part as a candidate and as a head.
    assert (graph.edge_index == graph.triples.entity_id("new")).sum() == 2
    assert graph.edge_type.tolist() == [1, 2, 4, 5, 6, 6, 6]
    ranking = graph.ranking("test")
    assert ranking.queries.tolist() == [[1, 0], [1, 4], [2, 1], [2, 3]]
    assert listed(ranking.known) == [[2], [0, 2], [1], [1]]
    with pytest.raises(ValueError, match="it has no valid triple; allowed: at least one in each split; try"):
        graph.ranking("valid")
    with pytest.raises(ValueError, match="split is 'dev'"):
        graph.ranking("dev")
    with pytest.raises(ValueError, match="side is 'both'; allowed: 'head', 'tail'"):
        ranking.side("both")
    names = "families, wn18rr, fb15k-237, wn18rr-v1, fb15k-237-v1, or a folder"
    with pytest.raises(ValueError, match=rf"data\.name is 'wn18'; allowed: {names}"):
        load_knowledge_graph("wn18")


def test_it_moves_as_a_whole() -> None:
    graph, meta = drawn(1), torch.device("meta")
    moved, ranking = graph.to(meta), graph.ranking("test").to(meta)
    tensors = [moved.edge_index, moved.edge_type, moved.queries, *moved.answers, moved.edge_query, moved.reverse_query]
    tensors += [ranking.queries, *ranking.known, ranking.query, ranking.target, ranking.rel_type]
    assert {tensor.device for tensor in tensors} == {meta}
