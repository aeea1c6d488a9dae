"""The embedded families: always the same, and every held-out fact follows from births and marriages in training."""

from __future__ import annotations

import hashlib
from collections import defaultdict

import numpy as np
import pytest

from magna.datasets import DATASETS, Triples, load_families
from magna.datasets.families import HOPS
from magna.datasets.triples import SPLITS

BASE = ("son_of", "daughter_of", "married_to")


@pytest.fixture(scope="module")
def families() -> Triples:
    return load_families()


def facts(data: Triples, split: str) -> list[tuple[str, str, str]]:
    return [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in data.split(split).tolist()]


def pairs(data: Triples, relation: str) -> set[tuple[str, str]]:
    """What training knows of a relation."""
    return {(head, tail) for head, name, tail in facts(data, "train") if name == relation}


def joined(one: set[tuple[str, str]], other: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """x to z where x is to y in one and y is to z in the other."""
    after = defaultdict(set)
    for middle, end in other:
        after[middle].add(end)
    return {(start, end) for start, middle in one for end in after[middle]}


def turned(relation: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {(tail, head) for head, tail in relation}


def test_everything_else_follows_from_the_births_and_marriages_in_training(families: Triples) -> None:
    son, daughter, married = (pairs(families, relation) for relation in BASE)
    child = son | daughter
    parent = turned(child)
    sibling = {(one, other) for one, other in joined(child, parent) if one != other}
    male, female = {head for head, _ in son}, {head for head, _ in daughter}
    nephew = joined(sibling, parent)
    derived = {
        "brother_of": {(one, other) for one, other in sibling if one in male},
        "sister_of": {(one, other) for one, other in sibling if one in female},
        "grandparent_of": joined(parent, parent),
        "parent_in_law_of": joined(parent, married),
        "uncle_of": {(one, other) for one, other in nephew if one in male},
        "aunt_of": {(one, other) for one, other in nephew if one in female},
        "great_grandparent_of": joined(parent, joined(parent, parent)),
        "cousin_of": joined(child, nephew),
    }
    assert set(derived) | set(BASE) == set(HOPS) == set(families.relations)
    stated = defaultdict(set)
    for split in SPLITS:
        for head, relation, tail in facts(families, split):
            stated[relation].add((head, tail))
    # Both ways: no held-out fact is out of reach, and no true one is missing, which a ranking would punish.
    assert {relation: stated[relation] for relation in derived} == derived
    for split in ("valid", "test"):
        assert {relation for _, relation, _ in facts(families, split)} == set(derived)


def test_as_many_hops_as_stated(families: Triples) -> None:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import shortest_path

    def distances(rows: np.ndarray) -> np.ndarray:
        size = families.num_entities
        return shortest_path(
            coo_matrix((np.ones(len(rows)), (rows[:, 0], rows[:, 2])), shape=(size, size)),
            unweighted=True,
            directed=False,
        )

    train, test = families.train.numpy(), families.test.numpy()
    base = np.isin(train[:, 1], [families.relation_id(relation) for relation in BASE])
    hops = np.array([HOPS[relation] for relation in families.relations])
    assert (distances(train[base])[test[:, 0], test[:, 2]] == hops[test[:, 1]]).all()
    # Kinship in training makes some ways shorter, but leaves many of them long: one hop from both ends is not enough.
    far = distances(train)[test[:, 0], test[:, 2]] >= 3
    assert far[hops[test[:, 1]] >= 3].mean() > 0.5


def test_no_split_is_another_one_turned_round(families: Triples) -> None:
    seen: dict[frozenset[str], str] = {}
    for split in SPLITS:
        for head, relation, tail in facts(families, split):
            if relation not in BASE:
                assert seen.setdefault(frozenset((head, tail)), split) == split
    assert not {frozenset((head, tail)) for head, relation, tail in facts(families, "train") if relation in BASE} & set(
        seen
    )


def test_always_the_same(families: Triples) -> None:
    assert DATASETS["families"].size == "1,560 entities, 11 relations, 19,204 triples"
    assert (families.num_entities, families.num_relations) == (1_560, 11)
    assert [len(families.split(split)) for split in SPLITS] == [5_725, 3_161, 10_318]
    text = "".join(
        f"{split}\t{head}\t{relation}\t{tail}\n" for split in SPLITS for head, relation, tail in facts(families, split)
    )
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "00e20484b59904a2"
