"""Attention that reaches beyond neighbours: K hops, the whole series, and the distance between them."""

import torch

from magna import Graph, attention_diffusion, edge_softmax, hops_for, truncation_error

# A path 0 - 1 - 2 - 3 - 4, both directions.
forward = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
graph = Graph.from_edge_index(torch.cat([forward, forward.flip(0)], dim=1), num_nodes=5)

scores = torch.zeros(graph.num_edges, 1)  # one head, all neighbours alike
attention = edge_softmax(scores, graph)  # [E, 1], sums to 1 over the in-edges of each node
signal = torch.eye(5)[:, None, :]  # row i of the result is how much node i listens to each node

for K in (1, 2, 6):
    z = attention_diffusion(signal, attention, graph, K=K, alpha=0.1)
    print(f"K={K}: node 0 listens to", [round(v, 3) for v in z[0, 0].tolist()])

exact = attention_diffusion(signal, attention, graph, alpha=0.1, mode="exact")
print("exact: node 0 listens to", [round(v, 3) for v in exact[0, 0].tolist()])
print(f"bound on the distance at K=6: {truncation_error(6, 0.1):.2f}; hops for 1 %: {hops_for(0.01, 0.1)}")
