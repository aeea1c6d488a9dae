"""A small data set in OGB's format."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

N, CLASSES = 30, 3


def write_ogb_files(data_dir: Path) -> None:
    """Write 30 papers of 3 areas, where OGB's own package would put ogbn-arxiv."""
    draw = np.random.Generator(np.random.PCG64(0))
    root = data_dir / "ogbn_arxiv"
    edges = [(i, int(draw.integers(N))) for i in range(N) for _ in range(2)]
    parts: dict[str, list[Any]] = {
        "raw/edge": [f"{source},{target}" for source, target in edges],
        "raw/node-feat": [f"{a:.6f},{b:.6f}" for a, b in draw.normal(size=(N, 2))],
        "raw/node-label": [i % CLASSES for i in range(N)],
        "raw/node_year": [2010 + i % 10 for i in range(N)],
        "raw/num-node-list": [N],
        "raw/num-edge-list": [len(edges)],
        "split/time/train": list(range(20)),
        "split/time/valid": list(range(20, 25)),
        "split/time/test": list(reversed(range(25, 30))),
        "mapping/labelidx2arxivcategeory": ["label,category", "0,arxiv cs na", "1,arxiv cs mm", "2,arxiv cs lo"],
    }
    for name, lines in parts.items():
        file = root / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    (root / "processed").mkdir()
