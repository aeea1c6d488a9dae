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
from magna.data.store import PublicFile
from magna.errors import ArgumentError, DataError, listed

NAMES = ("cora", "citeseer", "pubmed")
_NUM_VALID = 500
_HOME = "https://raw.githubusercontent.com/kimiyoung/planetoid/HEAD/data"
_CHECKSUMS = {
    "cora/ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "cora/ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "cora/ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "cora/ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "cora/ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "cora/ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "cora/ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "cora/ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "citeseer/ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "citeseer/ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "citeseer/ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "citeseer/ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "citeseer/ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "citeseer/ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "citeseer/ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "citeseer/ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "pubmed/ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "pubmed/ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "pubmed/ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "pubmed/ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "pubmed/ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "pubmed/ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "pubmed/ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "pubmed/ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}
FILES = {path: PublicFile(path, checksum, f"{_HOME}/{Path(path).name}") for path, checksum in _CHECKSUMS.items()}


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
    return NodeData(
        name=name,
        edge_index=undirected(torch.from_numpy(pairs[:, 0]), torch.from_numpy(pairs[:, 1]), num_nodes),
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        num_classes=rest_y.shape[1],
        train=torch.arange(num_train),
        valid=torch.arange(num_train, num_train + _NUM_VALID),
        test=torch.from_numpy(np.sort(test)),
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
