"""The tables of docs/benchmarks.md, written from the records."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from typing import Any

import ledger

from magna.bench.comparison import BUSY_CORES

Row = dict[str, Any]


def update() -> None:
    """Write each table between its markers in the document."""
    text = ledger.DOCS.read_text()
    for table_of in (kernels, epochs, scaling, memory, steps, loss, ranking):
        name, table = table_of.__name__, table_of()
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        text, found = re.subn(f"{begin}.*?{end}", lambda _, t=f"{begin}\n{table}\n{end}": t, text, flags=re.DOTALL)
        assert found == 1, f"{ledger.DOCS} has no place for the {name} table"
    ledger.DOCS.write_text(text)


def kernels() -> str:
    header = ["graph", "heads × width, K", "precision", "backend", "ms", "±", "× PyG", "peak MB", "error", "× floor"]
    header += ["floor ms: gathers / once"]
    parts = []
    rows = ledger.read_kernels()
    for device, group in groupby(rows, key=lambda row: row["device"]):
        body = [
            [
                f"{row['graph']} ({int(row['num_nodes']):,} nodes, {int(row['num_edges']):,} edges)" + _remarks(row),
                f"{row['heads']} × {row['width']}, {row['K']}",
                row["dtype"],
                row["backend"],
                _digits(row["ms"]),
                _digits(row["ms_spread"]),
                f"{float(row['ratio']):,.1f}" if row["ratio"] and row["peer"] == "pyg" else "",
                f"{int(row['peak_bytes']) / 1e6:,.0f}" if row["peak_bytes"] else "",
                f"{float(row['error']):.0e}",
                f"{float(row['floor_ratio']):,.1f}",
                f"{_digits(row['floor_ms'])} / {_digits(row['floor_once_ms'])}",
            ]
            for row in group
        ]
        parts.append(_titled(device, _stamps([row for row in rows if row["device"] == device]), header, body))
    return "\n\n".join(parts)


def _remarks(row: dict[str, str]) -> str:
    busy = float(row["other_cores"] or 0)
    remarks = [row["note"]] if row["note"] else []
    if busy > BUSY_CORES:
        remarks.append(f"{busy:.1f} cores busy with something else")
    return f" [{'; '.join(remarks)}]" if remarks else ""


def epochs() -> str:
    header = ["recipe", "settings", "model", "ms", "PyG, ms", "share of PyG's", "scores differ by"]
    parts = []
    for record in ledger.read_json("epoch"):
        rows = record["rows"]
        body = [
            [
                row["recipe"],
                " ".join(row["settings"]) or "its own",
                row["model"],
                _digits(row["ms"]),
                _digits(row["peer_ms"]),
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
                _digits(row["ms"]),
                _digits(row["ms_spread"]),
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
        cells = {(row["graph"], row["variant"], row["K"]): row["peak_bytes"] for row in record["rows"]}
        lines = dict.fromkeys((graph, variant) for graph, variant, _ in cells)
        body = [
            [graph, variant, *(_megabytes(cells.get((graph, variant, K))) for K in hops)] for graph, variant in lines
        ]
        header = ["graph", "peak MB", *(f"K = {K}" for K in hops)]
        parts.append(_titled(record["device"], _stamps([record]), header, body))
    return "\n\n".join(parts)


def steps() -> str:
    def cells(row: Row) -> list[str]:
        settings, peak = " ".join(row["set"]) or "its own", _megabytes(row.get("peak_bytes"))
        return [row["recipe"], settings, f"{row['batch']:,}", _digits(row["ms"]), _digits(row["tflops"]), peak]

    return _listed("step", ["recipe", "settings", "queries"], ["ms", "TFLOP/s", "peak MB"], cells)


def loss() -> str:
    def cells(row: Row) -> list[str]:
        block, peak = f"{row['block']:,}" if row["block"] else "all", _megabytes(row["peak_bytes"])
        return [row["graph"], row["backend"], row["precision"], block, _digits(row["ms"]), peak]

    return _listed("loss", ["graph", "backend", "precision", "entities at a time"], ["ms", "peak MB"], cells)


def ranking() -> str:
    def cells(row: Row) -> list[str]:
        size = [f"{row['targets']:,}", f"{row['entities']:,}"]
        return [row["graph"], row["of"], *size, _digits(row["seconds"])]

    return _listed("ranking", ["graph", "of", "ranks", "entities"], ["seconds"], cells)


def _listed(study: str, given: list[str], measured: list[str], cells: Callable[[Row], list[str]]) -> str:
    """One table for each device: its rows as they stand in the record; of those with the same givens the last."""
    tables = []
    for record in ledger.read_json(study):
        body = {tuple(row[: len(given)]): row for row in map(cells, record["rows"])}
        tables.append(_titled(record["device"], _stamps([record]), given + measured, list(body.values())))
    return "\n\n".join(tables) or "Not measured yet."


def _titled(device: str, stamps: str, header: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *body]]
    return "\n".join([f"**{device}** ({stamps})", "", *lines])


def _stamps(rows: list[dict[str, Any]]) -> str:
    """Date, commit and versions; several where the rows come from several runs."""
    seen = dict.fromkeys(
        f"{row['date'][:10]}, commit {row['commit']}, torch {row['torch']}, PyG {row['pyg']}" for row in rows
    )
    return "; ".join(seen)


def _digits(value: str | float) -> str:
    number = float(value)
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _megabytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.0f}"
