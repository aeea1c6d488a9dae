"""A list of triples without splits → training, validation and test, whose names are all in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from magna.config.path_kind import SPLITS

Names = tuple[str, str, str]
HELD_OUT = 0.05  # share for validation, and for the test


def split_triples(rows: Sequence[Names], share: float, seed: int) -> dict[str, list[Names]]:
    """Draw a share for validation and as much for the test, each triple once, in the order of the list.

    Every entity and every relation of the two is in training, so that they may be fewer.

    >>> circle = [(str(i), "r", str((i + 1) % 10)) for i in range(10)]
    >>> [len(part) for part in split_triples(circle, 0.1, 0).values()]
    [8, 1, 1]
    """
    rows = list(dict.fromkeys(rows))
    entities = Counter(name for head, _, tail in rows for name in (head, tail))
    relations = Counter(relation for _, relation, _ in rows)
    wanted = max(1, round(share * len(rows)))
    drawn: list[int] = []
    for place in np.random.Generator(np.random.PCG64(seed)).permutation(len(rows)).tolist():
        if len(drawn) == 2 * wanted:
            break
        head, relation, tail = rows[place]
        entities.subtract((head, tail))
        relations[relation] -= 1
        if min(entities[head], entities[tail], relations[relation]) > 0:
            drawn.append(place)
        else:
            entities.update((head, tail))
            relations[relation] += 1
    # Of few triples, one for each in turn.
    split_of = {place: SPLITS[1 + number % 2] for number, place in enumerate(drawn)}
    parts: dict[str, list[Names]] = {split: [] for split in SPLITS}
    for place, row in enumerate(rows):
        parts[split_of.get(place, "train")].append(row)
    return parts
