"""Starting values (point 10): the spread of each matrix is that of its recipe."""

import math
from typing import Any

import pytest
import torch

from magna.nn import MAGNA, MAGNAConv

WIDE = 400


def spread(weight: torch.Tensor) -> float:
    return weight.detach().std().item()


def xavier(fan_in: int, fan_out: int, gain: float = 1.0) -> float:
    return gain * math.sqrt(2 / (fan_in + fan_out))


def test_official_layer():
    conv: Any = MAGNAConv(WIDE, WIDE, heads=2, projection="separate", init="official")
    for linear in (conv.attention.source, conv.attention.target, conv.value, conv.out):
        assert spread(linear.weight) == pytest.approx(xavier(WIDE, WIDE, 5 / 3), rel=0.05)
    # Shape (1, heads, width): fan-in heads * width, fan-out width.
    assert spread(conv.attention.source_vector) == pytest.approx(xavier(WIDE, WIDE // 2, 5 / 3), rel=0.15)


def test_official_shared_layer_leaves_the_output_projection_to_torch():
    conv: Any = MAGNAConv(WIDE, WIDE, heads=2, projection="shared", init="official")
    assert conv.out.weight.abs().max().item() <= 1 / math.sqrt(WIDE) + 1e-6
    assert spread(conv.out.weight) == pytest.approx(1 / math.sqrt(3 * WIDE), rel=0.05)


def test_official_typed_layer_has_the_gain_of_the_knowledge_graph_code():
    conv: Any = MAGNAConv(WIDE, WIDE, heads=2, num_relations=3, init="official")
    assert spread(conv.attention.relation.weight) == pytest.approx(xavier(WIDE, WIDE, math.sqrt(2)), rel=0.05)


def test_official_feed_forward_residual_and_classifier():
    model: Any = MAGNA(WIDE // 2, WIDE, 1, 50, heads=2, input_projection=False, init="official")
    block = model.blocks[0]
    assert spread(block.feed_forward.layers[0].weight) == pytest.approx(xavier(WIDE, 4 * WIDE, math.sqrt(2)), rel=0.05)
    assert spread(block.residual.weight) == pytest.approx(xavier(WIDE // 2, WIDE, 5 / 3), rel=0.05)
    assert spread(model.classifier.weight) == pytest.approx(xavier(WIDE, 50), rel=0.05)


def test_glorot_is_uniform_without_gain():
    conv: Any = MAGNAConv(WIDE, WIDE, heads=2, init="glorot")
    for linear in (conv.attention.source, conv.value, conv.out):
        assert linear.weight.abs().max().item() <= math.sqrt(6 / (2 * WIDE))
        assert spread(linear.weight) == pytest.approx(xavier(WIDE, WIDE), rel=0.05)
