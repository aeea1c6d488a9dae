"""Fused passes stand in only for modules that do nothing else: what a user adds to one is never left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from magna import MAGNA, Graph, MAGNAConv, edge_softmax
from magna.nn.block import MAGNABlock
from magna.nn.linear import Linear
from magna.nn.plain import is_plain

EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])


def _model() -> MAGNA:
    torch.manual_seed(0)
    return MAGNA(6, 8, 2, 3, heads=2, K=2, input_dropout=0.5, final_norm="layer").eval()


def _x() -> Tensor:
    return torch.arange(24.0).view(4, 6).sin()


PARTS = ["blocks.1", "final_norm"]
PARTS += [
    f"blocks.1.{name}" for name in ("norm", "ffn_norm", "input_dropout", "output_dropout", "ffn", "ffn.4", "conv.value")
]
PARTS += [f"blocks.1.conv.attention{name}" for name in ("", ".source", ".target")]


@pytest.mark.parametrize("name", PARTS)
def test_hooks_fire_and_change_nothing(name: str) -> None:
    model, seen = _model(), []
    plain = model(_x(), EDGES)
    handle = model.get_submodule(name).register_forward_hook(lambda *_: seen.append(name))
    assert torch.equal(model(_x(), EDGES), plain) and seen == [name]
    handle.remove()
    assert torch.equal(model(_x(), EDGES), plain) and seen == [name]


class Doubled(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **options: Any) -> Tensor:
        return 2 * self.layer(*args, **options)


def test_what_stands_in_for_a_module_is_called() -> None:
    model = _model()
    plain = model(_x(), EDGES)
    for change in (_wrap_value, _wrap_attention, _wrap_block):
        model = _model()
        change(model)
        assert not torch.allclose(model(_x(), EDGES), plain)


def _wrap_value(model: MAGNA) -> None:
    block = model.blocks[0]
    assert isinstance(block, MAGNABlock)
    block.conv.value = Doubled(block.conv.value)  # type: ignore[assignment, arg-type]


def _wrap_attention(model: MAGNA) -> None:
    block = model.blocks[0]
    assert isinstance(block, MAGNABlock)
    block.conv.attention = Doubled(block.conv.attention)  # type: ignore[assignment]


def _wrap_block(model: MAGNA) -> None:
    model.blocks[0] = Doubled(model.blocks[0])


@pytest.mark.parametrize("options", [{}, {"projection": "shared"}, {"head_form": "full"}, {"num_relations": 2}])
def test_a_hook_on_the_attention_sees_the_scores(options: dict[str, Any]) -> None:
    conv = MAGNAConv(6, 8, heads=2, K=2, **options)
    call = (_x(), EDGES, *([EDGES[0] % 2] if "num_relations" in options else []))
    out, (_, attention) = conv(*call, return_attention_weights=True)
    scores: list[Tensor] = []
    conv.attention.register_forward_hook(lambda module, inputs, output: scores.append(output))
    assert torch.equal(conv(*call), out)
    graph = Graph.from_edge_index(EDGES, 4)
    assert torch.equal(edge_softmax(scores[0], graph), attention)


def test_pruned_layers_train() -> None:
    model = _model().train()
    source = model.get_submodule("blocks.0.conv.attention.source")
    prune.l1_unstructured(source, "weight", amount=0.5)
    for _ in range(2):
        model(_x(), EDGES).sum().backward()
    assert (source.weight == 0).sum() == source.weight.numel() // 2  # type: ignore[operator, union-attr]


@pytest.mark.parametrize(
    "watch",
    [
        lambda layer: layer.register_forward_pre_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_hook(lambda *_: None),
        lambda layer: layer.compile(),
    ],
)
def test_what_is_plain(watch: Callable[[nn.Module], object]) -> None:
    layer = Linear(2, 2)
    assert is_plain(layer, Linear) and not is_plain(layer, nn.Linear)
    watch(layer)
    assert not is_plain(layer, Linear)
