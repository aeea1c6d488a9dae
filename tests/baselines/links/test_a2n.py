"""A2N attends as its equations say, to the edges that are present, and to a choice of many."""

from __future__ import annotations

import torch
from tests.support.links import ENTITIES, RELATIONS, link_task, trained_losses

from magna.baselines.links.a2n import A2N

TASK = link_task()


def _model(**options: int) -> A2N:
    torch.manual_seed(0)
    return A2N(ENTITIES, RELATIONS, **{"channels": 6, "embedding_std": 1.0} | options).double().eval()


def test_scores_are_the_formula() -> None:
    model, mask = _model(), torch.rand(TASK.num_edges) < 0.6
    mask[(TASK.edge_index[1] == 7) & (TASK.edge_type != 2 * RELATIONS)] = False  # no neighbour is left
    head, relation = torch.tensor([3, 7, 5]), torch.tensor([0, 1, 1 + RELATIONS])
    entities, relations = model.entity_table, model.relation_table
    expected, counts = [], []
    for h, r in zip(head.tolist(), relation.tolist(), strict=True):
        near = mask & (TASK.edge_index[1] == h) & (TASK.edge_type != 2 * RELATIONS)
        assert TASK.edge_type is not None
        n = (
            torch.cat([entities[TASK.edge_index[0, near]], relations[TASK.edge_type[near]]], 1)
            @ model.neighbour.weight.T
        )
        p = (n @ (entities[h] * relations[r])).softmax(0)
        joined = model.join.weight @ torch.cat([p @ n, entities[h]])
        expected.append(entities @ (joined * relations[r]))
        counts.append(len(n))
    states = model.encode(TASK.edge_index, TASK.edge_type, edge_mask=mask)
    scores = model.scores(states, head, relation)
    torch.testing.assert_close(scores, torch.stack(expected))
    assert counts[1] == 0 < min(counts[0], counts[2])
    tail = torch.tensor([[1, 2], [3, 3], [9, 0]])
    torch.testing.assert_close(model.scores(states, head, relation, tail), scores.gather(1, tail))


def test_a_choice_of_neighbours() -> None:
    model, head = _model(max_neighbours=3), torch.arange(ENTITIES)
    states = model.encode(TASK.edge_index, TASK.edge_type)
    edges, present = model.edges(states, head)
    assert torch.equal(states.graph.target[edges], head[:, None].expand_as(edges))
    assert torch.equal(model.edges(states, head)[0], edges)  # the same each time
    assert all(len(set(row.tolist())) == 3 for row in edges[states.graph.rowptr.diff() >= 3])
    drawn = [model.train().edges(states, head)[0] for _ in range(30)]
    assert len({tuple(row.flatten().tolist()) for row in drawn}) > 1
    busiest = int(states.graph.rowptr.diff().argmax())
    seen = torch.cat([row[busiest] for row in drawn]).unique()
    assert len(seen) > 3 and (states.graph.target[seen] == busiest).all()
    assert present.any(1).all()


def test_ranks_and_training() -> None:
    model = A2N(ENTITIES, RELATIONS, channels=16, decoder_dropout=0.1)
    losses = trained_losses(model)
    assert losses[-1] < 0.95 * losses[0]  # answers are masked, and the triples are random
    assert 0 < TASK.evaluate(model, "valid")["mrr"] < 1
