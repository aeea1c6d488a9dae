"""A knowledge graph that needs no download: relatives, whose remoter kinship follows from births and marriages."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from magna.data.triples import Row, Triples, triples_from

NAME = "families"
# One population, drawn once: every run, whatever its own seed, sees the same one.
_SEED = 20_260_101
_FOUNDING_COUPLES = 60
_GENERATIONS = 5
_CHILDREN = (1, 2, 2, 3, 3)  # each couple has one of these numbers
_NEWCOMERS = 0.6  # the share of marriages with someone whose parents nobody knows
_SHARES = (0.15, 0.2, 0.65)  # of the kinship that follows from births and marriages: training, validation, test
# fmt: off
_SONS = (
    "adam", "ben", "carl", "david", "emil", "felix", "georg", "hugo", "ivan", "jonas",
    "leo", "max", "nils", "otto", "paul", "rolf", "sven", "tom", "uwe", "victor",
)
_DAUGHTERS = (
    "anna", "berta", "clara", "dora", "ella", "frida", "greta", "hanna", "ida", "julia",
    "lena", "mia", "nora", "olga", "paula", "rosa", "sara", "tina", "ute", "vera",
)
# fmt: on


@dataclass(eq=False)
class _Person:
    name: str
    male: bool
    parents: tuple[_Person, ...] = ()
    spouse: _Person | None = None
    children: list[_Person] = field(default_factory=list)

    @property
    def sibship(self) -> Hashable:
        """The same for brothers and sisters."""
        return self.parents or self

    @property
    def couple(self) -> Hashable:
        """The same for husband and wife."""
        return frozenset((self, self.spouse))

    def up(self, generations: int) -> set[_Person]:
        return {self} if generations == 0 else {old for parent in self.parents for old in parent.up(generations - 1)}

    def down(self, generations: int) -> set[_Person]:
        return {self} if generations == 0 else {low for child in self.children for low in child.down(generations - 1)}

    def cousins(self, degree: int) -> set[_Person]:
        """Degree 0: brothers and sisters; 1: cousins, who share grandparents and no parents; and so on."""
        around = {kin for older in self.up(degree + 1) for kin in older.down(degree + 1)}
        nearer = {kin for older in self.up(degree) for kin in older.down(degree)}
        return around - nearer


@cache
def load_families() -> Triples:
    """Families over five generations: births and marriages are known, most of the kinship is to be found.

    Births (`son_of`, `daughter_of`, and from the other end `father_of`, `mother_of`) and marriages are all in the
    training split. Every other relation follows from them by a rule of two to four steps; uncles, aunts and
    cousins are those by birth. Training has a few of these facts to learn the rules from, so few that one of them
    seldom gives another away; validation and test have the others. What brothers and sisters share, or a couple, is in
    one split, and so are all facts between the same two people.
    """
    people = _population(random.Random(_SEED))
    chance = random.Random(_SEED + 1)
    rows: dict[str, list[Row]] = {"train": list(_base_facts(people)), "valid": [], "test": []}
    split_of: dict[frozenset[Hashable], str] = {}
    for relation, relatives in _RULES.items():
        for person in people:
            for kin in sorted(relatives(person), key=lambda relative: relative.name):
                alike = person.couple if relation in _OF_COUPLES else person.sibship
                group = frozenset((alike, kin.sibship))
                if group not in split_of:
                    split_of[group] = chance.choices(list(rows), _SHARES)[0]
                rows[split_of[group]].append((person.name, relation, kin.name))
    return triples_from(NAME, rows)


def _population(chance: random.Random) -> list[_Person]:
    """Everybody, the oldest first."""
    people: list[_Person] = []

    def born(male: bool, parents: tuple[_Person, ...] = ()) -> _Person:
        first = chance.choice(_SONS if male else _DAUGHTERS)
        person = _Person(f"{first}-{len(people) + 1}", male, parents)
        people.append(person)
        for parent in parents:
            parent.children.append(person)
        return person

    couples = [_married(born(True), born(False)) for _ in range(_FOUNDING_COUPLES)]
    for generation in range(1, _GENERATIONS):
        children = [born(chance.random() < 0.5, pair) for pair in couples for _ in range(chance.choice(_CHILDREN))]
        if generation < _GENERATIONS - 1:
            chance.shuffle(children)
            free = (child for child in children if child.spouse is None)
            couples = [_married(child, _match(child, children, chance) or born(not child.male)) for child in free]
    return people


def _match(person: _Person, others: Iterable[_Person], chance: random.Random) -> _Person | None:
    """Someone of the same generation to marry, no relative as far as these relations go; None: a newcomer."""
    if chance.random() < _NEWCOMERS:
        return None
    family = _ancestors(person)
    free = (other for other in others if other.spouse is None and other.male != person.male)
    return next((other for other in free if not family & _ancestors(other)), None)


def _ancestors(person: _Person) -> set[_Person]:
    """Up to the great-grandparents."""
    return person.up(1) | person.up(2) | person.up(3)


def _married(one: _Person, other: _Person) -> tuple[_Person, _Person]:
    one.spouse, other.spouse = other, one
    return one, other


def _base_facts(people: Iterable[_Person]) -> Iterator[Row]:
    for person in people:
        for parent in person.parents:
            yield person.name, "son_of" if person.male else "daughter_of", parent.name
            yield parent.name, "father_of" if parent.male else "mother_of", person.name
        if person.spouse is not None:
            yield person.name, "married_to", person.spouse.name


def _nephews_and_nieces(person: _Person, generations: int = 1) -> set[_Person]:
    return {young for sibling in person.cousins(0) for young in sibling.down(generations)}


# Whom a person is that to; each rule reads births and marriages alone.
_RULES: dict[str, Callable[[_Person], set[_Person]]] = {
    "brother_of": lambda person: person.cousins(0) if person.male else set(),
    "sister_of": lambda person: set() if person.male else person.cousins(0),
    "grandparent_of": lambda person: person.down(2),
    "parent_in_law_of": lambda person: {child.spouse for child in person.children if child.spouse is not None},
    "uncle_of": lambda person: _nephews_and_nieces(person) if person.male else set(),
    "aunt_of": lambda person: set() if person.male else _nephews_and_nieces(person),
    "great_grandparent_of": lambda person: person.down(3),
    "cousin_of": lambda person: person.cousins(1),
    "great_uncle_of": lambda person: _nephews_and_nieces(person, 2) if person.male else set(),
    "great_aunt_of": lambda person: set() if person.male else _nephews_and_nieces(person, 2),
    "great_great_grandparent_of": lambda person: person.down(4),
}
# What the wife is to someone the husband is too; the others are shared by brothers and sisters.
_OF_COUPLES = {"grandparent_of", "parent_in_law_of", "great_grandparent_of", "great_great_grandparent_of"}
