"""Tables and figures of README.md and docs, from the committed results, the settings and the commands.

`python -m tools.report` in the repository writes them again.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.commands import command_sections
from tools.headline import HEADLINES, headline
from tools.recipes import recipe_tables
from tools.settings import TABLES, settings_sections

from magna.paper.cells import CellStore
from magna.paper.outputs import write_outputs
from magna.paper.render import TextTable, digits
from magna.paper.studies.depth import committed_depth, draw_depth
from magna.paper.tables import make_table

OUR_BACKENDS = ("cpu", "triton")
PEER = "pyg"
# The tables of each page, each between its markers.
PAGES = {
    "README.md": (*HEADLINES, "speed-line"),
    "docs/reference/cli.md": ("commands",),
    "docs/reference/settings.md": tuple(TABLES),
    "docs/reference/recipes.md": ("recipes",),
    "docs/reproduction.md": (
        "table1-models",
        "table1-baselines",
        "nodes",
        "nodes-consistency",
        "table2",
        "ablations",
        "switches",
        "table6",
        "random-splits",
        "fig4b",
        "table3",
        "controls",
    ),
}


def speed_table(records: Path) -> TextTable:
    """Our float32 backends on each device and graph beside the PyG loop of the same run.

    Where the last commit was measured several times, the row with the median ratio stands for them.
    """
    runs: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for file in sorted(records.glob("*.csv")):
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                # "triton (CUDA graph)" is the same kernels, captured once and replayed.
                ours = row["backend"].split(" (")[0] in OUR_BACKENDS and row["peer"] == PEER
                if ours and row["dtype"] == "float32":
                    runs.setdefault((row["device"], row["graph"], row["backend"]), []).append(row)
    rows = []
    for key, measured in runs.items():
        latest = [row for row in measured if row["commit"] == measured[-1]["commit"]]
        row = sorted(latest, key=lambda row: float(row["ratio"]))[len(latest) // 2]
        rows.append(
            [
                *key,
                digits(float(row["ms"])),
                digits(float(row["peer_ms"])),
                f"{float(row['ratio']):,.1f} ×",
                str(len(latest)),
            ]
        )
    return TextTable(["device", "graph", "backend", "ms", "PyG loop, ms", "faster", "runs"], rows)


def speed_line(table: TextTable) -> str:
    """Cora on the CPU, and the range of all graphs, in a sentence."""
    ours = [row for row in table.rows if row[2] == "cpu"]
    cora = next(row for row in ours if row[1] == "cora")
    ratios = [row[5].removesuffix(" ×") for row in ours]
    return (
        f"On two CPU cores, softmax and six hops of diffusion on Cora take {cora[3]} ms, forward and backward. "
        f"The same operator as a PyG `MessagePassing` loop takes {cora[4]} ms. Over five graphs the ratio is "
        f"{min(ratios, key=float)} to {max(ratios, key=float)}."
    )


def with_tables(page: str, root: Path, names: Sequence[str] = PAGES["README.md"]) -> str:
    """The text of a page with every table between its markers replaced."""
    for name in names:
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page has no single place for the {name} table; allowed: one {begin} … {end}")
        before, after = page.split(begin)[0], page.split(end)[1]
        page = f"{before}{begin}\n{_table(name, root)}\n{end}{after}"
    return page


def _table(name: str, root: Path) -> str:
    if name == "commands":
        return command_sections()
    if name == "recipes":
        return recipe_tables(root / "results")
    if name in HEADLINES:
        return headline(name, root).markdown()
    if name == "fig4b":
        return committed_depth(root / "results").shown.markdown()
    if name == "speed-line":
        return speed_line(speed_table(root / "benchmarks" / "records"))
    if name in TABLES:
        return settings_sections(name)
    return make_table(name, CellStore(results=root / "results").read).markdown()


def draw_figures(root: Path) -> None:
    """Draw the figures of committed points: of Fig. 4b the picture, and the numbers as CSV."""
    outcome, pictures = committed_depth(root / "results"), root / "docs" / "assets" / "paper"
    with TemporaryDirectory() as folder:
        write_outputs("fig4b", "figure", outcome.table, outcome.caption, draw_depth, Path(folder))
        for ending in ("svg", "csv"):
            (pictures / f"fig4b.{ending}").write_bytes((Path(folder) / f"fig4b.{ending}").read_bytes())


if __name__ == "__main__":
    draw_figures(Path())
    for page, tables in PAGES.items():
        path = Path(page)
        path.write_text(with_tables(path.read_text(encoding="utf-8"), Path(), tables), encoding="utf-8")
