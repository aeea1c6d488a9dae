"""SACN's encoder and decoder are their equations, with masked edges and in evaluation mode."""

from __future__ import annotations

import torch
from tests.support.links import ENTITIES, RELATIONS, link_task, trained_losses
from torch import nn

from magna.baselines.links.sacn import SACN, ConvTransE, WGCNEncoder
from magna.nn.link_model import Scorer

TASK = link_task()


def _model() -> SACN:
    model = SACN(ENTITIES, RELATIONS, channels=6, num_layers=2).double()
    generator = torch.Generator().manual_seed(1)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)  # positive, as variances are
    return model.eval()


def _normed(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A batch norm in evaluation mode, over the second axis of x."""
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None and norm.running_var is not None
    shape = (1, -1) + (1,) * (x.dim() - 2)
    mean, var, weight, bias = (t.view(shape) for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias))
    return (x - mean) / (var + norm.eps).sqrt() * weight + bias


def test_states_are_the_formula() -> None:
    model, mask = _model(), torch.rand(TASK.num_edges) < 0.8
    encoder, x = model.scorer.encoder, model.scorer.entity_table.detach()
    assert isinstance(encoder, WGCNEncoder) and TASK.edge_type is not None
    for layer in range(2):
        adjacency = torch.zeros(ENTITIES, ENTITIES).double()
        for (source, target), kind, present in zip(
            TASK.edge_index.T.tolist(), TASK.edge_type.tolist(), mask, strict=True
        ):
            weight = 1.0 if kind == 2 * RELATIONS else float(encoder.alpha.detach()[layer, kind % RELATIONS])
            adjacency[target, source] += weight * bool(present)
        linear = encoder.linears[layer]
        assert isinstance(linear, nn.Linear)
        x = _normed(encoder.norms[layer], adjacency @ x @ linear.weight.T).tanh()
    torch.testing.assert_close(model.encode(TASK.edge_index, TASK.edge_type, edge_mask=mask), x)


def test_scores_are_the_formula() -> None:
    model, head, relation = _model(), torch.tensor([3, 5]), torch.tensor([0, RELATIONS + 1])
    states, scorer = model.encode(TASK.edge_index, TASK.edge_type).detach(), model.scorer
    assert isinstance(scorer, Scorer) and isinstance(scorer.decoder, ConvTransE)
    decoder = scorer.decoder
    pair = _normed(decoder.pair_norm, torch.stack([states[head], scorer.relation_table[relation]], 1))
    padded = torch.cat([torch.zeros(2, 2, 2).double(), pair, torch.zeros(2, 2, 2).double()], 2)
    windows = torch.stack([padded[:, :, place : place + 5] for place in range(6)], 2)  # [B, 2, C, 5]
    maps = torch.einsum("bicw,fiw->bfc", windows, decoder.filters.weight) + decoder.filters.bias[:, None]  # type: ignore[index]
    maps = _normed(decoder.map_norm, maps).relu()
    query = _normed(decoder.out_norm, maps.flatten(1) @ decoder.out.weight.T + decoder.out.bias).relu()
    assert decoder.entity_bias is not None
    expected = query @ states.T + decoder.entity_bias
    torch.testing.assert_close(model.scores(states, head, relation), expected)


def test_scores_start_with_a_deviation_of_one() -> None:
    decoder = ConvTransE(64, 64, 500)
    decoder.reset_parameters()
    head, relation, states = torch.randn(200, 64), torch.randn(200, 64), torch.randn(500, 64)
    for training in (False, True):
        scores = decoder.train(training).query(head, relation) @ states.T
        assert 0.7 < scores.std().item() < 1.3


def test_it_trains() -> None:
    losses = trained_losses(SACN(ENTITIES, RELATIONS, channels=16, decoder_dropout=0.1, dropout=0.1))
    assert losses[-1] < 0.95 * losses[0]  # answers are masked, and the triples are random
