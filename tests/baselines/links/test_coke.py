"""CoKE is the Transformer of its equations, and asks for heads by a gap at the first position."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, trained_losses
from torch import Tensor, nn
from torch.nn import functional as F

import magna
from magna.baselines.links.coke import CoKE


def _model() -> CoKE:
    torch.manual_seed(0)
    model = CoKE(ENTITIES, RELATIONS, channels=8, num_blocks=2, heads=2).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def _normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def _block(x: Tensor, block: nn.TransformerEncoderLayer) -> Tensor:
    """A post-norm Transformer layer on tokens [3, C], head by head."""
    attention = block.self_attn
    assert attention.in_proj_weight is not None and attention.in_proj_bias is not None
    q, k, v = (x @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, 1)
    parts = [(q[:, c] @ k[:, c].T / math.sqrt(4)).softmax(1) @ v[:, c] for c in (slice(0, 4), slice(4, 8))]
    x = _normed(x + torch.cat(parts, 1) @ attention.out_proj.weight.T + attention.out_proj.bias, block.norm1)
    inner = F.gelu(x @ block.linear1.weight.T + block.linear1.bias)
    return _normed(x + inner @ block.linear2.weight.T + block.linear2.bias, block.norm2)


def _expected(model: CoKE, entity: int, relation: int) -> Tensor:
    """The sequence as it is read, from left to right."""
    e, w, gap = model.entity_table[entity], model.relation_table[relation % RELATIONS], model.gap
    place = 2 if relation < RELATIONS else 0
    z = torch.stack([e, w, gap] if place == 2 else [gap, w, e]) + model.positions
    z = _normed(z, model.input_norm)
    for block in model.blocks:
        assert isinstance(block, nn.TransformerEncoderLayer)
        z = _block(z, block)
    hidden = F.gelu(model.output.weight @ z[place] + model.output.bias)
    return model.entity_table @ _normed(hidden, model.output_norm) + model.entity_bias


def test_scores_are_the_formula() -> None:
    model, head, relation = _model(), torch.tensor([3, 5, 5]), torch.tensor([0, 1, 1 + RELATIONS])
    pairs = zip(head.tolist(), relation.tolist(), strict=True)
    expected = torch.stack([_expected(model, entity, kind) for entity, kind in pairs])
    torch.testing.assert_close(model.scores(model.encode(), head, relation), expected)
    tail = torch.tensor([[1, 2], [3, 3], [9, 0]])
    torch.testing.assert_close(model.scores(model.encode(), head, relation, tail), expected.gather(1, tail))


def test_it_trains() -> None:
    model = CoKE(ENTITIES, RELATIONS, channels=16, num_blocks=1, heads=2, dropout=0.0)
    losses = trained_losses(model, lr=0.005)
    assert losses[-1] < 0.9 * losses[0]


def test_heads_divide_the_channels() -> None:
    with pytest.raises(ValueError, match="heads is 3; allowed: divisors of channels, 256"):
        CoKE(4, 2, heads=3)


def test_memory_can_be_forecast() -> None:
    settings = {"model.channels": 16, "model.num_blocks": 1}
    assert magna.plan("families-coke", settings=settings, device="cpu", measure=False)["memory"]["fits"]
