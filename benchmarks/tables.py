"""The tables of docs/reference/benchmarks.md, written from the records."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from typing import Any

import ledger

from magna.bench.comparison import BUSY_CORES
from magna.paper.render import TextTable, digits

Row = dict[str, Any]


def update() -> None:
    """Write each table between its markers in the document."""
    text = ledger.DOCS.read_text()
    for table_of in (kernels, epochs, scaling, memory, steps, switch_off, loss, ranking):
        name, table = table_of.__name__, table_of()
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        content = f"{begin}\n{table}\n{end}".replace("\\", r"\\")
        text, count = re.subn(f"{begin}.*?{end}", content, text, flags=re.DOTALL)
        assert count == 1, f"{ledger.DOCS} has no place for the {name} table"
    ledger.DOCS.write_text(text)


def kernels() -> str:
    header = ["graph", "precision", "backend", "ms", "±", "× PyG", "peak MB", "error", "× floor"]
    header += ["floor ms: gathers / once"]
    parts = []
    rows = ledger.read_kernels()
    for device, group in groupby(rows, key=lambda row: row["device"]):
        body = [
            [
                row["graph"] + _remarks(row),
                row["dtype"],
                row["backend"],
                digits(float(row["ms"])),
                digits(float(row["ms_spread"])),
                f"{float(row['ratio']):,.1f}" if row["ratio"] and row["peer"] == "pyg" else "",
                f"{int(row['peak_bytes']) / 1e6:,.0f}" if row["peak_bytes"] else "",
                f"{float(row['error']):.0e}",
                f"{float(row['floor_ratio']):,.1f}",
                f"{digits(float(row['floor_ms']))} / {digits(float(row['floor_once_ms']))}",
            ]
            for row in group
        ]
        parts.append(_titled(device, _stamps([row for row in rows if row["device"] == device]), header, body))
    return "\n\n".join(parts)


def _remarks(row: dict[str, str]) -> str:
    busy = float(row["other_cores"] or 0)
    remarks = [row["note"]] if row["note"] else []
    if busy > BUSY_CORES:
        remarks.append(f"{busy:.1f} cores busy elsewhere")
    return f" [{'; '.join(remarks)}]" if remarks else ""


def epochs() -> str:
    header = ["recipe", "settings", "model", "ms", "PyG, ms", "share of PyG's", "scores differ by"]
    parts = []
    for record in ledger.read_json("epoch"):
        rows = record["rows"]
        body = [
            [
                row["recipe"],
                " ".join(row["settings"]) or "recipe's",
                row["model"],
                digits(row["ms"]),
                digits(row["peer_ms"]),
                f"{row['share']:.2f}",
                f"{row['difference']:.0e}",
            ]
            for row in rows
        ]
        parts.append(_titled(rows[-1]["device"], _stamps(rows), header, body))
    return "\n\n".join(parts)


def scaling() -> str:
    parts = []
    for record in ledger.read_json("scaling"):
        body = [
            [
                f"{row['num_edges']:,}",
                f"{row['max_degree']:,}",
                str(row["K"]),
                digits(row["ms"]),
                digits(row["ms_spread"]),
            ]
            for row in record["edges"] + record["hops"]
        ]
        table = _titled(record["device"], _stamps([record]), ["edges", "largest in-degree", "K", "ms", "±"], body)
        lines = [
            f"Fitted exponent in the {axis}: {fit['all']:.2f} overall, {fit['last_step']:.2f} in the last step."
            for axis, fit in record["exponents"].items()
        ]
        parts.append("\n\n".join([table, *lines]))
    return "\n\n".join(parts)


def memory() -> str:
    parts = []
    for record in ledger.read_json("memory"):
        hops = sorted({row["K"] for row in record["rows"]})
        cells = {(row["graph"], row["variant"], row["K"]): row for row in record["rows"]}
        body = []
        for graph, variant in dict.fromkeys((graph, variant) for graph, variant, _ in cells):
            rows = [cells.get((graph, variant, K), {}) for K in hops]
            if any(row.get("peak_bytes") for row in rows):
                body.append([graph, f"{variant}, peak MB", *(_megabytes(row.get("peak_bytes")) for row in rows)])
            if any("ms" in row for row in rows):
                times = ("–" if row.get("ms") is None else f"{row['ms']:,.0f}" for row in rows)
                body.append([graph, f"{variant}, ms", *times])
        header = ["graph", "", *(f"K = {K}" for K in hops)]
        parts.append(_titled(record["device"], _stamps([record]), header, body))
    return "\n\n".join(parts)


def steps() -> str:
    def cells(row: Row) -> list[str]:
        changes, peak = _changes(row["set"]), _megabytes(row.get("peak_bytes"))
        return [row["recipe"], changes, f"{row['batch']:,}", digits(row["ms"]), digits(row["tflops"]), peak]

    return _listed("step", ["recipe", "settings", "queries"], ["ms", "TFLOP/s", "peak MB"], cells)


def _changes(settings: list[str]) -> str:
    """Changes to a recipe; of those to the authors' shape, the ones that differ between its rows."""
    if "model.hidden_channels=512" not in settings:
        return " ".join(settings) or "recipe's"
    named = [value for value in settings if value.startswith(("model.feed_forward", "task.relation", "model.loop"))]
    return f"authors' shape, {' '.join(named)}"


