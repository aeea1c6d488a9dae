"""`MAGNAConv` beside PyG's own layers, on a graph that comes with PyG."""

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import Sequential

from magna import MAGNAConv


def main() -> None:
    torch.manual_seed(0)
    data = KarateClub()[0]
    model = Sequential(
        "x, edge_index",
        [
            (MAGNAConv(data.num_features, 32, heads=4, K=4, alpha=0.1), "x, edge_index -> x"),
            torch.nn.ELU(),
            (MAGNAConv(32, 4, K=4, alpha=0.1), "x, edge_index -> x"),
        ],
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(100):
        loss = cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        right = model(data.x, data.edge_index).argmax(1) == data.y
        _, (edge_index, attention) = model[0](data.x, data.edge_index, return_attention_weights=True)
    print(f"accuracy outside the four labels: {right[~data.train_mask].float().mean():.2f}")
    best = attention.mean(1).argmax()
    print(f"most attention: from member {edge_index[1, best]} to member {edge_index[0, best]}")


# PyG's Sequential imports the file that builds it.
if __name__ == "__main__":
    main()
