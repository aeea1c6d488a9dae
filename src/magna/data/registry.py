"""The public and the embedded data sets, one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magna.config.registry import LINK_TASK, NODE_TASK
from magna.config.tables import NodeDataOptions
from magna.data import arxiv, planetoid, triples
from magna.data.digits import load_digits
from magna.data.families import load_families
from magna.data.node_data import NodeData
from magna.data.planetoid import load_planetoid
from magna.data.store import PublicFile
from magna.data.triples import Triples, load_triples

DataDir = str | Path | None
_PLANETOID = "github.com/kimiyoung/planetoid", "MIT (repository), none stated for the data"
_WORDNET = "WordNet 3.0 licence"
_CONVE, _GRAIL = "github.com/TimDettmers/ConvE", "github.com/kkteru/grail"


@dataclass(frozen=True)
class Dataset:
    """A data set by name; `load` reads it from a data folder, as the settings of the data say."""

    name: str
    task: str
    size: str
    source: str
    licence: str
    load: Callable[[DataDir, NodeDataOptions], NodeData | Triples]
    files: tuple[PublicFile, ...] = ()
    directed: bool = False  # edges have a direction, which `data.undirected` may keep
    features: tuple[str, ...] = ("published",)  # values of `data.features`

    def is_present(self, data_dir: DataDir = None) -> bool:
        """True if the data folder has all of its files."""
        return all(file.present(data_dir) for file in self.files)

    def to_dict(self, data_dir: DataDir = None) -> dict[str, Any]:
        """Words for a listing, and `here`: true if the data folder has the files."""
        words = {name: getattr(self, name) for name in ("name", "task", "size", "source", "licence")}
        return words | {"here": self.is_present(data_dir)}


def _planetoid(name: str, size: str) -> Dataset:
    files = tuple(file for path, file in planetoid.FILES.items() if path.startswith(f"{name}/"))
    return Dataset(name, NODE_TASK, size, *_PLANETOID, lambda at, _: load_planetoid(name, at), files)


def _triples(name: str, size: str, source: str, licence: str) -> Dataset:
    files = triples.files_of(name)
    return Dataset(name, LINK_TASK, size, source, licence, lambda at, _: load_triples(name, at), files)


_ROWS = (
    Dataset(
        "digits",
        NODE_TASK,
        "1,797 nodes, 64 features, 10 classes",
        "embedded: scikit-learn's digits as a k-NN graph",
        "BSD-3-Clause (scikit-learn), CC BY 4.0 (UCI)",
        lambda *_: load_digits(),
    ),
    _planetoid("cora", "2,708 nodes, 5,278 edges, 1,433 features, 7 classes"),
    _planetoid("citeseer", "3,327 nodes, 4,552 edges, 3,703 features, 6 classes"),
    _planetoid("pubmed", "19,717 nodes, 44,324 edges, 500 features, 3 classes"),
    Dataset(
        "ogbn-arxiv",
        NODE_TASK,
        "169,343 nodes, 1,166,243 arcs, 40 classes; stand-in features (OGB's own need its files, ogbn_arxiv/)",
        "github.com/DEEP-PolyU/NetBenchmark, github.com/mims-harvard/GNNGuard, github.com/XiaoxinHe/TAPE",
        "ODC-BY",
        lambda data_dir, config: arxiv.load_arxiv(data_dir, directed=not config.undirected, features=config.features),
        tuple(arxiv.FILES.values()),
        directed=True,
        features=("published", "stand-in"),
    ),
    Dataset(
        "families",
        LINK_TASK,
        "1,560 entities, 16 relations, 26,702 triples",
        "embedded: generated relatives, whose kinship follows from births and marriages",
        "MIT",
        lambda *_: load_families(),
    ),
    _triples("wn18rr", "40,943 entities, 11 relations, 93,003 triples", _CONVE, f"MIT (repository), {_WORDNET}"),
    _triples("fb15k-237", "14,541 entities, 237 relations, 310,116 triples", _CONVE, _PLANETOID[1]),
    _triples("wn18rr-v1", "2,746 entities, 9 relations, 6,678 triples", _GRAIL, f"none stated, {_WORDNET}"),
    _triples("fb15k-237-v1", "1,594 entities, 180 relations, 5,226 triples", _GRAIL, "none stated"),
)
DATASETS = {dataset.name: dataset for dataset in _ROWS}
