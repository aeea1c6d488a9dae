"""Node data sets in OGB's own files: gzipped CSV in `raw/`, `split/` and `mapping/`, as the `ogb` package leaves them.

The files are read here and not through `ogb.nodeproppred`, because that class asks questions on the terminal and keeps
a pickle beside them; the tests hold both readings, and OGB's evaluator, to the same answers.
"""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from magna.data.node_data import UNLABELLED, NodeData, Schema, check_finite
from magna.errors import DataError


def load_ogb(folder: Path, name: str) -> NodeData:
    """Read one undivided graph with its features, labels and standard split; edges as published, in one direction."""
    raw = folder / "raw"
    num_nodes = int(_numbers(raw / "num-node-list.csv.gz", np.int64)[0, 0])
    edges = _numbers(raw / "edge.csv.gz", np.int64, columns=2)
    x = _numbers(raw / "node-feat.csv.gz", np.float32)
    labels = _numbers(raw / "node-label.csv.gz", np.float64, columns=1)[:, 0]
    for part, values in (("node-feat", x), ("node-label", labels)):
        if len(values) != num_nodes:
            allowed = f"{num_nodes}, one for each node"
            raise DataError(raw / f"{part}.csv.gz", f"it has {len(values)} lines", allowed=allowed)
    outside = edges[(edges < 0) | (edges >= num_nodes)]
    if outside.size:
        raise DataError(raw / "edge.csv.gz", f"it has an edge to node {outside[0]}", allowed=f"0 to {num_nodes - 1}")
    check_finite(name, torch.from_numpy(x))
    # OGB writes nan for a node without a label.
    y = np.where(np.isnan(labels), UNLABELLED, labels).astype(np.int64)
    splits = [path for path in (folder / "split").glob("*") if path.is_dir()]
    if len(splits) != 1:
        raise DataError(folder / "split", f"it has {len(splits)} folders", allowed="one, such as split/time")
    train, valid, test = (
        torch.from_numpy(np.sort(_numbers(splits[0] / f"{part}.csv.gz", np.int64, columns=1)[:, 0]))
        for part in ("train", "valid", "test")
    )
    names = folder / "mapping" / "labelidx2arxivcategeory.csv.gz"
    class_names = category_names(names) if names.is_file() else None
    return NodeData(
        name=name,
        edge_index=torch.from_numpy(np.ascontiguousarray(edges.T)),
        y=torch.from_numpy(y),
        num_classes=len(class_names) if class_names else int(y.max()) + 1,
        train=train,
        valid=valid,
        test=test,
        x=torch.from_numpy(x),
        schema=Schema(class_names=class_names),
    )


def category_names(file: Path) -> tuple[str, ...]:
    """The names of arXiv's subject areas in the order of the class numbers: `arxiv cs na` is cs.NA."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [line.strip().split(",") for line in list(lines)[1:]]
    by_number = {int(number): text.removeprefix("arxiv ") for number, text in rows}
    areas = [by_number[number].split() for number in range(len(by_number))]
    return tuple(".".join([*area[:-1], area[-1].upper()]) for area in areas)


def _numbers(file: Path, dtype: Any, columns: int | None = None) -> np.ndarray:
    try:
        with gzip.open(file, "rt") as lines, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which is reported below
            values = np.loadtxt(lines, delimiter=",", dtype=dtype, ndmin=2)
    except FileNotFoundError:
        raise DataError(file, "it is missing, and is one of OGB's files") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(file, f"it is not gzipped CSV with numbers ({error})") from None
    if columns is None:
        return values
    if values.size == 0:
        return values.reshape(0, columns)
    if values.shape[1] != columns:
        raise DataError(file, f"it has {values.shape[1]} columns", allowed=f"{columns}")
    return values
