"""Typed edges: each relation has an embedding, which the attention uses."""

import torch
from torch.nn.functional import mse_loss

from magna import MAGNAConv

torch.manual_seed(0)
N, E = 50, 400
edge_index, edge_type = torch.randint(N, (2, E)), torch.randint(2, (E,))
x = torch.randn(N, 8)

# The model learns the sum over edges of type 0 alone.
useful = edge_index[:, edge_type == 0]
goal = torch.zeros(N, 8).index_add(0, useful[1], x[useful[0]])

conv = MAGNAConv(8, 8, heads=2, K=1, alpha=0.0, num_relations=2)
optimiser = torch.optim.Adam(conv.parameters(), lr=0.02)
for _ in range(200):
    loss = mse_loss(conv(x, edge_index, edge_type), goal)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

with torch.no_grad():
    _, (_, attention) = conv(x, edge_index, edge_type, return_attention_weights=True)
attention = attention[:E]  # the self-loops that the layer adds come last
shares = [attention[edge_type == relation].mean() for relation in range(2)]
print(f"mean attention: {shares[0]:.3f} on edges of type 0, {shares[1]:.3f} on edges of type 1")
