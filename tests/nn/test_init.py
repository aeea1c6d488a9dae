"""Starting values: the deviation of each matrix (docs/explanation/switches.md, point 10), and the draws."""

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


SEPARATE, SHARED = ({"init": "official", "projection": name} for name in ("separate", "shared"))
TYPED, GLOROT = {"init": "official", "num_relations": 3}, {"init": "glorot"}
MATRICES = ["attention.source.weight", "attention.target.weight", "value.weight", "out.weight"]
SPREADS: list[tuple[dict[str, Any], str, float]] = [
    *((SEPARATE, name, xavier(WIDE, WIDE, 5 / 3)) for name in MATRICES),
    # Shape (1, heads, width): fan-in heads * width, fan-out width.
    (SEPARATE, "attention.source_vector", xavier(WIDE, WIDE // 2, 5 / 3)),
    # The gain of the authors' code for knowledge graphs.
    (TYPED, "attention.relation.weight", xavier(WIDE, WIDE, math.sqrt(2))),
    # Torch's own values.
    (SHARED, "out.weight", 1 / math.sqrt(3 * WIDE)),
    *((GLOROT, name, xavier(WIDE, WIDE)) for name in MATRICES),
]


@pytest.mark.parametrize(("options", "name", "deviation"), SPREADS)
def test_the_spread_of_a_layers_weights(options: dict[str, Any], name: str, deviation: float) -> None:
    weight = MAGNAConv(WIDE, WIDE, heads=2, out_projection=True, **options).get_parameter(name)
    assert spread(weight) == pytest.approx(deviation, rel=0.15 if "vector" in name else 0.05)
    if options in (SHARED, GLOROT):  # uniform
        assert weight.abs().max().item() <= math.sqrt(3) * deviation + 1e-6


def test_official_feed_forward_residual_and_classifier() -> None:
    model: Any = MAGNA(WIDE // 2, WIDE, 1, 50, heads=2, input_projection=False, init="official")
    block = model.blocks[0]
    assert spread(block.feed_forward.layers[0].weight) == pytest.approx(xavier(WIDE, 4 * WIDE, math.sqrt(2)), rel=0.05)
    assert spread(block.residual.weight) == pytest.approx(xavier(WIDE // 2, WIDE, 5 / 3), rel=0.05)
    assert spread(model.classifier.weight) == pytest.approx(xavier(WIDE, 50), rel=0.05)


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
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "determinism.md").read_text()
    row = re.search(rf"^\| `{re.escape(name)}`? .*\| (\d+) \|$", page, re.MULTILINE)
    assert row is not None and len(draws.sizes) == int(row[1])


def test_starting_values_are_drawn_in_the_order_of_the_page() -> None:
    with Draws() as draws:
        MAGNAConv(3, 8, heads=2, num_relations=5, relation_channels=7, add_self_loops=False, out_projection=True)
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
