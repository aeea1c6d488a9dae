"""Tables in memory as the files of a user's graph: pairs of data frames, and networkx graphs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from magna.config.atomic_files import write_whole
from magna.config.columns import FEATURE
from magna.errors import DataError

_EDGE_COLUMNS = ("weight", "type")


def is_frame(value: Any) -> bool:
    """True for a pandas data frame, or what can be used as one."""
    return callable(getattr(value, "to_csv", None)) and hasattr(value, "columns")


def is_networkx(value: Any) -> bool:
    """True for a networkx graph, directed or not, with parallel edges or not."""
    return all(hasattr(value, name) for name in ("nodes", "edges", "is_directed", "is_multigraph"))


def save_frames(nodes: Any, edges: Any, folder: Path) -> None:
    """Write a table of nodes and one of edges as `load_user_graph` reads them; other data there are not replaced.

    A named index is a column, and an index without a name is the `id` of nodes that have none.
    """
    if not (is_frame(nodes) and is_frame(edges)):
        raise DataError("data", "it is not a pair of tables", allowed="(nodes, edges), two pandas DataFrames")
    label = nodes.index.name or (None if "id" in nodes.columns else "id")
    named = label is not None and label not in nodes.columns
    texts = {
        "nodes.csv": _whole(nodes).to_csv(index=named, index_label=label if named else None),
        "edges.csv": _whole(edges).to_csv(index=False),
    }
    _write(folder, texts)


def save_networkx(graph: Any, folder: Path) -> None:
    """Write a networkx graph as `load_user_graph` reads it; other data there are not replaced.

    Attributes of nodes are columns, and one that is a list of numbers is a column for each. Of edges, `weight` and
    `type` keep their meaning, and every other attribute is a feature.
    """
    nodes = [{"id": node} | _flat(values) for node, values in graph.nodes(data=True)]
    edges = [{"source": s, "target": t} | _edge_values(values) for s, t, values in graph.edges(data=True)]
    _write(folder, {"nodes.csv": _csv(nodes, ("id",)), "edges.csv": _csv(edges, ("source", "target"))})


def _whole(frame: Any) -> Any:
    """The frame with true and false as 1 and 0."""
    return frame.astype({name: "int64" for name in frame.columns if str(frame[name].dtype) == "bool"})


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by name; NAME_0, NAME_1 and so on for one that is a list."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, Sequence) and not isinstance(value, str) and name != "label":
            flat |= {f"{name}_{place}": part for place, part in enumerate(value)}
        else:
            flat[str(name)] = int(value) if isinstance(value, bool) else value
    return flat


def _edge_values(values: Mapping[str, Any]) -> dict[str, Any]:
    flat = _flat(values)
    named = (*_EDGE_COLUMNS, FEATURE)
    return {name if name.startswith(named) else f"{FEATURE}{name}": value for name, value in flat.items()}


def _csv(rows: Iterable[Mapping[str, Any]], first: Sequence[str]) -> str:
    """Rows as CSV; a value that a row lacks is empty."""
    rows = list(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys([*first, *(name for row in rows for name in row)])))
    writer.writeheader()
    writer.writerows({name: "" if value != value else value for name, value in row.items()} for row in rows)
    return out.getvalue()


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    contents = {folder / name: text.encode() for name, text in texts.items()}
    if any(path.is_file() and path.read_bytes() != content for path, content in contents.items()):
        raise DataError(folder, "it holds other data", hint="another run_dir")
    for path, content in contents.items():
        write_whole(path, content)
