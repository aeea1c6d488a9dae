"""Files of an experiment: CSV, LaTeX, SVG and PNG."""

from __future__ import annotations

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from magna.paper.outputs import csv_text, tex_text, write_outputs
from magna.paper.render import TextTable
from magna.paper.studies.sweeps import draw_alpha_sweep, draw_hops_sweep

TABLE = TextTable(["model", "gain, %"], [["`K=1` & more_", "**+1.0 ± 0.1**"], ["no gain", "−0.5"]])


def test_a_table_leaves_csv_and_latex(tmp_path: Path) -> None:
    files = write_outputs("table1", "table", TABLE, "Gains.", None, tmp_path / "new")
    assert files == [str(tmp_path / "new" / f"table1.{ending}") for ending in ("csv", "tex")]
    with Path(files[0]).open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["model", "gain, %"], ["K=1 & more_", "+1.0 ± 0.1"], ["no gain", "−0.5"]]
    tex = Path(files[1]).read_text(encoding="utf-8")
    assert r"\texttt{K=1} \& more\_ & \textbf{+1.0 $\pm$ 0.1} \\" in tex and r"no gain & $-$0.5 \\" in tex
    assert r"gain, \%" in tex and tex.count("{") == tex.count("}")


def test_latex_escapes_what_it_would_read() -> None:
    assert r"50\% \$x\$ a\textasciicircum{}b" in tex_text(TextTable(["50% $x$ a^b"], []), "", "name")
    assert csv_text(TextTable(["a,b"], [['"']])) == '"a,b"\n""""\n'


@pytest.mark.parametrize(("name", "draw"), [("K", draw_hops_sweep), ("alpha", draw_alpha_sweep)])
def test_a_figure_leaves_svg_png_and_csv(tmp_path: Path, name: str, draw: object) -> None:
    pytest.importorskip("matplotlib")
    header = ["data", "model", name, "accuracy, %", "SD", "seeds", "source"]
    rows = [["Cora", "tuned", "0.1", "84.0", "0.5", "2", "ours"], ["Cora", "tuned", "0.5", "83.0", "0.4", "2", "ours"]]
    table = TextTable(header, rows)
    files = write_outputs("fig4c", "figure", table, "Quick form.", draw, tmp_path)  # type: ignore[arg-type]
    contents = {Path(file).suffix: Path(file).read_bytes() for file in files}
    assert list(contents) == [".csv", ".svg", ".png"] and contents[".png"].startswith(b"\x89PNG")
    svg = ElementTree.fromstring(contents[".svg"])
    assert not list(svg.iter("{http://www.w3.org/2000/svg}text")), "letters are outlines"
    again = write_outputs("fig4c", "figure", table, "Quick form.", draw, tmp_path / "again")  # type: ignore[arg-type]
    assert [Path(file).read_bytes() for file in again] == list(contents.values()), "the same bytes"


def test_a_figure_without_cells_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="figure is 'empty'; allowed: one measured cell or more"):
        write_outputs("fig4c", "figure", TextTable(["data"], []), "", draw_hops_sweep, tmp_path)
