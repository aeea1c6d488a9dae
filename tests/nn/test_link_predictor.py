"""The link predictor: its parts, its scale at the start, saving and loading."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from magna import LinkPredictor
from magna.config.registry import decoder_names
from magna.data import KnowledgeGraph, load_knowledge_graph

DECODERS = decoder_names()
ENTITIES, RELATIONS = 600, 4
SMALL: dict[str, Any] = {"heads": 4, "K": 2, "final_norm": "layer"}
NO_LAYERS = {"num_layers": 0, "final_norm": "layer"}


def _graph(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(ENTITIES, (2, 2000), generator=generator)
    types = torch.randint(RELATIONS, (2000,), generator=generator)
    loops = torch.arange(ENTITIES)
    edge_index = torch.cat([edges, edges.flip(0), loops.expand(2, -1)], dim=1)
    return edge_index, torch.cat([types, types + RELATIONS, torch.full((ENTITIES,), 2 * RELATIONS)])


def _model(**options: Any) -> LinkPredictor:
    torch.manual_seed(0)
    if options.get("num_layers") != 0:
        options = SMALL | options
    return LinkPredictor(ENTITIES, RELATIONS, **{"hidden_channels": 32, "entity_channels": 20} | options)


def _cross_entropy(model: LinkPredictor, edge_index: Tensor, edge_type: Tensor, triples: Tensor) -> float:
    head, relation, tail = triples.unbind(1)
    with torch.no_grad():
        scores = model.eval()(edge_index, edge_type, head, relation)
    return float(torch.nn.functional.cross_entropy(scores, tail))


@pytest.mark.parametrize("form", [{}, NO_LAYERS, {"K": 0}, {"relation_source": "entities"}, {"embedding_std": 1.0}])
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_loss_starts_near_log_n(decoder: str, form: dict[str, Any]) -> None:
    edge_index, edge_type = _graph()
    triples = torch.stack([edge_index[0], edge_type, edge_index[1]], dim=1)[:4000]
    loss = _cross_entropy(_model(decoder=decoder, **form), edge_index, edge_type, triples)
    assert loss == pytest.approx(math.log(ENTITIES), rel=0.1)


def test_the_loss_of_fb15k_237_starts_near_log_n() -> None:
    if "MAGNA_DATA_DIR" not in os.environ:
        pytest.skip("MAGNA_DATA_DIR is not set")
    graph: KnowledgeGraph = load_knowledge_graph("fb15k-237")
    torch.manual_seed(0)
    model = LinkPredictor(graph.num_entities, graph.num_relations, hidden_channels=64, K=2, final_norm="layer")
    loss = _cross_entropy(model, graph.edge_index, graph.edge_type, graph.triples.train[::300])
    assert loss == pytest.approx(math.log(graph.num_entities), rel=0.1)


def test_the_parts_are_in_their_places() -> None:
    edge_index, edge_type = _graph()
    model = _model().eval()
    head, relation = torch.tensor([3, 5]), torch.tensor([0, 6])
    deep = model.deep
    assert deep.encoder is not None and deep.relation_table.shape == (2 * RELATIONS + 1, 20)
    states = deep.encoder(deep.entity_table, edge_index, edge_type, deep.relation_table)
    torch.testing.assert_close(model.encode(edge_index, edge_type), states)
    assert deep.decoder.project is not None
    projected = deep.relation_table[relation] @ deep.decoder.project.weight.T
    scores = (states[head] * projected) @ states.T
    torch.testing.assert_close(model(edge_index, edge_type, head, relation), scores)
    tail = torch.tensor([[1, 2, 3], [9, 9, 0]])
    torch.testing.assert_close(model.scores(states, head, relation, tail), scores.gather(1, tail))


def test_the_draws_of_a_seed_do_not_depend_on_the_decoder() -> None:
    first, *others = (_model(decoder=decoder, relation_channels=32) for decoder in ("distmult", "complex", "tucker"))
    for other in others:
        for part in ("deep.entity_table", "deep.encoder.blocks.0.conv.out.weight"):
            assert torch.equal(first.get_parameter(part), other.get_parameter(part))


def test_the_loop_bias_is_added_to_the_score_of_the_head() -> None:
    plain, model = _model().eval(), _model(loop_bias=True).eval()
    loop_bias, head, relation = model.deep.loop_bias, torch.tensor([3, 5]), torch.tensor([0, 6])
    assert loop_bias is not None
    with torch.no_grad():
        loop_bias.add_(torch.arange(len(loop_bias)))
    bias = torch.zeros(2, ENTITIES)
    bias[[0, 1], head] = torch.tensor([0.0, 6.0]) - math.log(ENTITIES)
    query = (*_graph(), head, relation)
    torch.testing.assert_close(model(*query), plain(*query) + bias)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_entity_bias_is_added_to_all_scores(decoder: str) -> None:
    model = _model(decoder=decoder, entity_bias=True).eval()
    query, bias = (*_graph(), torch.tensor([3, 5]), torch.tensor([0, 6])), model.deep.decoder.entity_bias
    before = model(*query)
    assert bias is not None and not bias.any()
    with torch.no_grad():
        bias.add_(torch.arange(ENTITIES))
    torch.testing.assert_close(model(*query), before + torch.arange(ENTITIES))


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_scores_of_shallow_embeddings_are_added(decoder: str) -> None:
    model = _model(decoder=decoder, skip_channels=12, embedding_std=1.0).eval()
    shallow, head, relation = model.shallow, torch.tensor([3, 5]), torch.tensor([0, 6])
    assert shallow is not None and shallow.entity_table.shape == (ENTITIES, 12)
    with torch.no_grad():
        for scorer in model.scorers.values():
            if scorer.decoder.entity_bias is not None:
                scorer.decoder.entity_bias.normal_()
    states = model.encode(*_graph())
    scores, product = model.scores(states, head, relation), model.product(states, head, relation)
    assert product is not None
    torch.testing.assert_close(product.scores(), scores)
    rows, relations = shallow.entity_table, shallow.decoder.relation(shallow.relation_table[relation])
    added = shallow.decoder.query(rows[head], relations) @ rows.T
    added = added if shallow.decoder.entity_bias is None else added + shallow.decoder.entity_bias
    model.shallow = None
    torch.testing.assert_close(scores, model.scores(states, head, relation) + added)


def test_shallow_embeddings_change_no_other_draw() -> None:
    plain, model = _model(), _model(skip_channels=12)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_without_layers_it_is_its_decoder() -> None:
    model = _model(num_layers=0).eval()
    deep, head, relation = model.deep, torch.tensor([3, 5]), torch.tensor([0, 6])
    assert deep.encoder is None and deep.decoder.project is None
    expected = (deep.entity_table[head] * deep.relation_table[relation]) @ deep.entity_table.T
    torch.testing.assert_close(model(*_graph(), head, relation), expected)


def test_relations_from_the_table_of_entities() -> None:
    model = _model(relation_source="entities")
    assert torch.equal(model.deep.relations(), model.deep.entity_table[: 2 * RELATIONS + 1])
    model(*_graph(), torch.tensor([0]), torch.tensor([0])).sum().backward()
    assert model.deep.relation_table.grad is None


def test_masked_edges_change_nothing() -> None:
    edge_index, edge_type = _graph()
    model = _model().eval()
    mask = torch.ones(edge_index.size(1), dtype=torch.bool)
    mask[: 2 * 2000 : 3] = False
    masked = model.encode(edge_index, edge_type, edge_mask=mask)
    torch.testing.assert_close(masked, model.encode(edge_index[:, mask], edge_type[mask]))


def test_types_matter_unless_the_model_is_untyped() -> None:
    edge_index, edge_type = _graph()
    other = edge_type.clone()
    other[:2000] = (other[:2000] + 1) % RELATIONS
    model = _model().eval()
    assert not torch.allclose(model.encode(edge_index, edge_type), model.encode(edge_index, other))
    blind = _model(typed=False).eval()
    assert torch.equal(blind.encode(edge_index, edge_type), blind.encode(edge_index, other))


def test_without_hops_no_entity_reads_another() -> None:
    edge_index, edge_type = _graph()
    loops = edge_index[0] == edge_index[1]
    model = _model(K=0).eval()
    torch.testing.assert_close(
        model.encode(edge_index, edge_type), model.encode(edge_index[:, loops], edge_type[loops])
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_gradients_reach_every_parameter(decoder: str) -> None:
    model = _model(decoder=decoder, input_dropout=0.1, residual_dropout=0.1, decoder_dropout=0.1, edge_dropout=0.1)
    scores = model(*_graph(), torch.arange(50), torch.arange(50) % (2 * RELATIONS))
    torch.nn.functional.cross_entropy(scores, torch.arange(50) + 1).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("form", [{}, NO_LAYERS, {"decoder": "conve", "typed": False}, {"skip_channels": 6}])
def test_it_is_saved_and_loaded(tmp_path: Path, form: dict[str, Any]) -> None:
    model = _model(**form).eval()
    model.save_pretrained(tmp_path)
    loaded = LinkPredictor.from_pretrained(tmp_path).eval()
    assert loaded.config == model.config
    query = (*_graph(), torch.tensor([1, 2]), torch.tensor([0, 3]))
    assert torch.equal(loaded(*query), model(*query))


def test_official_starting_values() -> None:
    model = _model(init="official", entity_channels=100, relation_source="entities")
    assert 0.59 < model.deep.entity_table.abs().max().item() <= 0.6
    assert not model.deep.relation_table.any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"decoder": "distmul"}, "decoder is 'distmul'; did you mean 'distmult'"),
        ({"entity_channels": 0}, "entity_channels is 0"),
        ({"skip_channels": -1}, "skip_channels is -1"),
        ({"embedding_std": 0.0}, "embedding_std is 0.0; allowed: above 0"),
        ({"relation_source": "entities", "relation_channels": 8}, "relation_source is 'entities'; allowed: relations"),
        ({"add_self_loops": True}, "add_self_loops is True; allowed: no value"),
        ({"num_layers": 0, "K": 2}, "K is 2; allowed: only with num_layers above 0"),
        ({"top_q": 3}, "did you mean 'top_k'"),
    ],
)
def test_it_refuses(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _model(**options)
