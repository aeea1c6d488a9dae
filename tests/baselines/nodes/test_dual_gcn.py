"""DualGCN is PyG's GCN on the adjacency, with a distance to the same weights on PPMI."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from tests.nn.test_ensemble import SMALL
from tests.support.graphs import integers, uniform
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from magna.baselines.nodes import dual_gcn
from magna.baselines.nodes.dual_gcn import DualGCN, ppmi_graph
from magna.config.schema import Config
from magna.data import load_digits
from magna.data.node_data import undirected
from magna.graph import Graph
from magna.tasks import NodeClassification
from magna.training.trials import train_trials

N = 11
# Node 10 has its loop alone.
ENDS = integers(N - 1, 2, 20, seed=3)
EDGES = torch.cat([undirected(ENDS[0], ENDS[1], N), torch.arange(N).expand(2, -1)], dim=1)
GRAPH, X = Graph.from_edge_index(EDGES, N), uniform(N, 5, seed=1)


def model(**options: float) -> DualGCN:
    torch.manual_seed(0)
    made = DualGCN(5, 3, hidden_channels=8, walks=7, **options).double().eval()
    for bias in made.biases:
        nn.init.normal_(bias)
    return made


def convolved(ours: DualGCN, edges: Tensor, weight: Tensor | None) -> Tensor:
    """PyG's GCN with the weights of ours; without weights of the edges those of the symmetric norm."""
    h = X
    for number, (layer, bias) in enumerate(zip(ours.layers, ours.biases, strict=True)):
        assert isinstance(layer, nn.Linear)
        norm = {"normalize": weight is None, "add_self_loops": False}
        conv = GCNConv(layer.in_features, layer.out_features, **norm).double()
        with torch.no_grad():
            conv.lin.weight.copy_(layer.weight)
            conv.bias.copy_(bias)
        h = conv(h.relu() if number else h, edges, weight)
    return h


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_prediction_is_pygs_gcn(num_layers: int) -> None:
    ours = model(num_layers=num_layers)
    torch.testing.assert_close(ours(X, EDGES), convolved(ours, EDGES, None))


def test_the_distance_is_that_of_the_probabilities_on_ppmi() -> None:
    ours = model(distance_weight=3.0, distance_ramp=10)
    scores = ours(X, EDGES)
    ppmi, weight = ppmi_graph(GRAPH, 7, 2, 2)
    other = convolved(ours, ppmi.edge_index, weight[:, 0].double())
    distance = 3.0 * (scores.softmax(1) - other.softmax(1)).square().sum() / N
    for epoch, share in ((0, math.exp(-5)), (5, math.exp(-5 / 4)), (10, 1), (99, 1)):
        torch.testing.assert_close(ours.auxiliary_loss(scores, epoch, X, GRAPH), share * distance)
    assert float(DualGCN(5, 3, distance_weight=0.0).auxiliary_loss(scores, 99, X, GRAPH)) == 0


@pytest.mark.parametrize(("length", "window"), [(1, 1), (3, 2), (3, 3)])
def test_ppmi_counts_the_pairs_of_the_walks(length: int, window: int) -> None:
    walked = dual_gcn._walk(GRAPH, 4, length)
    near = {(int(s), int(t)) for s, t in EDGES.t()}
    count: Counter[tuple[int, int]] = Counter()
    for walk in torch.stack(walked, dim=1).tolist():
        assert all((after, before) in near for before, after in pairwise(walk))
        for i in range(length):
            for j in range(i + 1, min(i + window, length) + 1):
                count[walk[i], walk[j]] += 1
                count[walk[j], walk[i]] += 1
    share = torch.zeros(N, N, dtype=torch.float64)
    for (i, j), number in count.items():
        share[i, j] = number / count.total()
    value = (share / share.sum(1, keepdim=True) / share.sum(0)).log().clamp(min=0).nan_to_num(0)
    scale = value.sum(1).rsqrt()
    graph, weight = ppmi_graph(GRAPH, 4, length, window)
    dense = torch.zeros(N, N).index_put((graph.target, graph.source), weight[:, 0])
    torch.testing.assert_close(dense, (scale[:, None] * value * scale).float())


def test_walks_need_no_edges() -> None:
    graph, weight = ppmi_graph(Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 3), 2, 2, 2)
    assert graph.edge_index.tolist() == [[0, 1, 2], [0, 1, 2]] and weight.tolist() == [[1.0]] * 3


def test_the_task_adds_the_distance_alone_in_ensembles_and_in_batches() -> None:
    values = ["train.epochs=2", "model.distance_ramp=1", "model.distance_weight=1000.0", "model.members=2"]
    config = Config(model=SMALL["dualgcn"]).with_values(values)
    task = NodeClassification(load_digits(), config, torch.device("cpu"))
    ensemble = task.make_model(config.model)
    near, nodes = [], task.nodes("train")
    for member in ensemble.members:
        scores = task.scores(member)
        distance = member.auxiliary_loss(scores, 1, task._x, task._edge_index)
        near.append(nn.functional.cross_entropy(scores[nodes], task._y[nodes]) + distance)
        assert float(distance.detach()) > 0.01
    torch.testing.assert_close(task.loss(ensemble, nodes, 1), sum(near))
    plain = config.with_values(["model.members=1"])
    trials = [plain.with_values([f"model.distance_weight={weight}"]) for weight in (1.0, 1000.0)]
    losses = [result.history[1]["loss"] for result in train_trials(trials, task)]
    for trial, loss in zip(trials, losses, strict=True):
        (alone,) = train_trials([trial], task)
        assert alone.history[1]["loss"] == pytest.approx(loss, rel=1e-4)
    assert losses[0] < losses[1]
