"""Numbers that others published: accuracy in percent with its standard deviation where one was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

DATASETS = ("cora", "citeseer", "pubmed")


class Figure(NamedTuple):
    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


class Row(NamedTuple):
    """One line of somebody's table."""

    model: str
    source: str
    figures: Mapping[str, Figure]


def _row(model: str, source: str, *figures: float | tuple[float, float]) -> Row:
    values = (Figure(*figure) if isinstance(figure, tuple) else Figure(figure) for figure in figures)
    return Row(model, source, dict(zip(DATASETS, values, strict=True)))


_TABLE_1 = "MAGNA paper, Table 1"
_RANDOM_SPLITS = "MAGNA paper, appendix, random splits"

MAGNA_PAPER = _row("MAGNA, the paper", _TABLE_1, (85.4, 0.6), (73.7, 0.5), (81.4, 0.2))

# Public split.
TABLE_1 = (
    _row("GCN", _TABLE_1, 81.5, 70.3, 79.0),
    _row("GAT", _TABLE_1, (83.0, 0.7), (72.5, 0.7), (79.0, 0.3)),
    _row("APPNP", _TABLE_1, (84.3, 0.2), (71.1, 0.4), (79.7, 0.3)),
    _row("Diff-GCN", _TABLE_1, (83.6, 0.2), (73.4, 0.3), (79.6, 0.4)),
    _row("DAGNN", "Liu et al. 2020, 100 runs", (84.4, 0.5), (73.3, 0.6), (80.5, 0.5)),
    _row("GCNII", "Chen et al. 2020", 85.5, 73.4, 80.3),
    _row("GRAND", "Feng et al. 2020, 100 runs", (85.4, 0.4), (75.4, 0.4), (82.7, 0.6)),
    MAGNA_PAPER,
)

ABLATIONS = {
    row.model: row
    for row in (
        _row("No LayerNorm", _TABLE_1, (83.8, 0.6), (71.1, 0.5), (79.8, 0.2)),
        _row("No Diffusion", _TABLE_1, (83.0, 0.4), (71.6, 0.4), (79.3, 0.3)),
        _row("No Feed-Forward", _TABLE_1, (84.9, 0.4), (72.2, 0.3), (80.9, 0.3)),
        _row("No (LayerNorm + Feed-Forward)", _TABLE_1, (84.3, 0.6), (72.6, 0.4), (79.6, 0.4)),
    )
}

# Ten random splits; the deviation is over them.
RANDOM_SPLITS = {
    row.model: row
    for row in (
        _row("MAGNA", _RANDOM_SPLITS, (83.6, 1.2), (72.1, 1.2), (80.3, 2.4)),
        _row("GAT", _RANDOM_SPLITS, (82.2, 1.4), (71.0, 1.2), (78.3, 3.0)),
        _row("Diff-GCN", _RANDOM_SPLITS, (83.6, 1.8), (71.7, 1.1), (79.6, 2.5)),
    )
}
