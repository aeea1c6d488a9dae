"""Graphs in memory as the files of a folder: a PyG `Data`, a pair of pandas tables, or a networkx graph."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from magna.config.atomic_files import write_whole
from magna.data.pyg import save_pyg
from magna.errors import DataError

Columns = Mapping[str, Sequence[Any]]


def writer_of(what: Any) -> Callable[[Path], None] | None:
    """A function that writes a graph in memory into a folder as `load_user_graph` reads it; None for anything else.

    A pair of tables is (nodes, edges) with the columns of nodes.csv and edges.csv; without a column `id` the index of
    the nodes has the ids. Attributes of a networkx graph are columns.
    """
    pyg = sys.modules.get("torch_geometric.data")
    if pyg is not None and isinstance(what, pyg.Data):
        return lambda folder: save_pyg(what, folder)
    if isinstance(what, tuple) and len(what) == 2 and all(hasattr(table, "columns") for table in what):
        nodes, edges = (_columns(table) for table in what)
        if "id" not in nodes:
            nodes = {"id": list(what[0].index), **nodes}
        return lambda folder: _write(folder, nodes, edges)
    networkx = sys.modules.get("networkx")
    if networkx is not None and isinstance(what, networkx.Graph):
        nodes = _table(("id",), ((name, values) for name, values in what.nodes(data=True)))
        edges = _table(("source", "target"), ((*ends, values) for *ends, values in what.edges(data=True)))
        return lambda folder: _write(folder, nodes, edges)
    return None


def _columns(table: Any) -> dict[str, Sequence[Any]]:
    return {str(name): table[name].tolist() for name in table.columns}


def _table(names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """Columns of names and of all attributes; a row without an attribute has None."""
    listed = list(rows)
    attributes = list(dict.fromkeys(str(name) for row in listed for name in row[-1]))
    columns: dict[str, Sequence[Any]] = {name: [row[at] for row in listed] for at, name in enumerate(names)}
    return columns | {name: [row[-1].get(name) for row in listed] for name in attributes}


def _write(folder: Path, nodes: Columns, edges: Columns) -> None:
    for stem, columns in (("nodes", nodes), ("edges", edges)):
        table = io.StringIO(newline="")
        writer = csv.writer(table)
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
        path, content = folder / f"{stem}.csv", table.getvalue().encode()
        if path.is_file() and path.read_bytes() != content:
            raise DataError(folder, "it holds other data", hint="another run_dir")
        write_whole(path, content)


def _cell(value: Any) -> str:
    """A value as text; nothing for None and NaN."""
    return "" if value is None or value != value else str(value)
