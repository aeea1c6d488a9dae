"""Train `MAGNA`, save it as config.json and model.safetensors, load it again."""

import tempfile

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.datasets import KarateClub

from magna import MAGNA, Graph

torch.manual_seed(0)
data = KarateClub()[0]
graph = Graph.from_edge_index(data.edge_index, data.num_nodes)  # sorted and checked once, used in every step
model = MAGNA(data.num_features, 32, num_layers=2, out_channels=4, heads=4, K=4, alpha=0.2, output_dropout=0.3)
optimiser = torch.optim.Adam(model.parameters(), lr=0.005)
for _ in range(60):
    loss = cross_entropy(model(data.x, graph)[data.train_mask], data.y[data.train_mask])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    loaded = MAGNA.from_pretrained(folder)
with torch.no_grad():
    same = torch.equal(loaded(data.x, graph), model.eval()(data.x, graph))
print(f"the loaded model agrees: {same}; K={loaded.config['K']}, alpha={loaded.config['alpha']}")
