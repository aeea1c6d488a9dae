"""The link predictor: its parts in their places, its scale at the start, saved and loaded."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from magna import LinkPredictor
from magna.data import KnowledgeGraph, load_knowledge_graph
from magna.nn.decoder import DECODERS

ENTITIES, RELATIONS = 600, 4
SMALL: dict[str, Any] = {"heads": 4, "K": 2, "final_norm": "layer", "entity_channels": 20}


def _graph(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(ENTITIES, (2, 2000), generator=generator)
    types = torch.randint(RELATIONS, (2000,), generator=generator)
    loops = torch.arange(ENTITIES)
    edge_index = torch.cat([edges, edges.flip(0), loops.expand(2, -1)], dim=1)
    return edge_index, torch.cat([types, types + RELATIONS, torch.full((ENTITIES,), 2 * RELATIONS)])


def _model(layers: int = 2, **options) -> LinkPredictor:
    torch.manual_seed(0)
    return LinkPredictor(ENTITIES, RELATIONS, 32, layers, **(SMALL | options))


def _cross_entropy(model: LinkPredictor, edge_index: Tensor, edge_type: Tensor, triples: Tensor) -> float:
    head, relation, tail = triples.unbind(1)
    with torch.no_grad():
        scores = model.eval()(edge_index, edge_type, head, relation).scores()
    return float(torch.nn.functional.cross_entropy(scores, tail))


@pytest.mark.parametrize("form", [{}, {"layers": 0}, {"K": 0}, {"relation_source": "entities"}, {"embedding_std": 1.0}])
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_loss_starts_near_log_n(decoder: str, form: dict) -> None:
    edge_index, edge_type = _graph()
    triples = torch.stack([edge_index[0], edge_type, edge_index[1]], dim=1)[:4000]
    loss = _cross_entropy(_model(decoder=decoder, **form), edge_index, edge_type, triples)
    assert loss == pytest.approx(math.log(ENTITIES), rel=0.1)


def test_the_loss_of_fb15k_237_starts_near_log_n() -> None:
    if "MAGNA_DATA_DIR" not in os.environ:
        pytest.skip("MAGNA_DATA_DIR is not set")
    graph: KnowledgeGraph = load_knowledge_graph("fb15k-237")
    torch.manual_seed(0)
    model = LinkPredictor(graph.num_entities, graph.num_relations, 64, 2, heads=8, K=2, final_norm="layer")
    loss = _cross_entropy(model, graph.edge_index, graph.edge_type, graph.triples.train[::300])
    assert loss == pytest.approx(math.log(graph.num_entities), rel=0.1)


def test_the_parts_are_in_their_places() -> None:
    edge_index, edge_type = _graph()
    model = _model().eval()
    head, relation = torch.tensor([3, 5]), torch.tensor([0, 6])
    assert model.encoder is not None and model.relation_table.shape == (2 * RELATIONS + 1, 20)
    states = model.encoder(model.entity_table, edge_index, edge_type, model.relation_table)
    scored = model(edge_index, edge_type, head, relation)
    torch.testing.assert_close(scored.states, states)
    projected = model.relation_table[relation] @ model.decoder.project.weight.T  # type: ignore[union-attr]
    torch.testing.assert_close(scored.scores(), (states[head] * projected) @ states.T)
    torch.testing.assert_close(scored.part(slice(1, 2)).scores(), scored.scores()[1:])


def test_the_draws_of_a_seed_do_not_depend_on_the_decoder() -> None:
    first, *others = (_model(decoder=decoder, relation_channels=32) for decoder in ("distmult", "complex", "tucker"))
    for other in others:
        for part in ("entity_table", "encoder.blocks.0.conv.out.weight"):
            assert torch.equal(first.get_parameter(part), other.get_parameter(part))


def test_an_entity_may_score_less_with_itself() -> None:
    torch.manual_seed(0)
    plain = _model().eval()
    torch.manual_seed(0)
    model = _model(loop_bias=True).eval()
    assert model.loop_bias is not None
    head, relation = torch.tensor([3, 5]), torch.tensor([0, 6])
    with torch.no_grad():
        model.loop_bias.add_(torch.arange(len(model.loop_bias)))
    scored = model(*_graph(), head, relation)
    less = torch.zeros_like(scored.scores())
    less[[0, 1], head] = torch.tensor([0.0, 6.0]) - math.log(model.num_entities)
    torch.testing.assert_close(scored.scores(), plain(*_graph(), head, relation).scores() + less)
    torch.testing.assert_close(scored.part(slice(1, 2)).scores(), scored.scores()[1:])


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_entities_may_have_a_bias_as_answers(decoder: str) -> None:
    model = _model(decoder=decoder, entity_bias=True).eval()
    head, relation = torch.tensor([3, 5]), torch.tensor([0, 6])
    before = model(*_graph(), head, relation).scores()
    assert model.decoder.entity_bias is not None
    with torch.no_grad():
        assert (model.decoder.entity_bias == 0).all()
        model.decoder.entity_bias.add_(torch.arange(model.num_entities))
    after = model(*_graph(), head, relation).scores()
    torch.testing.assert_close(after, before + torch.arange(model.num_entities))


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_scores_past_the_encoder_are_added(decoder: str) -> None:
    model = _model(decoder=decoder, skip_channels=12, embedding_std=1.0).eval()
    skip, head, relation = model.skip, torch.tensor([3, 5]), torch.tensor([0, 6])
    assert skip is not None and skip.entity_table.shape == (ENTITIES, 12)
    with torch.no_grad():
        for one in (model, skip):
            if one.decoder.entity_bias is not None:
                one.decoder.entity_bias.normal_()
    scored, past = model(*_graph(), head, relation), skip(*_graph(), head, relation)
    torch.testing.assert_close(scored.part(slice(1, 2)).scores(), scored.scores()[1:])
    torch.testing.assert_close(scored.whole().scores(), scored.scores())
    model.skip = None
    torch.testing.assert_close(scored.scores(), model(*_graph(), head, relation).scores() + past.scores())


def test_what_goes_past_the_encoder_changes_no_other_draw() -> None:
    plain, model = _model(), _model(skip_channels=12)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_without_layers_it_is_its_decoder() -> None:
    model = _model(layers=0, final_norm="none").eval()
    assert model.encoder is None and model.decoder.project is None
    head, relation = torch.tensor([3, 5]), torch.tensor([0, 6])
    expected = (model.entity_table[head] * model.relation_table[relation]) @ model.entity_table.T
    torch.testing.assert_close(model(*_graph(), head, relation).scores(), expected)


def test_relations_from_the_table_of_entities() -> None:
    model = _model(relation_source="entities")
    assert torch.equal(model.relations(), model.entity_table[: 2 * RELATIONS + 1])
    model(*_graph(), torch.tensor([0]), torch.tensor([0])).scores().sum().backward()
    assert model.relation_table.grad is None


def test_edges_that_are_masked_say_nothing() -> None:
    edge_index, edge_type = _graph()
    model = _model().eval()
    kept = torch.ones(edge_index.size(1), dtype=torch.bool)
    kept[: 2 * 2000 : 3] = False
    masked = model.encode(edge_index, edge_type, edge_mask=kept)
    torch.testing.assert_close(masked, model.encode(edge_index[:, kept], edge_type[kept]))


def test_types_matter_unless_they_are_not_told() -> None:
    edge_index, edge_type = _graph()
    other = edge_type.clone()
    other[:2000] = (other[:2000] + 1) % RELATIONS
    model = _model().eval()
    assert not torch.allclose(model.encode(edge_index, edge_type), model.encode(edge_index, other))
    blind = _model(typed=False).eval()
    assert torch.equal(blind.encode(edge_index, edge_type), blind.encode(edge_index, other))


def test_without_hops_no_entity_hears_of_another() -> None:
    edge_index, edge_type = _graph()
    loops = edge_index[0] == edge_index[1]
    model = _model(K=0).eval()
    torch.testing.assert_close(
        model.encode(edge_index, edge_type), model.encode(edge_index[:, loops], edge_type[loops])
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_gradients_reach_every_parameter(decoder: str) -> None:
    model = _model(decoder=decoder, input_dropout=0.1, residual_dropout=0.1, decoder_dropout=0.1, edge_dropout=0.1)
    scores = model(*_graph(), torch.arange(50), torch.arange(50) % (2 * RELATIONS)).scores()
    torch.nn.functional.cross_entropy(scores, torch.arange(50) + 1).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("form", [{}, {"layers": 0}, {"decoder": "conve", "typed": False}, {"skip_channels": 6}])
def test_it_is_saved_and_loaded(tmp_path: Path, form: dict) -> None:
    model = _model(**form).eval()
    model.save_pretrained(tmp_path)
    loaded = LinkPredictor.from_pretrained(tmp_path).eval()
    assert loaded.config == model.config
    query = (*_graph(), torch.tensor([1, 2]), torch.tensor([0, 3]))
    assert torch.equal(loaded(*query).scores(), model(*query).scores())


def test_official_starting_values() -> None:
    model = _model(init="official", entity_channels=100, relation_source="entities")
    bound = model.entity_table.abs().max().item()
    assert 0.59 < bound <= 0.6
    assert not model.relation_table.any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"decoder": "distmul"}, "decoder is 'distmul'; allowed: 'distmult'"),
        ({"entity_channels": 0}, "entity_channels is 0"),
        ({"skip_channels": -1}, "skip_channels is -1"),
        ({"embedding_std": 0.0}, "embedding_std is 0.0; allowed: above 0"),
        ({"relation_source": "entities", "relation_channels": 8}, "allowed: as wide, and no more relations"),
        ({"add_self_loops": True}, "'add_self_loops' is given"),
        ({"top_q": 3}, "did you mean 'top_k'"),
    ],
)
def test_what_it_refuses(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _model(**options)
