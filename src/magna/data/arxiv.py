"""ogbn-arxiv: citation graph, subject areas and the split by year; OGB's files, or the graph with stand-in features."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magna.data.node_data import UNLABELLED, NodeData, Schema, check_finite
from magna.data.store import data_folder, public_files
from magna.errors import DataError

_OGB_HOME = "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
_GITHUB = "https://raw.githubusercontent.com"
_NETBENCHMARK = f"{_GITHUB}/DEEP-PolyU/NetBenchmark/06c884a9448433feadb6131e9e81f8b284685992/data/ogbn-arxiv"
_GNNGUARD = f"{_GITHUB}/mims-harvard/GNNGuard/3b04a988dc57983f72572fadd5d7d786147c663c/Datasets/ogbn_arxiv"
FILES = public_files(
    {
        "ogbn-arxiv/adj_full.npz": f"{_NETBENCHMARK}/adj_full.npz",
        "ogbn-arxiv/role.json.gz": f"{_NETBENCHMARK}/role.json",
        "ogbn-arxiv/node-label.csv.gz": f"{_GNNGUARD}/raw/node-label.csv.gz",
        "ogbn-arxiv/labelidx2arxivcategeory.csv.gz": f"{_GNNGUARD}/mapping/labelidx2arxivcategeory.csv.gz",
        "ogbn-arxiv/gpt_preds.csv.gz": f"{_GITHUB}/XiaoxinHe/TAPE/HEAD/gpt_preds/ogbn-arxiv.csv",
    }
)
_NUM_CLASSES = 40
_STAND_IN = (
    "stand-in features, not OGB's: class guesses of a language model from title and abstract, and the degree; "
    "not comparable with published numbers"
)


def load_arxiv(data_dir: str | Path | None = None, *, directed: bool = False, features: str | None = None) -> NodeData:
    """Read ogbn-arxiv.

    Args:
        data_dir: the data folder.
        directed: keep only the arcs as published, from the citing to the cited paper; otherwise both directions.
        features: "published": OGB's own files, which must be in the data folder (`ogbn_arxiv/raw` and so on);
            "stand-in": the public graph and labels with features made without OGB's files; None: no features.
    """
    if features == "published":
        folder = data_folder(data_dir) / "ogbn_arxiv"
        if not folder.is_dir():
            fault = "it is missing; the features of ogbn-arxiv come with OGB's own files"
            hint = f"to get {_OGB_HOME} and put its folder there, or data.features=stand-in (numbers not comparable)"
            raise DataError(folder, fault, hint=hint)
        data = load_ogb(folder)
    else:
        data = _public_graph(data_dir)
    if features == "stand-in":
        degrees = [torch.bincount(ends, minlength=data.num_nodes) for ends in data.edge_index]
        # log(1 + citations made), log(1 + citations received)
        x = torch.cat([_guesses(data_dir, data.num_nodes), torch.stack(degrees, dim=1).float().log1p()], dim=1)
        data = replace(data, name="ogbn-arxiv (stand-in features)", x=x, notes=(_STAND_IN,))
    return data if directed else data.with_both_directions()


def load_ogb(folder: Path) -> NodeData:
    """Read OGB's own files: gzipped CSV in `raw/`, `split/` and `mapping/`; arcs as published.

    `ogb.nodeproppred` is not used, because its class asks questions on the terminal and leaves a pickle. The tests hold
    both readings, and OGB's evaluator, to the same answers.
    """
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
    check_finite("ogbn-arxiv", torch.from_numpy(x))
    # OGB writes nan for a node without a label.
    y = np.where(np.isnan(labels), UNLABELLED, labels).astype(np.int64)
    train, valid, test = (
        torch.from_numpy(np.sort(_numbers(folder / f"split/time/{part}.csv.gz", np.int64, columns=1)[:, 0]))
        for part in ("train", "valid", "test")
    )
    file = folder / "mapping" / "labelidx2arxivcategeory.csv.gz"
    names = _category_names(file) if file.is_file() else None
    return NodeData(
        "ogbn-arxiv",
        torch.from_numpy(np.ascontiguousarray(edges.T)),
        torch.from_numpy(y),
        len(names) if names else int(y.max()) + 1,
        *(train, valid, test),
        x=torch.from_numpy(x),
        schema=Schema(class_names=names),
    )


def _category_names(file: Path) -> tuple[str, ...]:
    """The names of arXiv's subject areas in the order of the class numbers: `arxiv cs na` is cs.NA."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [line.strip().split(",") for line in list(lines)[1:]]
    by_number = {int(number): text.removeprefix("arxiv ") for number, text in rows}
    areas = [by_number[number].split() for number in range(len(by_number))]
    return tuple(".".join([*area[:-1], area[-1].upper()]) for area in areas)


def _numbers(file: Path, dtype: Any, columns: int | None = None) -> np.ndarray:
    try:
        with gzip.open(file, "rt") as lines, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which is reported later
            values = np.loadtxt(lines, delimiter=",", dtype=dtype, ndmin=2)
    except FileNotFoundError:
        raise DataError(file, "it is missing, and is one of OGB's files") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(file, f"it is not gzipped CSV with numbers ({error})") from None
    if columns is None or values.shape[1] == columns:
        return values
    if values.size == 0:
        return values.reshape(0, columns)
    raise DataError(file, f"it has {values.shape[1]} columns", allowed=f"{columns}")


def _public_graph(data_dir: str | Path | None) -> NodeData:
    """The arcs, labels and split as two public repositories have them; without features."""
    with np.load(FILES["ogbn-arxiv/adj_full.npz"].locate(data_dir)) as matrix:  # sparse rows, as scipy saves them
        citing = np.repeat(np.arange(len(matrix["indptr"]) - 1), np.diff(matrix["indptr"]))
        edge_index = torch.from_numpy(np.stack([citing, matrix["indices"]]).astype(np.int64))
    y = torch.tensor([int(line) for line in _lines("ogbn-arxiv/node-label.csv.gz", data_dir)])
    roles = json.loads("".join(_lines("ogbn-arxiv/role.json.gz", data_dir)))
    train, valid, test = (torch.tensor(sorted(roles[key])) for key in ("tr", "va", "te"))
    names = _category_names(FILES["ogbn-arxiv/labelidx2arxivcategeory.csv.gz"].locate(data_dir))
    return NodeData("ogbn-arxiv", edge_index, y, _NUM_CLASSES, train, valid, test, schema=Schema(class_names=names))


def _guesses(data_dir: str | Path | None, num_nodes: int) -> Tensor:
    """[N, 40]: 1 for the first guess, 1/2 for the second, and so on."""
    x = np.zeros((num_nodes, _NUM_CLASSES), dtype=np.float32)
    lines = (line.strip() for line in _lines("ogbn-arxiv/gpt_preds.csv.gz", data_dir))
    guesses = [
        (node, int(guess), 1 / rank)
        for node, line in enumerate(lines)
        if line
        for rank, guess in enumerate(line.split(","), start=1)
    ]
    node, guess, weight = zip(*guesses, strict=True)
    np.maximum.at(x, (node, guess), weight)  # the better rank counts where a class is named twice
    return torch.from_numpy(x)


def _lines(path: str, data_dir: str | Path | None) -> Iterable[str]:
    file = FILES[path].locate(data_dir)
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        yield from lines
