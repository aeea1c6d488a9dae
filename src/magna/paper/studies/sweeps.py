"""Figs. 4c and 4d: accuracy against the number of hops and against the teleport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magna.errors import ArgumentError
from magna.paper.experiments import SWEPT_MODELS
from magna.paper.study import Rows, column
from magna.paper.style import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = dict(zip(SWEPT_MODELS, (BLUE, ORANGE), strict=True))
_PATHS = {"Cora": 5.27}  # the mean path length in the paper's text


def draw_hops_sweep(rows: Rows, caption: str) -> Figure:
    """Accuracy against K; the dotted line is the paper's mean path length."""
    figure, panels = _draw(rows, "K", "hops K", caption)
    for panel, dataset in zip(panels, _datasets(rows), strict=True):
        panel.set_xticks(sorted({*column(rows, "K", data=dataset)}))
        if dataset in _PATHS:
            panel.axvline(_PATHS[dataset], color=GREY, linewidth=1, linestyle=":", label="mean path length (paper)")
            panel.legend()
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
