"""`MAGNAConv` in place of `GATConv` in the textbook GAT: accuracy on four graphs.

    python benchmarks/layer_in_gat.py cora citeseer pubmed --photo FOLDER/photo.npz

The settings are those of the GAT paper: two layers, 8 heads of 8 channels and then one head, dropout 0.6 on inputs and
attention, ELU, Adam with learning rate 0.005 and weight decay 5e-4, 200 epochs, the epoch that is best on validation.
Each run is a line of `layer_in_gat.csv` beside this file; a run that is there is not repeated.

Features with few entries are `SparseRows`, whose dropout draws for these entries alone: the same model in a fraction of
the time. PyG's own layer takes dense features, so the row "GAT" computes it by `MAGNAConv` with one hop, no teleport
and no tanh, which equals it (tests/nn/test_conv.py). `--layers GATConv` runs PyG's code itself.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv

from magna import MAGNAConv
from magna.data import NodeData, load_planetoid
from magna.nn import SparseRows

RECORD = Path(__file__).with_suffix(".csv")
COLUMNS = ["graph", "layer", "seed", "valid", "test", "seconds"]
EPOCHS = 200
GAT: dict[str, Any] = {"K": 1, "alpha": 0.0, "tanh": False, "projection": "shared"}
BLOCK: dict[str, Any] = {"K": 6, "alpha": 0.1, "add_self_loops": False, "bias": False, "out_projection": True}
FEW = 0.2  # share of entries that are not zero
# The first and the second layer of the network, from the widths of features and classes.
LAYERS: dict[str, Callable[[int, int], tuple[nn.Module, nn.Module]]] = {
    "GATConv": lambda inputs, classes: (
        GATConv(inputs, 8, heads=8, dropout=0.6),
        GATConv(64, classes, dropout=0.6),
    ),
    "GAT": lambda inputs, classes: (
        MAGNAConv(inputs, 64, heads=8, dropout=0.6, **GAT),
        MAGNAConv(64, classes, dropout=0.6, **GAT),
    ),
    "MAGNAConv": lambda inputs, classes: (
        MAGNAConv(inputs, 64, heads=8, dropout=0.6),
        MAGNAConv(64, classes, dropout=0.6),
    ),
    "MAGNAConv, a block's defaults": lambda inputs, classes: (
        MAGNAConv(inputs, 64, heads=8, dropout=0.6, **BLOCK),
        MAGNAConv(64, classes, dropout=0.6, **BLOCK),
    ),
}


class Net(nn.Module):
    """The textbook GAT around any two layers."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor) -> Tensor:
        if isinstance(x, SparseRows):
            x = x.with_values(F.dropout(x.values, 0.6, self.training))
        else:
            x = F.dropout(x, 0.6, self.training)
        x = F.elu(self.first(x, edge_index))
        x = F.dropout(x, 0.6, self.training)
        out: Tensor = self.second(x, edge_index)
        return out


def train(layer: str, data: NodeData, seed: int, epochs: int = EPOCHS) -> tuple[float, float]:
    """Accuracy on validation and test, at the epoch that is best on validation."""
    assert data.x is not None
    torch.manual_seed(seed)
    model = Net(*LAYERS[layer](data.x.size(1), data.num_classes))
    sparse = layer != "GATConv" and data.x.count_nonzero() < FEW * data.x.numel()
    x = SparseRows.of(data.x) if sparse else data.x
    optimiser = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    best, chosen = 0.0, torch.empty(0)
    for _ in range(epochs):
        model.train()
        optimiser.zero_grad()
        F.cross_entropy(model(x, data.edge_index)[data.train], data.y[data.train]).backward()
        optimiser.step()
        model.eval()
        with torch.no_grad():
            right = (model(x, data.edge_index).argmax(1) == data.y).float()
        if (valid := right[data.valid].mean().item()) > best:
            best, chosen = valid, right
    return best, chosen[data.test].mean().item()


def load_photo(path: Path) -> NodeData:
    """Amazon Photo with its first split, 20 training nodes a class; the features are 0 or 1."""
    file = np.load(path)
    y, split = torch.from_numpy(file["labels"]).long(), torch.from_numpy(file["splits"][0])
    rows, columns = np.repeat(np.arange(len(y)), np.diff(file["features_indptr"])), file["features_indices"]
    x = torch.zeros(*file["features_shape"].tolist())
    x[torch.from_numpy(rows), torch.from_numpy(columns).long()] = torch.from_numpy(file["features_data"]).float()
    train, valid, test = ((split == part).nonzero().squeeze(1) for part in range(3))
    edges = torch.from_numpy(file["edges"]).long()
    return NodeData("photo", edges, y, int(y.max()) + 1, train, valid, test, x=x).with_both_directions()


def load_graph(name: str) -> NodeData:
    """A citation graph with both directions of its edges, each feature row divided by its sum."""
    return load_planetoid(name).with_both_directions().with_row_normalised_features()


def read() -> list[dict[str, str]]:
    with RECORD.open(newline="") as file:
        return list(csv.DictReader(file))


def table(rows: list[dict[str, str]]) -> str:
    """Mean and standard deviation over the seeds, in percent."""
    lines = ["| graph | layer | runs | valid | test | seconds a run |", "|---|---|---|---|---|---|"]
    for graph, layer in dict.fromkeys((row["graph"], row["layer"]) for row in rows):
        runs = [row for row in rows if (row["graph"], row["layer"]) == (graph, layer)]
        cells = []
        for split in ("valid", "test"):
            values = [100 * float(row[split]) for row in runs]
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.1f} ± {deviation:.1f}")
        seconds = statistics.mean(float(row["seconds"]) for row in runs)
        lines.append(f"| {graph} | `{layer}` | {len(runs)} | {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", metavar="GRAPH", help="cora, citeseer or pubmed")
    parser.add_argument("--photo", type=Path, metavar="FILE", help="photo.npz: also run on this graph")
    parser.add_argument("--layers", nargs="+", choices=list(LAYERS), default=list(LAYERS)[1:], metavar="LAYER")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    arguments = parser.parse_args()
    loaders: dict[str, Callable[[], NodeData]] = {name: partial(load_graph, name) for name in arguments.graphs}
    if arguments.photo is not None:
        loaders["photo"] = partial(load_photo, arguments.photo)
    for graph, load in loaders.items():
        data = load()
        for layer in arguments.layers:
            for seed in range(arguments.seeds):
                if any((row["graph"], row["layer"], row["seed"]) == (graph, layer, str(seed)) for row in read()):
                    continue
                start = time.perf_counter()
                valid, test = train(layer, data, seed)
                run = [graph, layer, seed, f"{valid:.4f}", f"{test:.4f}", f"{time.perf_counter() - start:.1f}"]
                with RECORD.open("a", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerow(run)
                print(*run, flush=True)
    print(table(read()))


if __name__ == "__main__":
    main()
