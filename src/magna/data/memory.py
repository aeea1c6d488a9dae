"""Graphs in memory of every kind, as data beside a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from magna.data.frames import is_networkx, save_frames, save_networkx
from magna.data.pyg import save_pyg


def in_memory(data: Any) -> Callable[[Path], None] | None:
    """The function that writes a graph from memory into a folder; None for a name, a path or settings.

    >>> in_memory("digits") is None
    True
    """
    if (pyg := sys.modules.get("torch_geometric.data")) is not None and isinstance(data, pyg.Data):
        return partial(save_pyg, data)
    if isinstance(data, tuple) and len(data) == 2:
        return partial(save_frames, *data)
    return partial(save_networkx, data) if is_networkx(data) else None
