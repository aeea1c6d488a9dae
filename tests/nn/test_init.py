"""Starting values (point 10): the spread of each matrix is that of its recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from magna.nn import MAGNA, EdgeAttention, MAGNABlock, MAGNAConv
from tests.support.graphs import random_graph

WIDE = 400


def spread(weight: torch.Tensor) -> float:
    return weight.detach().std().item()


def xavier(fan_in: int, fan_out: int, gain: float = 1.0) -> float:
    return gain * math.sqrt(2 / (fan_in + fan_out))


def test_official_layer() -> None:
    conv: Any = MAGNAConv(WIDE, WIDE, heads=2, projection="separate", init="official")
    for linear in (conv.attention.source, conv.attention.target, conv.value, conv.out):
        assert spread(linear.weight) == pytest.approx(xavier(WIDE, WIDE, 5 / 3), rel=0.05)
    # Shape (1, heads, width): fan-in heads * width, fan-out width.
    assert spread(conv.attention.source_vector) == pytest.approx(xavier(WIDE, WIDE // 2, 5 / 3), rel=0.15)


def test_official_shared_layer_leaves_the_output_projection_to_torch() -> None:
    conv: Any = MAGNAConv(WIDE, WIDE, heads=2, projection="shared", init="official")
    assert conv.out.weight.abs().max().item() <= 1 / math.sqrt(WIDE) + 1e-6
    assert spread(conv.out.weight) == pytest.approx(1 / math.sqrt(3 * WIDE), rel=0.05)


def test_official_typed_layer_has_the_gain_of_the_knowledge_graph_code() -> None:
    conv: Any = MAGNAConv(WIDE, WIDE, heads=2, num_relations=3, init="official")
    assert spread(conv.attention.relation.weight) == pytest.approx(xavier(WIDE, WIDE, math.sqrt(2)), rel=0.05)


def test_official_feed_forward_residual_and_classifier() -> None:
    model: Any = MAGNA(WIDE // 2, WIDE, 1, 50, heads=2, input_projection=False, init="official")
    block = model.blocks[0]
    assert spread(block.feed_forward.layers[0].weight) == pytest.approx(xavier(WIDE, 4 * WIDE, math.sqrt(2)), rel=0.05)
    assert spread(block.residual.weight) == pytest.approx(xavier(WIDE // 2, WIDE, 5 / 3), rel=0.05)
    assert spread(model.classifier.weight) == pytest.approx(xavier(WIDE, 50), rel=0.05)


def test_glorot_is_uniform_without_gain() -> None:
    conv: Any = MAGNAConv(WIDE, WIDE, heads=2, init="glorot")
    for linear in (conv.attention.source, conv.value, conv.out):
        assert linear.weight.abs().max().item() <= math.sqrt(6 / (2 * WIDE))
        assert spread(linear.weight) == pytest.approx(xavier(WIDE, WIDE), rel=0.05)


class Draws(TorchDispatchMode):
    """The number of entries of each tensor that is drawn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.sizes.append(out.numel())
        return out


MODULES: dict[str, Callable[[], nn.Module]] = {
    "EdgeAttention": lambda: EdgeAttention(4, 5, heads=2),
    "MAGNAConv": lambda: MAGNAConv(4, 6, heads=2),
    "MAGNABlock": lambda: MAGNABlock(4, 6, heads=2),
    "MAGNA` with 2 blocks": lambda: MAGNA(4, 6, 2, 3, heads=2),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_page_counts_the_draws_of_starting_values(name: str) -> None:
    with Draws() as draws:
        MODULES[name]()
    page = (Path(__file__).parents[2] / "docs" / "determinism.md").read_text()
    row = re.search(rf"^\| `{re.escape(name)}`? .*\| (\d+) \|$", page, re.MULTILINE)
    assert row is not None and len(draws.sizes) == int(row[1])


def test_starting_values_are_drawn_in_the_order_of_the_page() -> None:
    with Draws() as draws:
        MAGNAConv(3, 8, heads=2, num_relations=5, relation_channels=7)
    source = target = value = 3 * 8
    relation, vector, table, out = 7 * 8, 8, 5 * 7, 8 * 8
    filled = [source, target, vector, vector, relation, vector, table]
    assert draws.sizes == [source, target, relation, *filled, value, out, *filled, value, out]


def test_a_step_draws_one_seed_for_each_dropout() -> None:
    rates = ["node", "embed", "input", "output", "residual", "ffn", "ffn_output", "classifier", "edge", "feature"]
    options: dict[str, Any] = {f"{rate}_dropout": 0.1 for rate in rates}
    model = MAGNA(4, 6, 2, 3, heads=2, **options, dropout=0.1, edge_dropout_shared=True)
    graph = random_graph(5, 9)
    with Draws() as draws:
        model(torch.ones(5, 4), graph)
    assert draws.sizes == [1] * (1 + 2 + 2 * 6 + 1)
