"""Norm, residual and feed-forward network of a stack, by their equations and against PyG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.baselines.nodes.test_gcn import random_biases
from tests.nn.test_conv import gat_like
from tests.support.graphs import uniform, with_isolated_node
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines import GAT, DiffGCN
from magna.baselines.nodes.gcn import GCN
from magna.baselines.nodes.stack import Stack
from magna.graph import Graph
from magna.nn import MAGNAConv

X, EDGES = uniform(13, 5, seed=1), with_isolated_node(13, 30, loops=True)
PARTS: dict[str, Any] = {"norm": "layer", "residual": True, "feed_forward": True}
MODELS: dict[str, Callable[..., Stack]] = {
    "gcn": lambda **options: GCN(5, 3, hidden_channels=8, num_layers=3, **options),
    "gat": lambda **options: GAT(5, 8, 3, 3, heads=2, out_heads=3, **options),
    "diff-gcn": lambda **options: DiffGCN(5, 8, 3, 3, top_k=4, **options),
}


def make(name: str, **options: Any) -> Stack:
    torch.manual_seed(0)
    model = MODELS[name](**options).double()
    random_biases(model)
    return model


def convolution(model: Stack, number: int, h: Tensor) -> Tensor:
    """A layer of the model with its bias, as the tests of each model check it."""
    graph, weight = model.weights(Graph.from_edge_index(EDGES, 13), torch.float64)
    out: Tensor = model.convolve(model.layers[number], h, graph, weight) + model.biases[number]
    return out


def normed(norm: Any, h: Tensor) -> Tensor:
    return F.layer_norm(h, (8,), norm.weight, norm.bias)


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_those_of_magna_with_another_convolution(name: str) -> None:
    model = make(name, **PARTS, ffn_multiplier=2)

    def residual(number: int, h: Tensor) -> Tensor:
        out: Tensor = h if number == 1 else h @ model.residuals[number].weight.t()  # type: ignore[operator]
        return out

    h = X
    for number in range(3):
        taken = h if number == 0 else normed(model.norms[number - 1], h)
        h = convolution(model, number, taken) + residual(number, h)  # Eq. 6
        if number < 2:
            network: Any = model.activations[number]
            up, _, down, _ = network.layers
            inner = (normed(network.norm, h) @ up.weight.t() + up.bias).relu()
            h = inner @ down.weight.t() + down.bias + h  # Eq. 7
    torch.testing.assert_close(model(X, EDGES), h)


@pytest.mark.parametrize("name", MODELS)
def test_a_norm_alone_stands_before_each_activation(name: str) -> None:
    model = make(name, norm="batch")
    h = X
    for number in range(3):
        h = convolution(model, number, h)
        if number < 2:
            norm: Any = model.activations[number][0]  # type: ignore[index]
            h = F.batch_norm(h, None, None, norm.weight, norm.bias, training=True)
            h = F.elu(h) if name == "gat" else h.relu()
    torch.testing.assert_close(model(X, EDGES), h)


def test_gat_with_residuals_is_pygs() -> None:
    model = make("gat", residual=True)
    h = X
    for number, (layer, bias, residual) in enumerate(zip(model.layers, model.biases, model.residuals, strict=True)):
        assert isinstance(layer, MAGNAConv)
        theirs = gat_like(layer, concat=number < 2, residual=True, add_self_loops=False)
        with torch.no_grad():
            theirs.bias.copy_(bias)
            theirs.res.weight.copy_(residual.weight if isinstance(residual, nn.Linear) else torch.eye(8))
        h = theirs(h, EDGES)
        h = F.elu(h) if number < 2 else h
    torch.testing.assert_close(model(X, EDGES), h)


@pytest.mark.parametrize("name", MODELS)
def test_a_reset_draws_every_matrix_again(name: str) -> None:
    model = make(name, **PARTS)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.reset_parameters()
    for key, value in model.state_dict().items():
        if key.endswith("norm.weight") or (key.startswith("norms") and key.endswith("weight")):
            assert value.eq(1).all(), key
        elif "bias" in key:
            assert value.eq(0).all(), key
        else:
            assert not torch.equal(value, before[key]), key


def test_settings_of_the_feed_forward_network_need_it() -> None:
    with pytest.raises(ValueError, match=r"^ffn_multiplier is 2; allowed: only with feed_forward$"):
        GCN(5, 3, ffn_multiplier=2)
