"""Short searches: trials that are drawn from a recipe's space, their scores, and the settings that they choose."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from magna.config.atomic_files import write_whole
from magna.config.schema import SEARCH_SEEDS
from magna.config.toml import Range, toml
from magna.errors import DataError
from magna.paper.cell import Cell
from magna.paper.records import PROTOCOL, settings_of

SEED = SEARCH_SEEDS[0]
FILE = "searches.jsonl"  # of a table, a line for each search
_DIGITS = 3  # of a drawn number


@dataclass(frozen=True)
class Search:
    """The trials of a cell so far, each with its changes of the recipe and its validation score."""

    dataset: str
    row: str
    settings: tuple[str, ...]  # of the recipe, other than the defaults
    trials: Sequence[Mapping[str, Any]] = ()
    protocol: int = PROTOCOL

    @staticmethod
    def start(cell: Cell) -> Search:
        return Search(cell.dataset, cell.row, settings_of(cell.config))

    @property
    def place(self) -> tuple[str, str]:
        return self.dataset, self.row

    def is_current(self, cell: Cell) -> bool:
        """True if today's search of the cell would begin with these trials."""
        drawn = [list(drawn_changes(cell, number)) for number in range(len(self.trials))]
        same = self.settings == settings_of(cell.config) and [trial["changes"] for trial in self.trials] == drawn
        return self.protocol == PROTOCOL and same

    def chosen(self, cell: Cell) -> Cell | None:
        """The cell with the settings of the best trial, the first one if several are level; None before the end."""
        scored = [trial for trial in self.trials if trial["valid"] is not None]
        if len(self.trials) < cell.trials or not scored:
            return None
        return tried(cell, max(scored, key=lambda trial: float(trial["valid"]["mrr"]))["changes"])


def drawn_changes(cell: Cell, number: int) -> tuple[str, ...]:
    """Changes of the recipe that a trial makes: none of the first, else values drawn by data set, row and number."""
    if number == 0:
        return ()
    chance = random.Random(f"{SEED}/{cell.dataset}/{cell.row}/{number}")
    drawn = {key: _drawn(space, chance) for key, space in cell.config.search.items()}
    return tuple(f"{key}={toml(value)}" for key, value in drawn.items())


def tried(cell: Cell, changes: Sequence[str]) -> Cell:
    """The cell with the changes of a trial, to be trained as it is."""
    config = cell.config.with_values(changes, drop_idle=True)
    return replace(cell, config=config, changes=(*cell.changes, *changes), is_settled=True)


def read_search(path: Path) -> Search:
    """The search in a file."""
    try:
        return _parse(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError):
        raise DataError(path, "is no search", hint="to delete it, then it is made again") from None


def write_search(path: Path, search: Search) -> None:
    write_whole(path, (_text(search) + "\n").encode(), again="the same command")


def read_searches(results: Path, table: str) -> dict[tuple[str, str], Search]:
    """The committed searches of a table, by data set and row."""
    path = results / table / FILE
    if not path.is_file():
        return {}
    try:
        searches = [_parse(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(path, f"the searches cannot be read ({error})", hint="git checkout") from error
    return {search.place: search for search in searches}


def write_searches(results: Path, table: str, searches: Iterable[Search]) -> None:
    text = "".join(_text(search) + "\n" for search in searches)
    write_whole(results / table / FILE, text.encode(), again="the same command")


def _drawn(space: Sequence[Any] | Range, chance: random.Random) -> Any:
    """A value of a space; a fraction has few digits, so that its text is the value."""
    if not isinstance(space, Range):
        return chance.choice(space)
    if space.log:
        value = math.exp(chance.uniform(math.log(space.low), math.log(space.high)))
    elif space.step is not None:
        value = space.low + space.step * chance.randint(0, int((space.high - space.low) / space.step))
    elif isinstance(space.low, int):
        value = chance.randint(space.low, int(space.high))
    else:
        value = chance.uniform(space.low, space.high)
    value = round(value) if isinstance(space.low, int) else float(f"{value:.{_DIGITS}g}")
    return min(max(value, space.low), space.high)


def _text(search: Search) -> str:
    return json.dumps(asdict(search), ensure_ascii=False)


def _parse(text: str) -> Search:
    content = json.loads(text)
    return Search(**content | {"settings": tuple(content["settings"])})
