"""Sizes of the data sets, counted by the loaders, beside the paper's Tables 4 and 5."""

from __future__ import annotations

from magna.data import DATASETS, load_arxiv, load_node_data, load_triples
from magna.errors import ArgumentError
from magna.paper.published import KNOWLEDGE_GRAPHS, PAPER_SIZES
from magna.paper.render import EMPTY, TextTable
from magna.paper.study import Missing, Outcome, StudyJob

_COLUMNS = ("nodes", "edges", "classes", "features", "relations", "train", "valid", "test", "average degree")
_CAPTION = (
    "Sizes of the data sets, Tables 4 and 5 of the paper: counted by the loaders, and as published. An edge is a pair "
    "of different nodes, counted once, of ogbn-arxiv an arc. The average degree is training triples per entity."
)


def count_statistics(job: StudyJob) -> Outcome:
    """Count every data set of the paper, or those that were asked for."""
    rows, missing = [], list[Missing]()
    for name in job.datasets or PAPER_SIZES:
        if name not in PAPER_SIZES:
            raise ArgumentError("data set of statistics", name, list(PAPER_SIZES))
        ours: dict[str, str] = {}
        if DATASETS[name].is_present(job.data_dir):
            ours = {key: f"{value:,}" if isinstance(value, int) else f"{value:.2f}" for key, value in _sizes(name, job)}
        else:
            missing.append(Missing(name, f"magna data get {name}"))
        for source, sizes in (("loader", ours), ("paper", PAPER_SIZES[name])):
            rows.append([name, source, *(sizes.get(key, EMPTY) for key in _COLUMNS)])
    return Outcome(TextTable(["data", "source", *_COLUMNS], rows), _CAPTION, missing=missing)


def _sizes(name: str, job: StudyJob) -> list[tuple[str, int | float]]:
    if name in KNOWLEDGE_GRAPHS:
        triples = load_triples(name, job.data_dir)
        splits = [(split, triples.split(split).size(0)) for split in ("train", "valid", "test")]
        degree = splits[0][1] / triples.num_entities
        return [
            ("nodes", triples.num_entities),
            ("relations", triples.num_relations),
            *splits,
            ("average degree", degree),
        ]
    directed = DATASETS[name].directed
    graph = load_arxiv(job.data_dir, directed=True) if directed else load_node_data(name, job.data_dir)
    source, target = graph.edge_index if directed else graph.edge_index.sort(0).values
    proper = source != target
    pairs = (source * graph.num_nodes + target)[proper].unique().numel()
    features = [] if graph.x is None else [("features", graph.x.size(1))]
    splits = [(split, graph.split(split).numel()) for split in ("train", "valid", "test")]
    return [("nodes", graph.num_nodes), ("edges", pairs), ("classes", graph.num_classes), *features, *splits]
