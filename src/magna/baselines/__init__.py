"""The paper's other systems as models on the same operators, for the same task."""

from magna.baselines.nodes.diff_gcn import DiffGCN, diffused_graph
from magna.baselines.nodes.gat import GAT

__all__ = ["GAT", "DiffGCN", "diffused_graph"]
