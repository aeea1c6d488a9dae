"""Data and modules that a Python program hands to `train`."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

from torch import nn

from magna.data.pyg import save_pyg
from magna.errors import ArgumentError, DataError


def is_pyg_data(what: Any) -> bool:
    """True for a PyG `Data`; PyG is not imported for that."""
    module = sys.modules.get("torch_geometric.data")
    return module is not None and isinstance(what, module.Data)


def store_data(data: Any, run_dir: Path, resume: bool) -> Path:
    """Write a PyG `Data` beside its run, so that the run can be resumed, evaluated and used; return its folder."""
    if not resume and next(run_dir.glob("**/config.toml"), None) is not None:
        raise DataError(run_dir, "it holds a run already", hint="resume=True, or another run_dir")
    folder = run_dir / "data"
    save_pyg(data, folder)
    return folder


def module_of_seed(module: nn.Module, seeds: int) -> nn.Module:
    """The module that a seed trains: itself, or of several seeds a copy with new starting values."""
    if seeds == 1:
        return module
    module = copy.deepcopy(module)
    reset: Any = getattr(module, "reset_parameters", None)
    if reset is None:
        raise ArgumentError("seeds", seeds, "1 for a module without reset_parameters()")
    reset()
    return module
