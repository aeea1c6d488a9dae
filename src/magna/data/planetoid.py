"""Cora, Citeseer and Pubmed with the public split of Yang et al. (2016), read from the published pickles."""

from __future__ import annotations

import pickle
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from magna.data.node_data import UNLABELLED, NodeData, undirected
from magna.data.store import public_files
from magna.errors import ArgumentError, DataError, listed

NAMES = ("cora", "citeseer", "pubmed")
_NUM_VALID = 500
_HOME = "https://raw.githubusercontent.com/kimiyoung/planetoid/HEAD/data"
_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
FILES = public_files({f"{name}/ind.{name}.{part}": f"{_HOME}/ind.{name}.{part}" for name in NAMES for part in _PARTS})


class _SparseRows:
    """The fields of a pickled `scipy.sparse.csr_matrix`, which is all that is needed of scipy."""

    _shape: tuple[int, int]
    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray

    def toarray(self) -> np.ndarray:
        dense = np.zeros(self._shape, dtype=self.data.dtype)
        rows = np.repeat(np.arange(self._shape[0]), np.diff(self.indptr))
        np.add.at(dense, (rows, self.indices), self.data)
        return dense


# Every name in the eight files of a data set, and what it means today; any other name in a pickle is refused.
_ALLOWED_GLOBALS = {
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "numpy.core.multiarray._reconstruct": import_module("numpy._core.multiarray")._reconstruct,
    "scipy.sparse.csr.csr_matrix": _SparseRows,
    "collections.defaultdict": defaultdict,
    "__builtin__.list": list,
}


def load_planetoid(name: str, data_dir: str | Path | None = None) -> NodeData:
    """Read `cora`, `citeseer` or `pubmed`: undirected, without duplicates and self-loops.

    Nodes that lie in the range of test ids but have no features (15 in Citeseer) get a row of zeros, no label and no
    split.
    """
    if name not in NAMES:
        raise ArgumentError("name", name, NAMES)

    def read(part: str) -> Any:
        return read_restricted(FILES[f"{name}/ind.{name}.{part}"].locate(data_dir))

    test_file = FILES[f"{name}/ind.{name}.test.index"].locate(data_dir)
    test = np.array([int(line) for line in test_file.read_text().split()])
    rest_x, test_x = (read(part).toarray() for part in ("allx", "tx"))
    rest_y, test_y = (read(part) for part in ("ally", "ty"))
    num_train = len(read("y"))

    num_nodes = max(rest_x.shape[0], int(test.max()) + 1)
    x = np.zeros((num_nodes, rest_x.shape[1]), dtype=np.float32)
    x[: rest_x.shape[0]] = rest_x
    x[test] = test_x
    y = np.full(num_nodes, UNLABELLED, dtype=np.int64)
    y[: len(rest_y)] = rest_y.argmax(1)
    y[test] = test_y.argmax(1)

    pairs = np.array([(i, j) for i, neighbours in read("graph").items() for j in neighbours], dtype=np.int64)
    source, target = torch.from_numpy(pairs).unbind(1)
    train, valid = torch.arange(num_train + _NUM_VALID).split([num_train, _NUM_VALID])
    return NodeData(
        name,
        undirected(source, target, num_nodes),
        torch.from_numpy(y),
        rest_y.shape[1],
        *(train, valid, torch.from_numpy(np.sort(test))),
        x=torch.from_numpy(x),
    )


def read_restricted(path: Path) -> Any:
    """Unpickle a Planetoid file; a pickle that names anything but arrays, matrices and lists is refused."""

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if f"{module}.{name}" not in _ALLOWED_GLOBALS:
                raise DataError(path, f"the pickle asks for {module}.{name}", allowed=listed(_ALLOWED_GLOBALS))
            return _ALLOWED_GLOBALS[f"{module}.{name}"]

    with path.open("rb") as file:
        return Restricted(file, encoding="latin1").load()
