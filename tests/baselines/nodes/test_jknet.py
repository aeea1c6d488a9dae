"""JKNet is PyG's convolutions and PyG's joins."""

from __future__ import annotations

import pytest
import torch
from tests.baselines.nodes.test_gcn import random_biases
from tests.support.graphs import uniform, with_isolated_node
from torch import nn
from torch_geometric.nn import GCNConv, JumpingKnowledge

from magna.baselines.nodes.jknet import LSTM, JKNet, LayerAttention

X, EDGES = uniform(13, 5, seed=1), with_isolated_node(13, 30, loops=True)


@torch.no_grad()
def copy_lstm(ours: LSTM, theirs: nn.LSTM, suffix: str) -> None:
    for name, value in (
        ("weight_ih", ours.input.weight),
        ("weight_hh", ours.state.weight),
        ("bias_ih", ours.input.bias),
    ):
        getattr(theirs, f"{name}_l0{suffix}").copy_(value)
    getattr(theirs, f"bias_hh_l0{suffix}").zero_()


def pygs_join(join: str, attention: LayerAttention | None, num_layers: int) -> JumpingKnowledge:
    theirs = JumpingKnowledge({"concat": "cat"}.get(join, join), channels=7, num_layers=num_layers).double()
    if attention is not None:
        copy_lstm(attention.ahead, theirs.lstm, "")
        copy_lstm(attention.back, theirs.lstm, "_reverse")
        with torch.no_grad():
            theirs.att.weight.copy_(attention.score.weight)
    return theirs


@pytest.mark.parametrize("num_layers", [1, 2, 5])
@pytest.mark.parametrize("join", ["concat", "max", "lstm"])
def test_it_is_pygs_with_the_same_weights(join: str, num_layers: int) -> None:
    model = JKNet(5, 3, hidden_channels=7, num_layers=num_layers, join=join).double()
    random_biases(model)
    states = [X]
    for layer, bias in zip(model.layers, model.biases, strict=True):
        assert isinstance(layer, nn.Linear)
        conv = GCNConv(layer.in_features, layer.out_features).double()
        with torch.no_grad():
            conv.lin.weight.copy_(layer.weight)
            conv.bias.copy_(bias)
        states.append(conv(states[-1], EDGES).relu())
    joined = pygs_join(join, model.attention, num_layers)(states[1:])
    torch.testing.assert_close(model(X, EDGES), model.head(joined))
