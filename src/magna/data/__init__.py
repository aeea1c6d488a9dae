"""Files → tensors. A data set is one function; `DATASETS` says what there is and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from magna.config.atomic_files import name_fault
from magna.config.path_kind import kind_of
from magna.config.schema import DataConfig
from magna.data.arxiv import load_arxiv
from magna.data.digits import load_digits
from magna.data.families import load_families
from magna.data.knowledge_graph import Answers, KnowledgeGraph, Ranking, load_knowledge_graph
from magna.data.node_data import NodeData, Schema, undirected
from magna.data.planetoid import NAMES as PLANETOID_NAMES
from magna.data.planetoid import load_planetoid
from magna.data.splits import with_drawn_split, with_random_split
from magna.data.store import data_folder, files_of, locate, present
from magna.data.triples import Triples, load_triples
from magna.data.user_graph import load_own

__all__ = [
    "DATASETS",
    "Answers",
    "Dataset",
    "KnowledgeGraph",
    "NodeData",
    "Ranking",
    "Schema",
    "Triples",
    "data_folder",
    "files_of",
    "from_anywhere",
    "load_arxiv",
    "load_digits",
    "load_families",
    "load_knowledge_graph",
    "load_new_graph",
    "load_node_data",
    "load_own",
    "load_planetoid",
    "load_triples",
    "locate",
    "prepare",
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
            "169,343 nodes, 1,166,243 arcs, 40 classes; stand-in features (OGB's own need its files, ogbn_arxiv/)",
            "github.com/DEEP-PolyU/NetBenchmark, github.com/mims-harvard/GNNGuard, github.com/XiaoxinHe/TAPE",
            "ODC-BY",
        ),
        Dataset(
            "families",
            "link prediction",
            "1,560 entities, 16 relations, 26,702 triples",
            "embedded: generated relatives, whose kinship follows from births and marriages",
            "MIT",
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


def load_node_data(
    data: DataConfig | str, data_dir: str | Path | None = None, scaled_like: Schema | None = None
) -> NodeData:
    """The graph, features, labels and split that a recipe's [data] names; a name or path alone means its defaults.

    Features are standardised as `scaled_like` says, where it does: a model wants them as in its training.

    >>> load_node_data("digits").num_nodes
    1797
    """
    config = DataConfig(name=data) if isinstance(data, str) else data
    loaded = _read(config, data_dir)
    if loaded.schema.class_names is None:
        numbered = tuple(map(str, range(loaded.num_classes)))
        loaded = replace(loaded, schema=replace(loaded.schema, class_names=numbered))
    if config.split == "random":
        loaded = with_random_split(loaded, config.split_seed)
    elif loaded.train.numel() == 0 and loaded.num_classes > 0:
        loaded = with_drawn_split(loaded, config.split_seed)
    elif loaded.train.numel() > 0 and config.split_seed != DataConfig.split_seed:
        raise ValueError(
            f"data.split_seed is {config.split_seed}, but {loaded.name} has a split of its own; try data.split=random"
        )
    if not config.standardise_features:
        return loaded
    if scaled_like is not None:
        shift, scale = scaled_like.feature_shift, scaled_like.feature_scale
        loaded = replace(loaded, schema=replace(loaded.schema, feature_shift=shift, feature_scale=scale))
    return loaded.with_standardised_features()


def load_new_graph(path: str | Path, config: DataConfig, schema: Schema) -> NodeData:
    """Another graph for a model that was trained with `config` on data with this schema.

    Features, classes and edge types are those of training, by name; a column too few or too many is an error. Without a
    column `split`, all labelled nodes are the test split.
    """
    if kind_of(path) == "triples":
        raise ValueError(f"{path} holds triples; allowed: a graph as in training, such as nodes.csv and edges.csv")
    data = load_own(path, like=schema)
    if config.undirected:
        data = data.with_both_directions()
    if data.train.numel() + data.valid.numel() + data.test.numel() == 0:
        data = replace(data, test=(data.y >= 0).nonzero().squeeze(1))
    return data.with_standardised_features() if config.standardise_features else data


def from_anywhere(config: DataConfig, data: str | Path | None = None) -> DataConfig:
    """The same data, or other `data` in its place, whatever folder one is in: the path of your own is made absolute.

    Your own folder may be called as a public data set is. A name in the settings then means the public one; `data`,
    which is given as a path, means the folder.
    """
    name = config.name if data is None else str(data)
    if (data is None and name in DATASETS) or not Path(name).exists():
        return replace(config, name=name)
    path = Path(name).resolve()
    if fault := name_fault(path):
        raise ValueError(f"{str(path)!r} cannot be written down in a run folder: {fault}; try to rename it")
    return replace(config, name=str(path))


def prepare(data: NodeData, config: DataConfig) -> NodeData:
    """What a model is fed: features normalised by row and self-loops, as the settings say."""
    if config.normalise_features and data.x is not None:
        data = data.with_row_normalised_features()
    return data.with_self_loops() if config.self_loops else data


def _read(config: DataConfig, data_dir: str | Path | None) -> NodeData:
    name = config.name
    if config.features != "published" and name != "ogbn-arxiv":
        raise ValueError(
            f"data.features is {config.features!r} for {name}; allowed: published (ogbn-arxiv has stand-ins)"
        )
    if name == "ogbn-arxiv":
        return load_arxiv(data_dir, directed=not config.undirected, features=config.features)
    if name == "digits" or name in PLANETOID_NAMES:
        if not config.undirected:
            raise ValueError(f"data.undirected is false; allowed: true for {name}, whose edges have no direction")
        return load_digits() if name == "digits" else load_planetoid(name, data_dir)
    if not Path(name).exists():
        public = [known.name for known in DATASETS.values() if known.task == "node classification"]
        raise ValueError(
            f"data.name is {name!r}; allowed: {', '.join(public)}, or the path of a folder with nodes.csv and "
            "edges.csv, or of a .pt file"
        )
    own = load_own(name)
    return own.with_both_directions() if config.undirected else own
