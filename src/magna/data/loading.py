"""Data sets by name or path: read, split and prepared for a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from magna.config.path_kind import kind_of
from magna.config.registry import LINK_TASK, NODE_TASK
from magna.config.tables import LinkDataOptions, NodeDataOptions
from magna.data.knowledge_graph import KnowledgeGraph
from magna.data.node_data import NodeData, Schema
from magna.data.registry import DATASETS, DataDir
from magna.data.splits import with_drawn_split, with_drawn_validation, with_random_split
from magna.data.structure import structural_features
from magna.data.triples import Triples, load_triples
from magna.data.user_graph import load_user_graph
from magna.errors import ArgumentError, DataError, nearest

_Data = TypeVar("_Data", bound=NodeDataOptions | LinkDataOptions)


def load_node_data(
    data: NodeDataOptions | str, data_dir: DataDir = None, scaled_like: Schema | None = None
) -> NodeData:
    """The graph, features, labels and split that the settings name; a name or path alone stands for the defaults.

    `scaled_like` is the schema of a training whose scale of features is taken.

    >>> load_node_data("digits").num_nodes
    1797
    """
    config = NodeDataOptions(name=data) if isinstance(data, str) else data
    loaded = _read(config, data_dir)
    if loaded.schema.class_names is None:
        numbered = tuple(map(str, range(loaded.num_classes)))
        loaded = replace(loaded, schema=replace(loaded.schema, class_names=numbered))
    loaded = _with_features(_with_split(loaded, config), config)
    if not config.standardise_features:
        return loaded
    if scaled_like is not None:
        names = ("feature_shift", "feature_scale", "edge_shift", "edge_scale")
        scale = {name: getattr(scaled_like, name) for name in names}
        loaded = replace(loaded, schema=replace(loaded.schema, **scale))
    return loaded.with_standardised_features()


def load_new_graph(path: str | Path, config: NodeDataOptions, schema: Schema) -> NodeData:
    """Another graph for a model that was trained with `config` on data with this schema.

    Features, classes and edge types are those of training, by name; a column too few or too many is an error. Without a
    column `split`, all labelled nodes are the test split.
    """
    if kind_of(path) == "triples":
        raise DataError(path, "it holds triples", allowed="a graph as in training, such as nodes.csv and edges.csv")
    data = load_user_graph(path, schema, config)
    if config.undirected:
        data = data.with_both_directions()
    if data.train.numel() + data.valid.numel() + data.test.numel() == 0:
        data = replace(data, test=data.labelled.nonzero().squeeze(1))
    data = _with_features(data, config)
    return data.with_standardised_features() if config.standardise_features else data


def _with_features(data: NodeData, config: NodeDataOptions) -> NodeData:
    """The data with structural features, if it has none and the settings ask for them."""
    if data.x is not None or not config.structural_features:
        return data
    note = "it has no features: degrees and positions in the graph stand in for them"
    return replace(data, x=structural_features(data.edge_index, data.num_nodes), notes=(*data.notes, note))


def load_knowledge_graph(data: LinkDataOptions | str | Path, data_dir: DataDir = None) -> KnowledgeGraph:
    """The embedded `families`, a public knowledge graph, or a folder of your own, ready for training.

    A name or folder alone stands for the default settings.

    >>> load_knowledge_graph("families").num_relations
    16
    """
    config = data if isinstance(data, LinkDataOptions) else LinkDataOptions(name=str(data))
    name, drawn = config.name, {"valid_share": config.valid_share, "split_seed": config.split_seed}
    if name in DATASETS and DATASETS[name].task == LINK_TASK:
        if config.valid_share is not None or config.split_seed != LinkDataOptions.split_seed:
            raise ArgumentError("data", drawn, f"the defaults, because {name} has a split")
        loaded = DATASETS[name].load(data_dir, NodeDataOptions(name=name))
        assert isinstance(loaded, Triples)
        return KnowledgeGraph.from_triples(loaded)
    if not Path(name).is_dir():
        _refuse(name, LINK_TASK, "a folder with train, valid and test, or triples, as TSV or CSV")
    triples = load_triples(name, data_dir, valid_share=config.valid_share, split_seed=config.split_seed)
    return KnowledgeGraph.from_triples(triples)


def from_anywhere(config: _Data, data: str | Path | None = None) -> _Data:
    """The same data, or other `data` in its place, readable from any folder: a path of your own is made absolute.

    Your own folder may have the name of a public data set. A name in the settings then means the public one; `data`,
    which is a path, means the folder.
    """
    name = config.name if data is None else str(data)
    if (data is None and name in DATASETS) or not Path(name).exists():
        return replace(config, name=name)
    path = str(Path(name).resolve())
    try:
        path.encode()
    except UnicodeEncodeError:
        raise DataError(path, "its name is not UTF-8 text, which a run folder needs", hint="to rename it") from None
    return replace(config, name=path)


def prepare(data: NodeData, config: NodeDataOptions) -> NodeData:
    """The input of a model: features normalised by row, types of edges and self-loops, as the settings say."""
    if config.normalise_features and data.x is not None:
        data = data.with_row_normalised_features()
    if not config.edge_types:
        data = data.without_types()
    return data.with_self_loops() if config.self_loops else data


def _with_split(data: NodeData, config: NodeDataOptions) -> NodeData:
    """The split that the settings ask for: that of the data, or one that is drawn."""
    seed, share = config.split_seed, config.valid_share
    complete = data.train.numel() > 0 and data.valid.numel() > 0
    if share is not None and complete:
        raise ArgumentError("data.valid_share", share, f"none, because {data.name} has a split")
    if config.split == "random":
        return with_random_split(data, seed, share)
    if data.train.numel() == 0:
        return with_drawn_split(data, seed, share) if data.num_classes > 0 else data
    if data.test.numel() == 0:
        data = replace(data, notes=(*data.notes, "no test node given: no test score at the end"))
    if data.valid.numel() == 0:
        return with_drawn_validation(data, seed, share)
    if seed != NodeDataOptions.split_seed:
        allowed = f"{NodeDataOptions.split_seed}, because {data.name} has a split"
        raise ArgumentError("data.split_seed", seed, allowed, "data.split=random")
    return data


def _read(config: NodeDataOptions, data_dir: DataDir) -> NodeData:
    name = config.name
    dataset = DATASETS.get(name)
    features = dataset.features if dataset else ("published",)
    if config.features not in features:
        raise ArgumentError("data.features", config.features, f"{', '.join(features)} for {name}")
    if dataset is None or dataset.task != NODE_TASK:
        if not Path(name).exists():
            _refuse(name, NODE_TASK, "the path of a folder with nodes.csv and edges.csv, or of a .pt file")
        graph = load_user_graph(name, options=config)
        return graph.with_both_directions() if config.undirected else graph
    if not (config.undirected or dataset.directed):
        raise ArgumentError("data.undirected", False, f"true for {name}, whose edges have no direction")
    loaded = dataset.load(data_dir, config)
    assert isinstance(loaded, NodeData)
    return loaded


def _refuse(name: str, task: str, path: str) -> None:
    names = [dataset.name for dataset in DATASETS.values() if dataset.task == task]
    near = nearest(name, names)
    raise ArgumentError("data.name", name, f"{', '.join(names)}, or {path}", repr(near) if near else "")
