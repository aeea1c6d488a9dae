"""Figs. 4c and 4d: accuracy against the number of hops and against the teleport."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from magna.data import DATASETS, load_node_data
from magna.data.audit import reach
from magna.errors import ArgumentError
from magna.paper.render import EMPTY, TextTable
from magna.paper.rows import SWEPT_MODELS
from magna.paper.study import Outcome, Rows, as_rows, column
from magna.paper.style import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = dict(zip(SWEPT_MODELS, (BLUE, ORANGE), strict=True))
_PAPER_PATHS = {"Cora": 5.27}  # the mean path length in the paper's text
_PATH, _LEVEL = "mean path length", 0.9
_DRAWS = 10_000


class BestHops(NamedTuple):
    """The K with the best mean accuracy, and the range of those that may be the best."""

    best: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.best} ({self.low} to {self.high})"


def compare_with_path_length(table: TextTable, caption: str, data_dir: str | Path | None) -> Outcome:
    """The accuracies by K with the mean path length of each data set, and the best K of each model beside it."""
    names = list(dict.fromkeys(row[0] for row in table.rows))
    lengths = {name: measured_path_length(name.lower(), data_dir) for name in names}
    texts = {name: EMPTY if length is None else f"{length:.2f}" for name, length in lengths.items()}
    whole = TextTable([*table.header, _PATH], [[*row, texts[row[0]]] for row in table.rows])
    rows, lines = as_rows(whole), []
    for name, model in product(names, _COLOURS):
        if (best := best_hops(rows, name, model)) is not None:
            length = lengths[name]
            holds = EMPTY if length is None else "yes" if best.low <= round(length) <= best.high else "no"
            paper = f"{_PAPER_PATHS[name]}" if name in _PAPER_PATHS else EMPTY
            lines.append([name, model, str(best), texts[name], paper, holds])
    header = ["data", "model", f"best K ({_LEVEL:.0%})", _PATH, "paper", "K follows it"]
    caption += (
        f" Shaded: the values of K that are best in {_LEVEL:.0%} of draws from the means and their standard errors. "
        "Dashed: mean path length of the largest component, measured; dotted: as the paper has it."
    )
    return Outcome(whole, caption, TextTable(header, lines))


def measured_path_length(dataset: str, data_dir: str | Path | None) -> float | None:
    """Mean length of the shortest paths between all nodes of the largest component; None without the data."""
    if not DATASETS[dataset].is_present(data_dir):
        return None
    length: float | None = reach(load_node_data(dataset, data_dir))[1]["mean"]
    return length


def best_hops(rows: Rows, dataset: str, model: str) -> BestHops | None:
    """The best K of a model on a data set; None without a measured K.

    The range leaves out 5 % of draws on either side: each draws the mean accuracy of every K from a normal distribution
    with its standard error, and takes the K that is then the best.
    """
    where = {"data": dataset, "model": model}
    hops, means, deviations, seeds = (column(rows, name, **where) for name in ("K", "accuracy, %", "SD", "seeds"))
    if not hops:
        return None
    mean, values = torch.tensor(means), torch.tensor(hops)
    errors = torch.tensor(deviations) / torch.tensor(seeds).sqrt()
    draws = mean + errors * torch.randn(_DRAWS, len(hops), generator=torch.Generator().manual_seed(0))
    best = values[draws.argmax(1)].sort().values
    outside = round((1 - _LEVEL) / 2 * _DRAWS)
    return BestHops(int(values[mean.argmax()]), int(best[outside]), int(best[-1 - outside]))


def draw_hops_sweep(rows: Rows, caption: str) -> Figure:
    """Accuracy against K; lines are the mean path lengths, ours and the paper's, and shades the range of the best K."""
    figure, panels = _draw(rows, "K", "hops K", caption)
    for panel, dataset in zip(panels, _datasets(rows), strict=True):
        panel.set_xticks(sorted({*column(rows, "K", data=dataset)}))
        for model, colour in _COLOURS.items():
            if (best := best_hops(rows, dataset, model)) is not None:
                panel.axvspan(best.low - 0.15, best.high + 0.15, color=colour, alpha=0.1, linewidth=0)
        measured = {row.get(_PATH, EMPTY) for row in rows if row["data"] == dataset} - {EMPTY}
        lengths = [(float(length), "--", "mean path length") for length in measured]
        if dataset in _PAPER_PATHS:
            lengths.append((_PAPER_PATHS[dataset], ":", "the paper's"))
        for length, style, label in lengths:
            panel.axvline(length, color=GREY, linewidth=1, linestyle=style, label=label)
        panel.legend(fontsize=6.5)
    return figure


def draw_alpha_sweep(rows: Rows, caption: str) -> Figure:
    """Accuracy against alpha; the dotted line is where the paper sees the fall begin."""
    figure, panels = _draw(rows, "alpha", "teleport probability alpha", caption)
    for panel in panels:
        panel.axvline(0.25, color=GREY, linewidth=1, linestyle=":", label="the paper's 0.25")
        panel.legend()
    return figure


def _datasets(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["data"] for row in rows))


def _draw(rows: Rows, name: str, label: str, caption: str) -> tuple[Figure, list[Any]]:
    """A panel for each data set, a line for each model, with the deviation over its seeds."""
    datasets = _datasets(rows)
    if not datasets:
        raise ArgumentError("figure", "empty", "one measured cell or more", "the same command without --out")
    figure, panels = new_figure(len(datasets), 2.5, f"{caption} Mean and standard deviation over the seeds.")
    for panel, dataset in zip(panels, datasets, strict=True):
        for model, colour in _COLOURS.items():
            where = {"data": dataset, "model": model}
            values, means, deviations = (column(rows, each, **where) for each in (name, "accuracy, %", "SD"))
            if values:
                panel.errorbar(
                    values, means, deviations, color=colour, marker="o", capsize=2, elinewidth=0.9, label=model
                )
        panel.set(title=dataset, xlabel=label, ylabel="test accuracy, %")
        panel.legend()
    return figure, panels
