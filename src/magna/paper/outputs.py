"""Files of an experiment: CSV and LaTeX of a table; SVG, PNG and CSV of a figure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from magna.config.atomic_files import make_folder, write_whole
from magna.paper.registry import Kind
from magna.paper.render import TextTable
from magna.paper.study import Rows, as_rows
from magna.paper.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Rows, str], "Figure"]  # lines of the CSV file and the caption

_TEX = {letter: rf"\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "−": "$-$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "×": r"$\times$",
    "λ": r"$\lambda$",
    "𝒜": r"$\mathcal{A}$",
    "‖": r"$\Vert$",
    "∞": r"$\infty$",
    "α": r"$\alpha$",
    "²": "$^2$",
    "…": r"\dots{}",
    "–": "--",
    "—": "---",
}
_MARKED = re.compile(r"\*\*(.+?)\*\*|`(.+?)`")


def write_outputs(name: str, kind: Kind, table: TextTable, caption: str, draw: Draw | None, out: Path) -> list[str]:
    """Write the files of an experiment into a folder and return their paths.

    A table whose columns are those of its CSV file is written as it is; a figure is drawn from its CSV lines.
    """
    folder = make_folder(out, "out")
    files = {"csv": csv_text(table).encode()}
    if kind == "table":
        files["tex"] = tex_text(table, caption, name).encode()
    else:
        assert draw is not None, f"{name} has no function that draws it"
        files |= _pictures(draw, table, caption)
    for ending, content in files.items():
        write_whole(folder / f"{name}.{ending}", content, again="the same command")
    return [str(folder / f"{name}.{ending}") for ending in files]


def csv_text(table: TextTable) -> str:
    """A table as CSV, without marks of Markdown.

    >>> print(csv_text(TextTable(["model", "gain"], [["`K=1`", "**+1.0 ± 0.1**"]])), end="")
    model,gain
    K=1,+1.0 ± 0.1
    """
    text = io.StringIO(newline="")
    plain = ([_MARKED.sub(lambda m: m[1] or m[2], cell) for cell in row] for row in (table.header, *table.rows))
    csv.writer(text, lineterminator="\n").writerows(plain)
    return text.getvalue()


def tex_text(table: TextTable, caption: str, name: str) -> str:
    r"""A table in LaTeX for the package booktabs.

    >>> print(tex_text(TextTable(["model", "gain"], [["K=1", "**+1.0 ± 0.1**"]]), "Gains.", "gains"))
    \begin{table}
      \centering
      \caption{Gains.}
      \label{table:gains}
      \begin{tabular}{ll}
        \toprule
        model & gain \\
        \midrule
        K=1 & \textbf{+1.0 $\pm$ 0.1} \\
        \bottomrule
      \end{tabular}
    \end{table}
    <BLANKLINE>
    """
    lines = [" & ".join(map(_tex, row)) + r" \\" for row in (table.header, *table.rows)]
    body = [rf"\begin{{tabular}}{{{'l' * len(table.header)}}}", r"  \toprule", f"  {lines[0]}", r"  \midrule"]
    body += [*(f"  {line}" for line in lines[1:]), r"  \bottomrule", r"\end{tabular}"]
    head = [r"\centering", rf"\caption{{{_tex(caption)}}}", rf"\label{{table:{name}}}"]
    return "\n".join([r"\begin{table}", *(f"  {line}" for line in (*head, *body)), r"\end{table}"]) + "\n"


def _tex(text: str) -> str:
    """A text of a cell in LaTeX: letters escaped, marks of Markdown as bold and typewriter."""
    parts, end = [], 0
    for mark in _MARKED.finditer(text):
        parts.append(_escaped(text[end : mark.start()]))
        parts.append(rf"\textbf{{{_escaped(mark[1])}}}" if mark[1] else rf"\texttt{{{_escaped(mark[2])}}}")
        end = mark.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)


def _pictures(draw: Draw, table: TextTable, caption: str) -> dict[str, bytes]:
    pictures = {}
    with styled():
        figure = draw(as_rows(table), caption)
        # Without dates and versions, so that the same rows give the same bytes.
        for form, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            content = io.BytesIO()
            figure.savefig(content, format=form, metadata=metadata)
            pictures[form] = content.getvalue()
    return pictures
