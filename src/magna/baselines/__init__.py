"""The paper's other systems as models on the same operators, for the same task."""

from magna.baselines.nodes.diff_gcn import DiffGCN
from magna.baselines.nodes.gat import GAT
from magna.baselines.nodes.ppr import diffused_graph

__all__ = ["GAT", "DiffGCN", "diffused_graph"]