def switch_off() -> str:
    parts = []
    for record in ledger.read_json("switch-off"):
        rows = record["rows"]
        whole = {row["shape"]: min(row["ms"]) for row in rows if row["without"] == "nothing"}
        body = [
            [
                row["shape"],
                row["without"],
                *(f"{ms:.2f}" for ms in row["ms"]),
                f"{100 * (min(row['ms']) / whole[row['shape']] - 1):+.1f}",
            ]
            for row in rows
        ]
        header = ["shape", "without", *(f"round {number}, ms" for number in (1, 2)), "longer by, %"]
        parts.append(_titled(record["device"], _stamps([record]), header, body))
    return "\n\n".join(parts)


def loss() -> str:
    def cells(row: Row) -> list[str]:
        block, peak = f"{row['block']:,}" if row["block"] else "all", _megabytes(row["peak_bytes"])
        return [row["graph"], row["backend"], row["precision"], block, digits(row["ms"]), peak]

    return _listed("loss", ["graph", "backend", "precision", "entities at a time"], ["ms", "peak MB"], cells)


def ranking() -> str:
    def cells(row: Row) -> list[str]:
        size = [f"{row['targets']:,}", f"{row['entities']:,}"]
        return [row["graph"], row["of"], *size, digits(row["seconds"])]

    return _listed("ranking", ["graph", "of", "ranks", "entities"], ["seconds"], cells)


def _listed(study: str, settings: list[str], measured: list[str], cells: Callable[[Row], list[str]]) -> str:
    """A table for each device, with the last row of each setting."""
    tables = []
    for record in ledger.read_json(study):
        body = {tuple(row[: len(settings)]): row for row in map(cells, record["rows"])}
        tables.append(_titled(record["device"], _stamps([record]), settings + measured, list(body.values())))
    return "\n\n".join(tables) or "Not measured yet."


def _titled(device: str, stamps: str, header: list[str], body: list[list[str]]) -> str:
    return f"**{device}** ({stamps})\n\n{TextTable(header, body).markdown()}"


def _stamps(rows: list[dict[str, Any]]) -> str:
    """Date, commit and versions of each run of the rows."""
    seen = dict.fromkeys(
        f"{row['date'][:10]}, commit {row['commit']}, torch {row['torch']}"
        + (f", PyG {row['pyg']}" if row["pyg"] else "")
        for row in rows
    )
    return "; ".join(seen)


def _megabytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.0f}"
