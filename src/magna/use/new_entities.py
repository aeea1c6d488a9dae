"""Vectors of entities that a training has not seen, from their triples; nothing else is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from magna.config.schema import Config
from magna.data import KnowledgeGraph
from magna.errors import DataError
from magna.nn.ensemble import model_class
from magna.nn.link_model import LinkModel
from magna.tasks.links import LinkPrediction, log_probabilities
from magna.training.warm_start import carried_over

_STEPS, _RATE = 50, 0.02  # chosen on hidden entities of families, see docs/notebook
_QUERIES = 256  # of a step


def with_new_entities(model: LinkModel, config: Config, before: Mapping[str, Any], task: LinkPrediction) -> LinkModel:
    """The model for the entities of a task; the schema `before` has those that it was trained on.

    The vector of a new entity starts as the mean, over its triples, of the vectors of all entities with the same
    relation on the same side. Then the new vectors alone follow the gradient of the likelihood of these triples.
    """
    now, sizes = task.schema, {"num_entities": task.graph.num_entities}
    fresh: LinkModel = model_class(config.model)(**{**model.config, **sizes})
    state = carried_over(model.state_dict(), fresh.state_dict(), before, now)
    if missing := [name for name in fresh.state_dict() if name not in state]:
        fault = f"it has new entities, and {missing[0]} of a {config.model.name} model has no rows for them"
        raise DataError(task.dataset, fault, hint="to train again")
    known = set(before["entities"])
    is_new = torch.tensor([name not in known for name in now["entities"]])
    rows = {name: value for name, value in state.items() if value.dim() and len(value) == len(is_new)}
    for value in rows.values():
        value[is_new] = _like_others(value, is_new, task.graph)[is_new]
    fresh.load_state_dict(state)
    fresh = fresh.to(task.device).eval().requires_grad_(False)
    return _fitted(fresh, [name for name, _ in fresh.named_parameters() if name in rows], is_new, task)


def _like_others(table: Tensor, is_new: Tensor, graph: KnowledgeGraph) -> Tensor:
    """Rows [N, …] that the triples of each entity suggest; the mean of the old ones without a triple."""
    head, relation, tail = graph.triples.train.unbind(1)
    ends, kinds = torch.cat([head, tail]), torch.cat([relation, relation + graph.num_relations])
    old = ~is_new[ends]
    centres = _means(table[ends[old]], kinds[old], 2 * graph.num_relations)
    suggested = _means(centres[kinds], ends, len(table))
    lonely = torch.bincount(ends, minlength=len(table)) == 0
    suggested[lonely] = table[~is_new].mean(0)
    return suggested


def _means(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    count = torch.bincount(group, minlength=groups).clamp(min=1).to(rows)
    total = rows.new_zeros(groups, *rows.shape[1:]).index_add_(0, group, rows)
    return total / count.view(-1, *[1] * (rows.dim() - 1))


class _Asked(nn.Module):
    """The scores of queries by a model on the graph of a task, as one call."""

    def __init__(self, model: LinkModel, task: LinkPrediction) -> None:
        super().__init__()
        self.model, self.edges = model, (task.edge_index, task.edge_type)

    def forward(self, queries: Tensor) -> Tensor:
        return self.model.scores(self.model.encode(*self.edges), *queries.unbind(1))


def _fitted(model: LinkModel, names: list[str], is_new: Tensor, task: LinkPrediction) -> LinkModel:
    """The model whose tables `names` have rows that make the triples of the new entities likely."""
    graph, places = task.graph, is_new.nonzero().squeeze(1).to(task.device)
    head, relation, tail = graph.triples.train.unbind(1)
    queries = torch.stack([torch.cat([head, tail]), torch.cat([relation, relation + graph.num_relations])], 1)
    target = torch.cat([tail, head])
    mine = is_new[queries[:, 0]] | is_new[target]
    queries, target = queries[mine], target[mine]
    if len(queries) == 0 or not names:
        return model
    tables = {name: model.get_parameter(name) for name in names}
    free = {name: table[places].clone().requires_grad_() for name, table in tables.items()}
    asked, optimiser, draw = _Asked(model, task), torch.optim.Adam(free.values(), lr=_RATE), torch.Generator()
    for step in range(_STEPS):
        rows = torch.randperm(len(queries), generator=draw.manual_seed(step))[:_QUERIES]
        known = _known(graph, queries[rows]).to(task.device)
        changed = {f"model.{name}": table.index_copy(0, places, free[name]) for name, table in tables.items()}
        scores = functional_call(asked, changed, (queries[rows].to(task.device),))
        goal = target[rows, None].to(task.device)
        loss = -log_probabilities(scores.float(), known).gather(1, goal).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        for name, table in tables.items():
            table[places] = free[name]
    return model


def _known(graph: KnowledgeGraph, queries: Tensor) -> Tensor:
    answers = graph.answers_to(queries, ("train",))
    mask = torch.zeros(len(queries), graph.num_entities, dtype=torch.bool)
    mask[torch.repeat_interleave(torch.arange(len(queries)), answers.counts), answers.index] = True
    return mask
