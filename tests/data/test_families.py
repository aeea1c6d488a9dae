"""The embedded families: always the same, and every held-out fact follows from births and marriages in training."""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest
from tests.support.data import names_of

from magna.data import DATASETS, Triples, load_families
from magna.data.triples import SPLITS

BASE = ("son_of", "daughter_of", "father_of", "mother_of", "married_to")
OF_COUPLES = ("grandparent_of", "parent_in_law_of", "great_grandparent_of", "great_great_grandparent_of")


@pytest.fixture(scope="module")
def families() -> Triples:
    return load_families()


def pairs(data: Triples, relation: str) -> set[tuple[str, str]]:
    """The pairs of a relation in training."""
    return {(head, tail) for head, name, tail in names_of(data, "train") if name == relation}


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
    assert set(derived) | set(BASE) == set(families.relations)
    stated = defaultdict(set)
    for split in SPLITS:
        for head, relation, tail in names_of(families, split):
            stated[relation].add((head, tail))
    # Both ways: no held-out fact is out of reach, and no true one is missing, which a ranking would punish.
    assert {relation: stated[relation] for relation in derived} == derived
    for split in ("valid", "test"):
        assert {relation for _, relation, _ in names_of(families, split)} == set(derived)


def test_no_split_gives_another_one_away(families: Triples) -> None:
    """All facts between two people are in one split, and so are those of siblings and couples."""
    parents = {child: f"children of {mother}" for mother, child in pairs(families, "mother_of")}
    couple = {one: f"couple {min(one, other)}" for one, other in pairs(families, "married_to")}
    seen: dict[frozenset[str], str] = {}
    for split in SPLITS:
        for head, relation, tail in names_of(families, split):
            if relation not in BASE:
                alike = couple[head] if relation in OF_COUPLES else parents[head]
                for two in ((head, tail), (alike, parents.get(tail, tail))):
                    assert seen.setdefault(frozenset(two), split) == split
    assert not any(frozenset(pair) in seen for relation in BASE for pair in pairs(families, relation))


def test_always_the_same(families: Triples) -> None:
    sizes = [len(families.split(split)) for split in SPLITS]
    words = f"{families.num_entities:,} entities, {families.num_relations} relations, {sum(sizes):,} triples"
    assert DATASETS["families"].size == words and sizes == [8_703, 4_181, 13_818]
    text = "".join("\t".join((split, *row)) + "\n" for split in SPLITS for row in names_of(families, split))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "973fdfe7caa25460"
