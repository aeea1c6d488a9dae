"""One style for all figures: colours that colour-blind readers tell apart, and outlines in place of fonts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from magna.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito 2008, without yellow, which is too light for lines.
BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#6E6E6E"
WIDTH = 6.8  # inches, two columns
DPI = 300
_CAPTION_LETTERS, _CAPTION_LINE = 125, 0.155  # letters a line, inches a line
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "legend.frameon": True,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "legend.fontsize": 8,
    "svg.fonttype": "path",  # the same look without the font
    "svg.hashsalt": "magna",  # the same bytes again
    "savefig.dpi": DPI,
}


def import_pyplot() -> Any:
    """Matplotlib's `pyplot` without a display; a missing package is one line."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("a figure", "matplotlib", "paper") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


@contextmanager
def styled() -> Iterator[Any]:
    """Matplotlib's `pyplot` in the style of all figures; its figures are closed at the end."""
    pyplot = import_pyplot()
    with pyplot.rc_context(_STYLE):
        try:
            yield pyplot
        finally:
            pyplot.close("all")


def new_figure(columns: int, height: float, caption: str) -> tuple[Figure, list[Any]]:
    """A figure with panels side by side above its caption, and the axes of the panels; `height` in inches."""
    lines = textwrap.wrap(caption, _CAPTION_LETTERS)
    below = _CAPTION_LINE * len(lines) + 0.08
    whole = height + below
    figure: Figure = import_pyplot().figure(figsize=(WIDTH, whole))
    figure.set_layout_engine("constrained", rect=(0, below / whole, 1, height / whole))
    panels = figure.subplots(1, columns, squeeze=False)[0]
    figure.text(0.01, 0.06 / whole, "\n".join(lines), fontsize=7.5, va="bottom", linespacing=1.25)
    return figure, list(panels)
