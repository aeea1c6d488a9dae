"""An epoch of a recipe's model, compared with the same model in PyG's `MessagePassing`."""

from __future__ import annotations

import copy
import statistics
import time
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

from magna.config.schema import Config
from magna.graph import Graph
from magna.nn import MAGNA, Dropout, MAGNAConv
from magna.nn.sparse import as_dense
from magna.tasks import NodeClassification


class PyGConv(MessagePassing):  # type: ignore[misc]
    """`MAGNAConv` as a PyG user would write it: the same parameters and dropout, messages gathered edge by edge."""

    def __init__(self, conv: MAGNAConv):
        super().__init__(aggr="add", node_dim=0)
        self.conv, self.in_channels, self.num_relations = conv, conv.in_channels, None
        assert not conv.edge_dropout and conv.bias is None and not conv.num_relations
        assert conv.options.top_k is None and conv.options.hop_weights == "fixed"
        assert conv.options.mode == "truncated" and conv.options.tanh

    def forward(self, x: Tensor, graph: Graph, **_: Any) -> Tensor:
        conv, alpha, edge_index = self.conv, float(self.conv.hops.alpha), graph.edge_index
        slope = float(conv.attention.negative_slope)
        source, target, first = conv.project(x)
        left = (source.tanh() * conv.attention.source_vector).sum(-1)  # [N, H]
        right = (target.tanh() * conv.attention.target_vector).sum(-1)
        scores = nn.functional.leaky_relu(left[edge_index[0]] + right[edge_index[1]], slope)
        attention = softmax(scores, edge_index[1], num_nodes=x.size(0))
        z = first
        for _hop in range(conv.hops.K):
            dropped = nn.functional.dropout(attention, float(conv.dropout), self.training)
            z = (1 - alpha) * self.propagate(edge_index, x=z, attention=dropped) + alpha * first
            z = nn.functional.dropout(z, float(conv.hops.feature_dropout), self.training)
        out: Tensor = conv.out(z.flatten(1))
        return out

    def message(self, x_j: Tensor, attention: Tensor) -> Tensor:
        return attention.unsqueeze(-1) * x_j


def in_pyg(model: MAGNA) -> MAGNA:
    """A copy of a model with `PyGConv` layers, torch's dropout and dense features."""
    model = copy.deepcopy(model)
    assert model.node_dropout.p == 0
    dense = cache(as_dense)  # once for all epochs
    model.register_forward_pre_hook(lambda _, inputs: (dense(inputs[0]), *inputs[1:]))
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, MAGNAConv):
                setattr(module, name, PyGConv(child))
            elif isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(float(child.p)))
    return model


def compare_epochs(task: NodeClassification, config: Config, repeats: int = 5) -> dict[str, Any]:
    """Milliseconds of a training step and a validation by both models in turn, and the difference of their scores."""
    torch.manual_seed(0)
    ours = task.make_model(config.model).to(task.device)
    assert isinstance(ours, MAGNA)
    theirs = in_pyg(ours)
    with torch.no_grad():
        expected = task.scores(theirs.eval())
        difference = float((task.scores(ours.eval()) - expected).abs().max() / expected.abs().max())
    times: dict[str, list[float]] = {"ours": [], "pyg": []}
    for repeat in range(repeats + 1):
        for name, model in (("ours", ours), ("pyg", theirs)):
            elapsed = _epoch(task, model, config)
            if repeat:  # the first one allocates
                times[name].append(1000 * elapsed)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "model": f"{config.model.num_layers} × {config.model.hidden_channels}, {config.model.head_form} heads",
        "recipe": config.recipe,
        "ms": medians["ours"],
        "peer": "pyg",
        "peer_ms": medians["pyg"],
        "share": medians["ours"] / medians["pyg"],
        "difference": difference,
        "all_ms": times,
    }


def _epoch(task: NodeClassification, model: nn.Module, config: Config) -> float:
    adam = torch.optim.Adam(model.parameters(), config.train.lr, weight_decay=config.train.weight_decay)
    started = time.perf_counter()
    model.train()
    loss = task.loss(model, task.nodes("train"))
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
    adam.step()
    task.evaluate(model, "valid")
    return time.perf_counter() - started
