"""Files → tensors. A data set is one loader and one row of `DATASETS`."""

from magna.data.arxiv import load_arxiv
from magna.data.digits import load_digits
from magna.data.families import load_families
from magna.data.knowledge_graph import Answers, KnowledgeGraph
from magna.data.loading import from_anywhere, load_knowledge_graph, load_new_graph, load_node_data, prepare
from magna.data.node_data import NodeData, Schema
from magna.data.planetoid import load_planetoid
from magna.data.pyg import from_pyg, to_pyg
from magna.data.registry import DATASETS
from magna.data.splits import with_random_split
from magna.data.store import data_folder
from magna.data.triples import Triples, load_triples
from magna.data.user_graph import load_user_graph

__all__ = [
    "DATASETS",
    "Answers",
    "KnowledgeGraph",
    "NodeData",
    "Schema",
    "Triples",
    "data_folder",
    "from_anywhere",
    "from_pyg",
    "load_arxiv",
    "load_digits",
    "load_families",
    "load_knowledge_graph",
    "load_new_graph",
    "load_node_data",
    "load_planetoid",
    "load_triples",
    "load_user_graph",
    "prepare",
    "to_pyg",
    "with_random_split",
]
