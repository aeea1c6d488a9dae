"""Committed result files → the tables of the README. Reads files, never a model.

`python -m magna.report` in the repository writes the tables anew.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

OUR_BACKENDS = ("cpu", "triton")
PEER = "pyg"


def training_table(results: Path) -> str:
    """Every `results/*.json`, as `magna train --json` printed it, as one row."""
    rows = []
    for file in sorted(results.glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        if result.get("task") != "node_classification":
            continue
        mean, std = result["mean"]["test"]["accuracy"], result["std"]["test"]["accuracy"]
        accuracy = f"{100 * mean:.1f} ± {100 * std:.1f}"
        rows.append([f"`{result['recipe']}`", result["dataset"], accuracy, str(len(result["runs"])), result["device"]])
    return _table(["recipe", "data", "test accuracy, %", "seeds", "device"], rows)


def speed_table(records: Path) -> str:
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
            [*key, _digits(row["ms"]), _digits(row["peer_ms"]), f"{float(row['ratio']):,.1f} ×", str(len(latest))]
        )
    return _table(["device", "graph", "backend", "ms", "PyG loop, ms", "faster", "runs"], rows)


def with_tables(readme: str, root: Path) -> str:
    """The README's text with every table between its markers replaced."""
    tables = {
        "training": training_table(root / "results"),
        "speed": speed_table(root / "benchmarks" / "records"),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if readme.count(begin) != 1 or readme.count(end) != 1:
            raise ValueError(f"the README has no single place for the {name} table; allowed: one {begin} … {end}")
        before, after = readme.split(begin)[0], readme.split(end)[1]
        readme = f"{before}{begin}\n{table}\n{end}{after}"
    return readme


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return "Nothing has been recorded yet."
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *body])


def _digits(number: str) -> str:
    value = float(number)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    path = Path("README.md")
    path.write_text(with_tables(path.read_text(encoding="utf-8"), Path()), encoding="utf-8")
