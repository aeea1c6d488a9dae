"""The graph that every operator takes, and the door that makes one of PyG's tensors."""

from magna.graph.csr import Graph
from magna.graph.door import as_graph
from magna.graph.segments import Segments, piece_edges
from magna.graph.torch_internals import durable

__all__ = ["Graph", "Segments", "as_graph", "durable", "piece_edges"]
