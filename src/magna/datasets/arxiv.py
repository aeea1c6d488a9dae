"""ogbn-arxiv: citation graph, subject areas and the split by year. The published features are not among the files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import torch

from magna.datasets.node_data import NodeData, undirected
from magna.datasets.store import locate

_NUM_CLASSES = 40


def load_arxiv(data_dir: str | Path | None = None, *, directed: bool = False) -> NodeData:
    """Read the ogbn-arxiv graph; `x` is None.

    Args:
        data_dir: the data folder.
        directed: keep only the arcs as published, from the citing to the cited paper; otherwise both directions.
    """
    from scipy.sparse import load_npz  # only this data set needs it

    citing = load_npz(locate("ogbn-arxiv/adj_full.npz", data_dir)).tocoo()
    source, target = (torch.from_numpy(np.asarray(part, dtype=np.int64)) for part in (citing.row, citing.col))
    with gzip.open(locate("ogbn-arxiv/node-label.csv.gz", data_dir), "rt") as lines:
        y = torch.tensor([int(line) for line in lines])
    role = locate("ogbn-arxiv/role.json.gz", data_dir)
    role_bytes = role.read_bytes()
    roles = json.loads(gzip.decompress(role_bytes) if role.suffix == ".gz" else role_bytes)
    train, valid, test = (torch.tensor(sorted(roles[key])) for key in ("tr", "va", "te"))
    return NodeData(
        name="ogbn-arxiv",
        edge_index=torch.stack([source, target]) if directed else undirected(source, target, y.numel()),
        y=y,
        num_classes=_NUM_CLASSES,
        train=train,
        valid=valid,
        test=test,
    )
