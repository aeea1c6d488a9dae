"""The embedded families: always the same, and every held-out fact follows from births and marriages in training."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from magna.data import DATASETS, Triples, load_families
from magna.data.triples import SPLITS

BASE = ("son_of", "daughter_of", "father_of", "mother_of", "married_to")
# Births and marriages between the two: the hops that a model needs.
HOPS = dict.fromkeys(BASE, 1)
HOPS |= dict.fromkeys(("brother_of", "sister_of", "grandparent_of", "parent_in_law_of"), 2)
HOPS |= dict.fromkeys(("uncle_of", "aunt_of", "great_grandparent_of"), 3)
HOPS |= dict.fromkeys(("cousin_of", "great_uncle_of", "great_aunt_of", "great_great_grandparent_of"), 4)
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
    nephew, grandparent = joined(sibling, parent), joined(parent, parent)
    derived = {
        "grandparent_of": grandparent,
        "parent_in_law_of": joined(parent, married),
        "great_grandparent_of": joined(parent, grandparent),
        "cousin_of": joined(child, nephew),
        "great_great_grandparent_of": joined(grandparent, grandparent),
    }
    words = {"brother sister": sibling, "uncle aunt": nephew, "great_uncle great_aunt": joined(nephew, parent)}
    for names, relatives in words.items():
        for name, people in zip(names.split(), (male, female), strict=True):
            derived[f"{name}_of"] = {(one, other) for one, other in relatives if one in people}
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
        graph = coo_matrix((np.ones(len(rows)), (rows[:, 0], rows[:, 2])), shape=2 * (families.num_entities,))
        return shortest_path(graph, unweighted=True, directed=False)

    train = families.train.numpy()
    base = np.isin(train[:, 1], [families.relation_id(relation) for relation in BASE])
    hops = np.array([HOPS[relation] for relation in families.relations])
    base_distance, train_distance = distances(train[base]), distances(train)
    for split in SPLITS:
        head, relation, tail = families.split(split).numpy().T
        assert (base_distance[head, tail] == hops[relation]).all()
        # Kinship in training shortens some paths, but leaves many of them long: one hop from both ends is not enough.
        if split != "train":
            assert (train_distance[head, tail] >= 3)[hops[relation] == 3].mean() > 0.5
            assert (train_distance[head, tail] >= 3)[hops[relation] == 4].mean() > 0.6


def test_no_split_gives_another_one_away(families: Triples) -> None:
    """All facts between two people are in one split, and so are those of siblings and couples."""
    parents = {child: f"children of {mother}" for mother, child in pairs(families, "mother_of")}
    couple = {one: f"couple {min(one, other)}" for one, other in pairs(families, "married_to")}
    seen: dict[frozenset[str], str] = {}
    for split in SPLITS:
        for head, relation, tail in facts(families, split):
            if relation not in BASE:
                alike = couple[head] if relation in OF_COUPLES else parents[head]
                for two in ((head, tail), (alike, parents.get(tail, tail))):
                    assert seen.setdefault(frozenset(two), split) == split
    assert not any(frozenset(pair) in seen for relation in BASE for pair in pairs(families, relation))


def test_always_the_same(families: Triples) -> None:
    sizes = [len(families.split(split)) for split in SPLITS]
    words = f"{families.num_entities:,} entities, {families.num_relations} relations, {sum(sizes):,} triples"
    assert DATASETS["families"].size == words and sizes == [8_703, 4_181, 13_818]
    text = "".join(
        f"{split}\t{head}\t{relation}\t{tail}\n" for split in SPLITS for head, relation, tail in facts(families, split)
    )
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "973fdfe7caa25460"
