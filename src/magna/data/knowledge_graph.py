"""A knowledge graph as training and ranking read it: edges both ways, queries, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from magna.data.triples import SPLITS, Triples, codes
from magna.errors import ArgumentError, DataError

_SHUFFLES = 100  # at most, of the edges of a random graph that are true triples


class Answers(NamedTuple):
    """The answers of query q are `index[ptr[q]:ptr[q + 1]]`, sorted, each once."""

    ptr: Tensor  # [Q + 1]
    index: Tensor  # type: ignore[assignment]  # [A]; a tuple has a method of this name, which nobody needs here

    @property
    def counts(self) -> Tensor:
        return self.ptr.diff()

    def to(self, device: torch.device | str) -> Answers:
        return Answers(self.ptr.to(device), self.index.to(device))


@dataclass(frozen=True, eq=False)
class Ranking:
    """The questions of a split: for each of its T triples the tail, then for each the head.

    Rows 0 … T-1 of `query` and `target` ask (head, relation, ?), rows T … 2T-1 ask (tail, inverse relation, ?) of the
    same triples in the same order. `known` has the true answers of all splits: a rank leaves them out, except the
    target.
    """

    split: str
    queries: Tensor  # [Q, 2] each (head, relation) once, relation in 0..2R-1
    known: Answers
    query: Tensor  # [2T] position in `queries`
    target: Tensor  # [2T] the entity to be found
    rel_type: Tensor  # [2T] in 0..R-1, the relation of the triple, whichever side is asked

    @property
    def num_triples(self) -> int:
        return len(self.query) // 2

    def side(self, name: str) -> slice:
        """The rows that ask for "tail" or for "head"."""
        if name not in ("head", "tail"):
            raise ArgumentError("side", name, ["head", "tail"])
        return slice(None, self.num_triples) if name == "tail" else slice(self.num_triples, None)

    def to(self, device: torch.device | str) -> Ranking:
        tensors = {name: getattr(self, name).to(device) for name in ("queries", "known", "query", "target", "rel_type")}
        return replace(self, **tensors)


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Training triples as edges and as queries; R relations, r + R is the inverse of r, 2R a self-loop.

    Every training triple (h, r, t) is an edge h → t of type r and an edge t → h of type r + R: first all of one kind,
    then all of the other, in the order of the triples, then a self-loop for each entity. A query (head, relation)
    asks for tails; the heads of (?, r, t) are the answers of (t, r + R).
    """

    triples: Triples
    num_entities: int
    num_relations: int
    edge_index: Tensor  # [2, E]
    edge_type: Tensor  # [E] in 0..2R
    queries: Tensor  # [Q, 2] of training, each once
    answers: Answers  # of `queries`, in training
    edge_query: Tensor  # [E] the query that an edge answers; -1: a self-loop
    reverse_query: Tensor  # [E] the query that its triple answers from the other end; -1: a self-loop

    @staticmethod
    def from_triples(triples: Triples) -> KnowledgeGraph:
        """Build everything at once.

        >>> from magna.data.triples import triples_from
        >>> pair = triples_from("pair", {"train": [("a", "r", "b")], "valid": [], "test": []})
        >>> graph = KnowledgeGraph.from_triples(pair)
        >>> graph.edge_index.tolist(), graph.edge_type.tolist(), graph.edge_query.tolist()
        ([[0, 1, 0, 1], [1, 0, 0, 1]], [0, 1, 2, 2], [0, 1, -1, -1])
        """
        num_entities, num_relations = triples.num_entities, triples.num_relations
        head, relation, tail = _both_ways(triples.train, num_relations).unbind(1)
        loops, no_query = torch.arange(num_entities), torch.full((num_entities,), -1)
        codes, edge_query = torch.unique(_code(head, relation, num_relations), return_inverse=True)
        return KnowledgeGraph(
            triples,
            num_entities,
            num_relations,
            edge_index=torch.stack([torch.cat([head, loops]), torch.cat([tail, loops])]),
            edge_type=torch.cat([relation, torch.full((num_entities,), 2 * num_relations)]),
            queries=_query(codes, num_relations),
            answers=_answers(edge_query, tail, len(codes), num_entities),
            edge_query=torch.cat([edge_query, no_query]),
            # The other end of a triple is the other half of the edges.
            reverse_query=torch.cat([edge_query.roll(len(triples.train)), no_query]),
        )

    def ranking(self, split: str) -> Ranking:
        """The questions of `valid` or `test`, with the true answers of all three splits to leave out."""
        triples = self.triples.split(split)
        if len(triples) == 0:
            fault, hint = f"it has no {split} triple", f"to move some lines of the train file to the {split} file"
            raise DataError(self.triples.name, fault, allowed="at least one in each split", hint=hint)
        head, relation, target = _both_ways(triples, self.num_relations).unbind(1)
        codes, query = torch.unique(_code(head, relation, self.num_relations), return_inverse=True)
        queries = _query(codes, self.num_relations)
        return Ranking(split, queries, self.answers_to(queries), query, target, rel_type=triples[:, 1].repeat(2))

    def answers_to(self, queries: Tensor, splits: Sequence[str] = SPLITS) -> Answers:
        """The true answers in some splits to any queries [Q, 2], on the CPU, where the triples are."""
        code = _code(queries[:, 0], queries[:, 1], self.num_relations)
        asked, position = torch.unique(code, return_inverse=True)
        triples = torch.cat([self.triples.split(split) for split in splits])
        head, relation, tail = _both_ways(triples, self.num_relations).unbind(1)
        code = _code(head, relation, self.num_relations)
        known = torch.isin(code, asked)
        answers = _answers(torch.searchsorted(asked, code[known]), tail[known], len(asked), self.num_entities)
        # From the distinct queries to those that were asked, which may repeat.
        counts = answers.counts[position]
        ptr = _pointer(counts)
        start = torch.repeat_interleave(answers.ptr[position] - ptr[:-1], counts)
        return Answers(ptr, answers.index[start + torch.arange(len(start))])

    def at_random(self) -> KnowledgeGraph:
        """The same queries on a graph without information: the tails of training triples are shuffled.

        Degrees and types stay, and the shuffle is the same on every machine. No edge is a triple of any split or its
        mirror image, as far as that is possible.
        """
        head, relation, tail = self.triples.train.unbind(1)
        size, sizes, chance = len(tail), (self.num_entities, self.num_relations), torch.Generator().manual_seed(0)
        true = torch.cat([self.triples.split(split) for split in SPLITS])
        known = codes(torch.cat([true, true.flip(1)]), *sizes)
        order = torch.randperm(size, generator=chance)
        for _ in range(_SHUFFLES):
            shuffled = torch.stack([head, relation, tail[order]], dim=1)
            leaks = torch.isin(codes(shuffled, *sizes), known).nonzero().squeeze(1)
            if len(leaks) == 0:
                break
            # Shuffle these again, together with as many others.
            others = torch.randint(size, leaks.shape, generator=chance)
            again = torch.unique(torch.cat([leaks, others]))
            order[again] = order[again[torch.randperm(len(again), generator=chance)]]
        edges = torch.stack([torch.cat([head, tail[order]]), torch.cat([tail[order], head])])
        # The query that an edge would answer; -1 if training never asks it.
        asked = _code(self.queries[:, 0], self.queries[:, 1], self.num_relations)
        code = _code(edges[0], self.edge_type[: 2 * size], self.num_relations)
        place = torch.searchsorted(asked, code).clamp_(max=len(asked) - 1)
        query = torch.where(asked[place] == code, place, -1)
        return replace(
            self,
            edge_index=torch.cat([edges, self.edge_index[:, 2 * size :]], dim=1),
            edge_query=torch.cat([query, self.edge_query[2 * size :]]),
            reverse_query=torch.cat([query.roll(size), self.reverse_query[2 * size :]]),
        )

    def to(self, device: torch.device | str) -> KnowledgeGraph:
        """The same with its tensors on a device; the triples stay on the CPU."""
        names = ("edge_index", "edge_type", "queries", "answers", "edge_query", "reverse_query")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def _both_ways(triples: Tensor, num_relations: int) -> Tensor:
    """[2T, 3]: the triples, then their inverses."""
    head, relation, tail = triples.unbind(1)
    return torch.cat([triples, torch.stack([tail, relation + num_relations, head], dim=1)])


def _code(head: Tensor, relation: Tensor, num_relations: int) -> Tensor:
    return head * (2 * num_relations) + relation


def _query(codes: Tensor, num_relations: int) -> Tensor:
    return torch.stack([codes // (2 * num_relations), codes % (2 * num_relations)], dim=1)


def _answers(query: Tensor, entity: Tensor, num_queries: int, num_entities: int) -> Answers:
    pairs = torch.unique(query * num_entities + entity)
    counts = torch.bincount(pairs // num_entities, minlength=num_queries)
    return Answers(_pointer(counts), pairs % num_entities)


def _pointer(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
