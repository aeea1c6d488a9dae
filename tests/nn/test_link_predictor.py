"""The link predictor: its parts, its scale at the start, saving and loading."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from magna import LinkPredictor
from magna.config.registry import decoder_names
from tests.support.comparing import all_learn
from tests.support.graphs import integers

DECODERS = decoder_names()
ENTITIES, RELATIONS = 600, 4
SMALL: dict[str, Any] = {"heads": 4, "K": 2, "final_norm": "layer"}
NO_LAYERS = {"num_layers": 0, "final_norm": "layer"}


EDGES, TYPES = integers(ENTITIES, 2, 2000, seed=0), integers(RELATIONS, 2000, seed=1)
EDGES = torch.cat([EDGES, EDGES.flip(0), torch.arange(ENTITIES).expand(2, -1)], dim=1)
TYPES = torch.cat([TYPES, TYPES + RELATIONS, torch.full((ENTITIES,), 2 * RELATIONS)])
HEAD, RELATION = torch.tensor([3, 5]), torch.tensor([0, 6])
QUERY = EDGES, TYPES, HEAD, RELATION


def _model(**options: Any) -> LinkPredictor:
    torch.manual_seed(0)
    if options.get("num_layers") != 0:
        options = SMALL | options
    return LinkPredictor(ENTITIES, RELATIONS, **{"hidden_channels": 32, "entity_channels": 20} | options)


@pytest.mark.parametrize("form", [{}, NO_LAYERS, {"K": 0}, {"relation_source": "entities"}, {"embedding_std": 1.0}])
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_loss_starts_near_log_n(decoder: str, form: dict[str, Any]) -> None:
    with torch.no_grad():
        scores = _model(decoder=decoder, **form).eval()(EDGES, TYPES, EDGES[0, :4000], TYPES[:4000])
    loss = torch.nn.functional.cross_entropy(scores, EDGES[1, :4000])
    assert float(loss) == pytest.approx(math.log(ENTITIES), rel=0.1)


def test_the_parts_are_in_their_places() -> None:
    model = _model().eval()
    deep = model.deep
    assert deep.encoder is not None and deep.relation_table.shape == (2 * RELATIONS + 1, 20)
    states = deep.encoder(deep.entity_table, EDGES, TYPES, deep.relation_table)
    torch.testing.assert_close(model.encode(EDGES, TYPES), states)
    assert deep.decoder.project is not None
    projected = deep.relation_table[RELATION] @ deep.decoder.project.weight.T
    scores = (states[HEAD] * projected) @ states.T
    torch.testing.assert_close(model(*QUERY), scores)
    tail = torch.tensor([[1, 2, 3], [9, 9, 0]])
    torch.testing.assert_close(model.scores(states, HEAD, RELATION, tail), scores.gather(1, tail))


@pytest.mark.parametrize("change", [{"decoder": "complex"}, {"decoder": "tucker"}, {"skip_channels": 12}])
def test_the_draws_of_a_seed_depend_on_neither_decoder_nor_shallow_embeddings(change: dict[str, Any]) -> None:
    plain, model = (_model(**options, relation_channels=32).state_dict() for options in ({}, change))
    for name, value in plain.items():
        scaled = name == "deep.relation_table" and "decoder" in change
        assert scaled or torch.equal(value, model[name]), name


def test_the_loop_bias_is_added_to_the_score_of_the_head() -> None:
    plain, model = _model().eval(), _model(loop_bias=True).eval()
    loop_bias = model.deep.loop_bias
    assert loop_bias is not None
    with torch.no_grad():
        loop_bias.add_(torch.arange(len(loop_bias)))
    bias = torch.zeros(2, ENTITIES)
    bias[[0, 1], HEAD] = torch.tensor([0.0, 6.0]) - math.log(ENTITIES)
    torch.testing.assert_close(model(*QUERY), plain(*QUERY) + bias)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_entity_bias_is_added_to_all_scores(decoder: str) -> None:
    model = _model(decoder=decoder, entity_bias=True).eval()
    before, bias = model(*QUERY), model.deep.decoder.entity_bias
    assert bias is not None and not bias.any()
    with torch.no_grad():
        bias.add_(torch.arange(ENTITIES))
    torch.testing.assert_close(model(*QUERY), before + torch.arange(ENTITIES))


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_scores_of_shallow_embeddings_are_added(decoder: str) -> None:
    model = _model(decoder=decoder, skip_channels=12, embedding_std=1.0).eval()
    shallow = model.shallow
    assert shallow is not None and shallow.entity_table.shape == (ENTITIES, 12)
    with torch.no_grad():
        for scorer in model.scorers.values():
            if scorer.decoder.entity_bias is not None:
                scorer.decoder.entity_bias.normal_()
    states = model.encode(EDGES, TYPES)
    scores, product = model.scores(states, HEAD, RELATION), model.product(states, HEAD, RELATION)
    assert product is not None
    torch.testing.assert_close(product.scores(), scores)
    rows, relations = shallow.entity_table, shallow.decoder.relation(shallow.relation_table[RELATION])
    added = shallow.decoder.query(rows[HEAD], relations) @ rows.T
    added = added if shallow.decoder.entity_bias is None else added + shallow.decoder.entity_bias
    model.shallow = None
    torch.testing.assert_close(scores, model.scores(states, HEAD, RELATION) + added)


def test_without_layers_it_is_its_decoder() -> None:
    model = _model(num_layers=0).eval()
    deep = model.deep
    assert deep.encoder is None and deep.decoder.project is None
    expected = (deep.entity_table[HEAD] * deep.relation_table[RELATION]) @ deep.entity_table.T
    torch.testing.assert_close(model(*QUERY), expected)


def test_relations_from_the_table_of_entities() -> None:
    model = _model(relation_source="entities")
    assert torch.equal(model.deep.relations(), model.deep.entity_table[: 2 * RELATIONS + 1])
    model(*QUERY).sum().backward()
    assert model.deep.relation_table.grad is None


def test_types_matter_unless_the_model_is_untyped() -> None:
    other = TYPES.clone()
    other[:2000] = (other[:2000] + 1) % RELATIONS
    model, untyped = _model().eval(), _model(typed=False).eval()
    assert not torch.allclose(model.encode(EDGES, TYPES), model.encode(EDGES, other))
    assert torch.equal(untyped.encode(EDGES, TYPES), untyped.encode(EDGES, other))


@pytest.mark.parametrize("decoder", DECODERS)
def test_gradients_reach_every_parameter(decoder: str) -> None:
    model = _model(decoder=decoder, input_dropout=0.1, residual_dropout=0.1, decoder_dropout=0.1, edge_dropout=0.1)
    scores = model(EDGES, TYPES, torch.arange(50), torch.arange(50) % (2 * RELATIONS))
    torch.nn.functional.cross_entropy(scores, torch.arange(50) + 1).backward()
    all_learn(model)


@pytest.mark.parametrize("form", [{}, NO_LAYERS, {"decoder": "conve", "typed": False}, {"skip_channels": 6}])
def test_it_is_saved_and_loaded(tmp_path: Path, form: dict[str, Any]) -> None:
    model = _model(**form).eval()
    model.save_pretrained(tmp_path)
    loaded = LinkPredictor.from_pretrained(tmp_path).eval()
    assert loaded.config == model.config
    assert torch.equal(loaded(*QUERY), model(*QUERY))


def test_official_starting_values() -> None:
    model = _model(init="official", entity_channels=100, relation_source="entities")
    assert 0.59 < model.deep.entity_table.abs().max().item() <= 0.6
    assert not model.deep.relation_table.any()
