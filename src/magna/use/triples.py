"""Scores of full triples, the relations of a pair, and the missing links of a relation, by a finished run."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magna.config.registry import LINK_TASK
from magna.data.text import csv_rows, is_csv
from magna.data.triples import SPLITS, codes, read_lines, without_header
from magna.errors import ArgumentError, DataError
from magna.nn.link_model import LinkModel
from magna.tasks import LinkPrediction
from magna.tasks.links import log_probabilities
from magna.use.files import write_answers

_BLOCK = 128  # queries that are scored at a time
_PAIRS = 1 << 23  # pairs whose scores are held at a time


@dataclass(frozen=True)
class Link:
    """A triple with its scores.

    `score` compares triples of any head, relation and tail: the mean of log p(tail | head, relation) and
    log p(head | relation, tail) over all entities. The other probabilities are those of predictions, against the
    entities that are not known answers; the ranks leave known answers out, 1 is the best.
    """

    head: str
    relation: str
    tail: str
    score: float
    tail_probability: float
    head_probability: float
    tail_rank: float
    head_rank: float
    known: bool  # a triple of the data


@dataclass(frozen=True)
class Links:
    """Triples with their scores, in the order of the question or best first."""

    dataset: str
    links: list[Link]
    notes: tuple[str, ...] = ()

    def columns(self) -> dict[str, list[Any]]:
        """All values by column, as a table file and `pandas.DataFrame` take them."""
        return {each.name: [getattr(link, each.name) for link in self.links] for each in fields(Link)}

    def to_dict(self) -> dict[str, Any]:
        """All triples, as JSON has them."""
        links = [asdict(link) for link in self.links]
        return {"task": LINK_TASK, "dataset": self.dataset, "links": links, "notes": list(self.notes)}

    def write(self, path: str | Path, form: str | None = None) -> None:
        """Write CSV, TSV, JSON or Parquet; without `form`, the ending of the name decides."""
        write_answers(path, form, self.columns(), self.to_dict())


class TripleScores:
    """Scores of triples by a model on a knowledge graph."""

    def __init__(self, task: LinkPrediction, model: LinkModel, temperature: float) -> None:
        self.task, self.model, self.temperature = task, model, temperature
        self.triples = task.graph.triples

    def of(self, triples: Tensor) -> list[Link]:
        """Scores of triples [T, 3] of numbers, in their order."""
        head, relation, tail = triples.unbind(1)
        inverse = relation + self.task.graph.num_relations
        tails = self._ends(torch.stack([head, relation], 1), tail)
        heads = self._ends(torch.stack([tail, inverse], 1), head)
        score = ((tails[:, 0] + heads[:, 0]) / 2).tolist()
        known = self._known(triples).tolist()
        entities, relations = self.triples.entities, self.triples.relations
        rows = zip(triples.tolist(), score, tails.tolist(), heads.tolist(), known, strict=True)
        return [
            Link(entities[h], relations[r], entities[t], mean, of_tail[1], of_head[1], of_tail[2], of_head[2], is_known)
            for (h, r, t), mean, of_tail, of_head, is_known in rows
        ]

    def relations(self, head: str, tail: str) -> list[Link]:
        """Every relation between two entities, best first."""
        count, ends = self.task.graph.num_relations, (self.triples.entity_id(head), self.triples.entity_id(tail))
        first, last = (torch.full((count,), end) for end in ends)
        links = self.of(torch.stack([first, torch.arange(count), last], 1))
        return sorted(links, key=lambda link: -link.score)

    def missing(self, relation: str, top: int) -> list[Link]:
        """The `top` pairs of a relation that no split has, best first; an entity is not paired with itself.

        Scores are computed for a block of heads at a time, and only the best pairs are held.
        """
        number = self.triples.relation_id(relation)
        best: list[tuple[float, int, int]] = []
        for heads, scores in self._pairs(number):
            values, places = scores.flatten().topk(min(top, scores.numel()))
            for value, place in zip(values.tolist(), places.tolist(), strict=True):
                if value == -torch.inf or (len(best) == top and value <= best[0][0]):
                    break
                pair = value, -(heads.start + place // scores.size(1)), -(place % scores.size(1))
                (heapq.heappush if len(best) < top else heapq.heapreplace)(best, pair)
        rows = [(-head, number, -tail) for _, head, tail in sorted(best, reverse=True)]
        return self.of(torch.tensor(rows, dtype=torch.int64).view(-1, 3))

    @torch.no_grad()
    def _pairs(self, relation: int) -> Iterator[tuple[slice, Tensor]]:
        """Scores [b, N] of a block of heads with all tails, -inf for known pairs and loops."""
        task, model, temperature = self.task, self.model, self.temperature
        states, every = task.states(model), torch.arange(task.num_nodes, device=task.device)
        inverse = torch.full_like(every, relation + task.graph.num_relations)
        product = model.product(states, every, inverse)
        blocks = list(zip(every.split(_BLOCK), inverse.split(_BLOCK), strict=True))

        def towards(heads: slice) -> Tensor:
            """Scores [N, b] of heads, asked for from every tail."""
            if product is not None:
                bias = 0.0 if product.bias is None else product.bias[heads]
                return product.query @ product.candidates[heads].T + bias
            return torch.cat([model.scores(states, *block)[:, heads] for block in blocks])

        total = torch.cat([(model.scores(states, *block).double() / temperature).logsumexp(1) for block in blocks])
        queries = torch.stack([every, torch.full_like(every, relation)], 1)
        for rows, scores, known in task.blocks(model, queries, size=max(1, _PAIRS // task.num_nodes)):
            tails = (scores.double() / temperature).log_softmax(1)
            heads = towards(rows).T.double() / temperature - total
            known.scatter_(1, every[rows, None], True)
            yield rows, ((tails + heads) / 2).masked_fill(known, -torch.inf).cpu()

    def _ends(self, queries: Tensor, target: Tensor) -> Tensor:
        """Log probability among all entities, probability and filtered rank of each target, [T, 3]."""
        parts = [torch.zeros(0, 3, dtype=torch.float64)]
        for rows, scores, known in self.task.blocks(self.model, queries):
            scores, known, goal = scores.double().cpu() / self.temperature, known.cpu(), target[rows, None]
            score, total = scores.gather(1, goal), scores.logsumexp(1, keepdim=True)
            probability = log_probabilities(scores, known).exp().gather(1, goal)
            others = known.scatter(1, goal, True)
            better = ((scores > score) & ~others).sum(1) + ((scores == score) & ~others).sum(1) / 2
            parts.append(torch.cat([score - total, probability, better[:, None].double() + 1], 1))
        return torch.cat(parts)

    def _known(self, triples: Tensor) -> Tensor:
        sizes = self.task.graph.num_entities, self.task.graph.num_relations
        every = torch.cat([self.triples.split(split) for split in SPLITS])
        return torch.isin(codes(triples, *sizes), codes(every, *sizes))


def numbered_triples(task: LinkPrediction, triples: Sequence[tuple[str, str, str]]) -> Tensor:
    """Triples of names as numbers [T, 3]; an unknown name is refused with its place."""
    data, rows = task.graph.triples, []
    for place, triple in enumerate(triples, start=1):
        if len(triple) != 3 or not all(isinstance(name, str) for name in triple):
            raise ArgumentError(f"triple {place}", triple, "(head, relation, tail), three names")
        try:
            rows.append([data.entity_id(triple[0]), data.relation_id(triple[1]), data.entity_id(triple[2])])
        except ArgumentError as error:
            raise error.renamed(f"triple {place} of {len(triples)}: {error.name}") from None
    return torch.tensor(rows, dtype=torch.int64).view(-1, 3)


def read_triples(path: str | Path) -> list[tuple[str, str, str]]:
    """The triples of a file, plain or .gz, with tabs between the columns, or in a .csv commas; a header is skipped."""
    path = Path(path)
    if is_csv(path):
        lines = [(number, [cell.strip() for cell in cells]) for number, cells in csv_rows(path)]
    else:
        lines = read_lines(path)
    rows = []
    for number, columns in without_header(lines)[0]:
        if len(columns) != 3 or not all(columns):
            raise DataError(path, "it is no triple", number, allowed="head, relation, tail")
        rows.append((columns[0], columns[1], columns[2]))
    if not rows:
        raise DataError(path, "it has no triple", allowed="lines of head, relation and tail")
    return rows
