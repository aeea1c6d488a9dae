"""Cells of the tables: one figure each, with the settings that it is trained with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from magna.config.schema import Config
from magna.paper.node_systems import Effort


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a recipe, with or without changes, on one split of its data, over several seeds."""

    table: str  # the table that trains it; others may show it too
    dataset: str
    row: str
    config: Config
    changes: tuple[str, ...] = ()
    point: str = ""  # of docs/explanation/switches.md
    split: int | None = None  # number of the random split, None for the public one
    effort: Effort | None = None  # of the search for its settings; None: it needs none
    is_settled: bool = True  # False before the search: the config has no chosen settings yet

    @property
    def trials(self) -> int:
        """Trials of a search that has not ended."""
        return 0 if self.is_settled or self.effort is None else self.effort.trials

    def seeds_of(self, asked: int) -> int:
        """Number of report seeds where so many are asked for: a searched cell has those of its effort at most."""
        return asked if self.effort is None else min(asked, self.effort.seeds)

    @property
    def path(self) -> str:
        """File of the cell below the folder of its table."""
        return cell_path(self.table, self.dataset, self.row, self.split)


def cell_path(table: str, dataset: str, row: str, split: int | None) -> str:
    """File of a cell while it is trained.

    >>> cell_path("random-splits", "cora", "Diff-GCN", 3)
    'random-splits/cora/diff-gcn/split-3.json'
    """
    # GRAND+ is not GRAND.
    name = re.sub(r"[^a-z0-9.]+", "-", re.sub(r"(?<=\w)\+", "-plus", row.lower())).strip("-")
    return f"{table}/{dataset}/{name}" + ("" if split is None else f"/split-{split}") + ".json"
