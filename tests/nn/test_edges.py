"""Weights and features of edges: their laws on every backend, in the layer, the block and the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from magna import MAGNA, Graph, MAGNABlock, MAGNAConv, edge_softmax
from magna.nn import fused
from magna.typing import Backend
from tests.support.graphs import integers, random_graph, uniform
from tests.support.running import device_of

N, E, C, D = 9, 30, 6, 4
GRAPH = random_graph(N, E, fed=True)
EDGES, COUNT = GRAPH.edge_index, GRAPH.num_edges
WEIGHT, ATTR = uniform(COUNT, seed=3, low=0.1, high=3.0), uniform(COUNT, D, seed=4)


class Layer:
    """A layer in float64, the tensors of its call, and what it gives for other edges."""

    def __init__(self, backend: Backend, **options: Any) -> None:
        torch.manual_seed(0)
        self.device = device_of(backend)
        conv = MAGNAConv(C, 8, heads=2, backend=backend, **options)
        self.conv, self.x = conv.double().to(self.device), uniform(N, C, seed=1).to(self.device)

    def __call__(self, edges: Tensor = EDGES, x: Tensor | None = None, **call: Any) -> Tensor:
        named = {name: value.to(self.device) for name, value in call.items()}
        out: Tensor = self.conv(self.x if x is None else x, edges.to(self.device), **named)
        return out


FORMS: dict[str, dict[str, Any]] = {"plain": {}, "no loops": {"add_self_loops": False}, "top k": {"top_k": 3}}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


@forms
def test_weight_one_is_the_plain_layer_bit_for_bit(backend: Backend, form: dict[str, Any]) -> None:
    layer = Layer(backend, **form)
    assert torch.equal(layer(edge_weight=torch.ones(COUNT)), layer())


def test_a_common_factor_of_the_in_edges_of_a_target_changes_nothing(backend: Backend) -> None:
    layer = Layer(backend, add_self_loops=False)
    factor = uniform(N, seed=5, low=0.5, high=4.0)[GRAPH.target]
    torch.testing.assert_close(layer(edge_weight=WEIGHT * factor), layer(edge_weight=WEIGHT))
    assert not torch.allclose(layer(edge_weight=WEIGHT), layer())


def test_twice_the_weight_is_the_edge_twice_and_none_is_no_edge(backend: Backend) -> None:
    layer, weight = Layer(backend, K=1), torch.ones(COUNT)
    weight[5] = 2
    torch.testing.assert_close(layer(edge_weight=weight), layer(torch.cat([EDGES, EDGES[:, 5:6]], 1)))
    weight[5] = 0
    without = torch.arange(COUNT) != 5
    torch.testing.assert_close(layer(edge_weight=weight), layer(EDGES[:, without]))


def test_the_order_of_edges_does_not_matter(backend: Backend) -> None:
    layer, order = Layer(backend, edge_dim=D), torch.randperm(COUNT)
    shuffled = layer(EDGES[:, order], edge_weight=WEIGHT[order], edge_attr=ATTR[order])
    torch.testing.assert_close(shuffled, layer(edge_weight=WEIGHT, edge_attr=ATTR))


@pytest.mark.parametrize("types", [{}, {"num_relations": 3}], ids=["untyped", "typed"])
def test_features_with_a_zero_projection_change_nothing(backend: Backend, types: dict[str, Any]) -> None:
    plain, layer = Layer(backend, **types), Layer(backend, edge_dim=D, **types)
    call = {"edge_type": integers(3, COUNT, seed=2)} if types else {}
    layer.conv.load_state_dict(plain.conv.state_dict(), strict=False)
    assert not torch.allclose(layer(edge_attr=ATTR, **call), plain(**call))
    torch.nn.init.zeros_(layer.conv.attention.edge.weight)
    torch.testing.assert_close(layer(edge_attr=ATTR, **call), plain(**call))


@pytest.mark.parametrize("tanh", [False, True])
def test_a_feature_of_edges_is_a_part_of_eq_1(backend: Backend, tanh: bool) -> None:
    """Features that name the relation are typed edges with these rows as embeddings."""
    types, rows = integers(3, COUNT, seed=2), uniform(3, D, seed=6)
    options: dict[str, Any] = {"add_self_loops": False, "tanh": tanh}
    typed = Layer(backend, num_relations=3, relation_channels=D, relation_embedding=False, **options)
    layer = Layer(backend, edge_dim=D, **options)
    state = {name.replace("relation", "edge"): value for name, value in typed.conv.state_dict().items()}
    layer.conv.load_state_dict(state)
    expected = typed(edge_type=types, relation=rows)
    torch.testing.assert_close(layer(edge_attr=rows[types]), expected)


def test_gradients_of_weights_and_features(backend: Backend) -> None:
    layer = Layer(backend, edge_dim=D, K=2)
    few = EDGES[:, :10]
    leaves = [WEIGHT[:10].to(layer.device).requires_grad_(), ATTR[:10].to(layer.device).requires_grad_()]
    assert torch.autograd.gradcheck(lambda w, a: layer(few, edge_weight=w, edge_attr=a), leaves)


def test_the_operator_takes_a_prior(backend: Backend) -> None:
    graph, scores = GRAPH.to(device_of(backend)), uniform(COUNT, 2, seed=7).to(device_of(backend))
    weight = WEIGHT.to(graph.device)
    attention = edge_softmax(scores, graph, edge_weight=weight, backend=backend)
    share = weight[:, None] * scores.exp()
    total = torch.zeros(N, 2, dtype=share.dtype, device=share.device).index_add(0, graph.target, share)
    torch.testing.assert_close(attention, share / total[graph.target])


@pytest.mark.parametrize("loops", [False, True])
def test_block_and_model_pass_them_on(monkeypatch: pytest.MonkeyPatch, loops: bool) -> None:
    x = uniform(N, C, seed=1).float()
    call = {"edge_weight": WEIGHT.float(), "edge_attr": ATTR.float()}
    block = MAGNABlock(C, 8, heads=2, edge_dim=D, add_self_loops=loops, feed_forward=False, norm="none")
    expected = torch.nn.functional.elu(block.conv(x, EDGES, **call) + block.residual(x))
    torch.testing.assert_close(block(x, EDGES, **call), expected)
    model = MAGNA(C, 8, 2, 3, heads=2, edge_dim=D, add_self_loops=loops)
    out = model(x, EDGES, **call)
    for part in call:
        assert not torch.allclose(model(x, EDGES, **call | {part: 2 * call[part].flip(0)}), out)
    monkeypatch.setattr(fused, "choose", lambda *_: "triton")
    assert fused.covers(model, x) and torch.equal(model(x, EDGES, **call), out)
    again: Any = MAGNA(**model.config)
    assert again.blocks[1].conv.attention.edge_dim == D


def test_loops_that_a_layer_adds_have_weight_one_and_no_features() -> None:
    layer, missing = Layer("reference", edge_dim=D), (~GRAPH.has_self_loop()).nonzero().squeeze(1)
    looped = torch.cat([EDGES, missing.expand(2, -1)], 1)
    weight = torch.cat([WEIGHT, torch.ones(len(missing), dtype=WEIGHT.dtype)])
    attr = torch.cat([ATTR, torch.zeros(len(missing), D, dtype=ATTR.dtype)])
    expected = layer(looped, edge_weight=weight, edge_attr=attr)
    torch.testing.assert_close(layer(edge_weight=WEIGHT, edge_attr=ATTR), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"edge_weight": torch.ones(3)}, rf"edge_weight is torch.float32 \[3\] .*; allowed: \[{COUNT}\] on cpu"),
        ({"edge_weight": -torch.ones(COUNT)}, r"edge_weight is -1.0; allowed: finite numbers of 0 or more; 0: no edge"),
        ({"edge_weight": torch.full((COUNT,), torch.nan)}, "edge_weight is nan; allowed: finite"),
        ({"edge_weight": torch.ones(COUNT).long()}, "edge_weight is torch.int64 .*; allowed: a floating type"),
        ({"edge_attr": torch.ones(COUNT, D)}, "edge_attr is .*; allowed: only with edge_dim at construction"),
    ],
)
def test_bad_edges(call: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAGNAConv(C, 8, heads=2)(torch.zeros(N, C), EDGES, **call)


@pytest.mark.parametrize("attr", [None, torch.ones(COUNT, D + 1), torch.ones(3, D)])
def test_features_must_have_the_width_that_was_announced(attr: Any) -> None:
    with pytest.raises(ValueError, match=rf"edge_attr is .*; allowed: \[{COUNT}, {D}\] on cpu"):
        MAGNAConv(C, 8, add_self_loops=False, edge_dim=D)(torch.zeros(N, C), GRAPH, edge_attr=attr)
    with pytest.raises(ValueError, match="edge_dim is 0; allowed: a whole number from 1"):
        MAGNAConv(C, 8, edge_dim=0)


def test_a_prebuilt_graph_takes_them_in_the_callers_order() -> None:
    layer = Layer("reference", edge_dim=D)
    graph = Graph.from_edge_index(EDGES, N)
    torch.testing.assert_close(
        layer.conv(layer.x, graph, edge_weight=WEIGHT, edge_attr=ATTR), layer(edge_weight=WEIGHT, edge_attr=ATTR)
    )
