"""Files → tensors. A data set is one function; `DATASETS` says what there is and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from magna.datasets.arxiv import load_arxiv
from magna.datasets.embedded import load_digits
from magna.datasets.node_data import NodeData, undirected
from magna.datasets.planetoid import NAMES as PLANETOID_NAMES
from magna.datasets.planetoid import load_planetoid
from magna.datasets.store import data_folder, files_of, locate, present
from magna.datasets.triples import Triples, load_triples

__all__ = [
    "DATASETS",
    "Dataset",
    "NodeData",
    "Triples",
    "data_folder",
    "files_of",
    "load_arxiv",
    "load_digits",
    "load_node_data",
    "load_planetoid",
    "load_triples",
    "locate",
    "present",
    "undirected",
]


@dataclass(frozen=True)
class Dataset:
    """What a user wants to know before fetching."""

    name: str
    task: str
    size: str
    source: str
    licence: str


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "digits",
            "node classification",
            "1,797 nodes, 64 features, 10 classes",
            "embedded: scikit-learn's digits as a k-NN graph",
            "BSD-3-Clause (scikit-learn), CC BY 4.0 (UCI)",
        ),
        Dataset(
            "cora",
            "node classification",
            "2,708 nodes, 5,278 edges, 1,433 features, 7 classes",
            "github.com/kimiyoung/planetoid",
            "MIT (repository), none stated for the data",
        ),
        Dataset(
            "citeseer",
            "node classification",
            "3,327 nodes, 4,552 edges, 3,703 features, 6 classes",
            "github.com/kimiyoung/planetoid",
            "MIT (repository), none stated for the data",
        ),
        Dataset(
            "pubmed",
            "node classification",
            "19,717 nodes, 44,324 edges, 500 features, 3 classes",
            "github.com/kimiyoung/planetoid",
            "MIT (repository), none stated for the data",
        ),
        Dataset(
            "ogbn-arxiv",
            "node classification",
            "169,343 nodes, 1,166,243 arcs, 40 classes, without the features",
            "github.com/DEEP-PolyU/NetBenchmark, github.com/mims-harvard/GNNGuard",
            "ODC-BY",
        ),
        Dataset(
            "wn18rr",
            "link prediction",
            "40,943 entities, 11 relations, 93,003 triples",
            "github.com/TimDettmers/ConvE",
            "MIT (repository), WordNet 3.0 licence",
        ),
        Dataset(
            "fb15k-237",
            "link prediction",
            "14,541 entities, 237 relations, 310,116 triples",
            "github.com/TimDettmers/ConvE",
            "MIT (repository), none stated for the data",
        ),
    )
}


def load_node_data(name: str, data_dir: str | Path | None = None) -> NodeData:
    """The graph, features, labels and split of a node-classification data set.

    >>> load_node_data("digits").num_nodes
    1797
    """
    if name == "digits":
        return load_digits()
    if name in PLANETOID_NAMES:
        return load_planetoid(name, data_dir)
    raise ValueError(f"data.name is {name!r}; allowed: digits, {', '.join(PLANETOID_NAMES)}")
