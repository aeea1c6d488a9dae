"""The embedded families: always the same, and every held-out fact follows from births and marriages in training."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from magna.data import DATASETS, Triples, load_families
from magna.data.families import HOPS
from magna.data.triples import SPLITS

BASE = ("son_of", "daughter_of", "father_of", "mother_of", "married_to")
OF_COUPLES = ("grandparent_of", "parent_in_law_of", "great_grandparent_of", "great_great_grandparent_of")


@pytest.fixture(scope="module")
def families() -> Triples:
    return load_families()


def facts(data: Triples, split: str) -> list[tuple[str, str, str]]:
    return [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in data.split(split).tolist()]


def pairs(data: Triples, relation: str) -> set[tuple[str, str]]:
    """The pairs of a relation in training."""
    return {(head, tail) for head, name, tail in facts(data, "train") if name == relation}


def joined(one: set[tuple[str, str]], other: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """X to z where x is to y in one and y is to z in the other."""
    after = defaultdict(set)
    for middle, end in other:
        after[middle].add(end)
    return {(start, end) for start, middle in one for end in after[middle]}


def turned(relation: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {(tail, head) for head, tail in relation}


def test_all_kinship_follows_from_births_and_marriages_in_training(families: Triples) -> None:
    son, daughter, father, mother, married = (pairs(families, relation) for relation in BASE)
    child, parent = son | daughter, father | mother
    assert parent == turned(child)
    sibling = {(one, other) for one, other in joined(child, parent) if one != other}
    male, female = {head for head, _ in son | father}, {head for head, _ in daughter | mother}
    assert not male & female
    nephew = joined(sibling, parent)
    great_nephew = joined(nephew, parent)
    derived = {
        "brother_of": {(one, other) for one, other in sibling if one in male},
        "sister_of": {(one, other) for one, other in sibling if one in female},
        "grandparent_of": joined(parent, parent),
        "parent_in_law_of": joined(parent, married),
        "uncle_of": {(one, other) for one, other in nephew if one in male},
        "aunt_of": {(one, other) for one, other in nephew if one in female},
        "great_grandparent_of": joined(parent, joined(parent, parent)),
        "cousin_of": joined(child, nephew),
        "great_uncle_of": {(one, other) for one, other in great_nephew if one in male},
        "great_aunt_of": {(one, other) for one, other in great_nephew if one in female},
        "great_great_grandparent_of": joined(joined(parent, parent), joined(parent, parent)),
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


def test_relations_span_the_stated_hops(families: Triples) -> None:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import shortest_path

    def distances(rows: np.ndarray) -> Any:
        size = families.num_entities
        return shortest_path(
            coo_matrix((np.ones(len(rows)), (rows[:, 0], rows[:, 2])), shape=(size, size)),
            unweighted=True,
            directed=False,
        )

    train = families.train.numpy()
    base = np.isin(train[:, 1], [families.relation_id(relation) for relation in BASE])
    hops = np.array([HOPS[relation] for relation in families.relations])
    base_distance, train_distance = distances(train[base]), distances(train)
    for split in SPLITS:
        head, relation, tail = families.split(split).numpy().T
        assert (base_distance[head, tail] == hops[relation]).all()
    # Kinship in training makes some paths shorter, but leaves many of them long: one hop from both ends is not enough.
    for split in ("valid", "test"):
        head, relation, tail = families.split(split).numpy().T
        assert (train_distance[head, tail] >= 3)[hops[relation] == 3].mean() > 0.5
        assert (train_distance[head, tail] >= 3)[hops[relation] == 4].mean() > 0.6


def test_no_split_is_another_one_turned_round(families: Triples) -> None:
    seen: dict[frozenset[str], str] = {}
    for split in SPLITS:
        for head, relation, tail in facts(families, split):
            if relation not in BASE:
                assert seen.setdefault(frozenset((head, tail)), split) == split
    assert not {frozenset((head, tail)) for head, relation, tail in facts(families, "train") if relation in BASE} & set(
        seen
    )


def test_facts_of_siblings_and_couples_are_in_one_split(families: Triples) -> None:
    parents = {child: f"children of {mother}" for mother, child in pairs(families, "mother_of")}
    couple = {one: f"couple {min(one, other)}" for one, other in pairs(families, "married_to")}
    seen: dict[frozenset[str], str] = {}
    for split in SPLITS:
        for head, relation, tail in facts(families, split):
            if relation not in BASE:
                alike = couple[head] if relation in OF_COUPLES else parents[head]
                assert seen.setdefault(frozenset((alike, parents.get(tail, tail))), split) == split


def test_always_the_same(families: Triples) -> None:
    sizes = [len(families.split(split)) for split in SPLITS]
    words = f"{families.num_entities:,} entities, {families.num_relations} relations, {sum(sizes):,} triples"
    assert DATASETS["families"].size == words and sizes == [8_703, 4_181, 13_818]
    text = "".join(
        f"{split}\t{head}\t{relation}\t{tail}\n" for split in SPLITS for head, relation, tail in facts(families, split)
    )
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "973fdfe7caa25460"
