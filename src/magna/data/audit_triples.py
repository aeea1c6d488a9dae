"""Audit of a knowledge graph before training: size, leakage, unseen names, hubs, relations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.config.registry import LINK_TASK
from magna.data.audit import shared
from magna.data.knowledge_graph import Answers, KnowledgeGraph
from magna.data.triples import SPLITS, Triples, codes

_HELD_OUT = ("valid", "test")
_HUBS = 5
# More answers than this on average make a side "N" (Bordes et al. 2013).
_MANY = 1.5
# A relation is mirrored in another one that has this share of its triples, turned round; two relations that mirror
# each other are inverses. All splits count: a random split separates the two triples of a pair, so that training alone
# shows fewer of them.
_MIRRORED = 0.8
_SUSPICIOUS = 0.1  # MRR of the reverse rule, and the share of answers that it names


def audit_triples(graph: KnowledgeGraph) -> dict[str, Any]:
    """Report of numbers and texts, ready for JSON.

    >>> from magna.data import load_knowledge_graph
    >>> report = audit_triples(load_knowledge_graph("families"))
    >>> report["leakage"]["shared_triples"], report["inverse_pairs"]
    ({'train_valid': 0, 'train_test': 0, 'valid_test': 0}, [])
    """
    triples, names = graph.triples, graph.triples.relations
    sizes = triples.num_entities, triples.num_relations
    splits = {split: len(triples.split(split)) for split in SPLITS}
    held_out = [split for split in _HELD_OUT if splits[split]]
    mirrored = _mirrored(triples)
    inverses = [(one, other) for one, other in mirrored if one != other]
    report: dict[str, Any] = {
        "dataset": triples.name,
        "task": LINK_TASK,
        "notes": list(triples.notes),
        "size": {
            "entities": triples.num_entities,
            "relations": triples.num_relations,
            "triples": sum(splits.values()),
            "queries": len(graph.queries),
        },
        "splits": splits,
        "duplicates": dict(triples.duplicates),
        "leakage": {
            "shared_triples": shared({split: codes(triples.split(split), *sizes) for split in SPLITS}),
            "reverse_rule": {split: reverse_rule(graph, split) for split in held_out},
            "inverse_in_train": {split: _inverse_in_train(triples, split, inverses) for split in held_out},
        },
        "symmetric": [
            {"relation": names[one], "share": share} for (one, other), share in mirrored.items() if one == other
        ],
        "inverse_pairs": [
            {"relation": names[one], "inverse": names[other], "share": min(share, back)}
            for (one, other), share in mirrored.items()
            if one < other and (back := mirrored.get((other, one)))
        ],
        "unseen": {split: _unseen(triples, split) for split in _HELD_OUT},
        **_degrees(triples),
        "relations": _relations(triples),
    }
    return report | {"warnings": _warnings(report)}


def reverse_rule(graph: KnowledgeGraph, split: str) -> dict[str, float]:
    """Score of the rule that answers (h, r, ?) with every t for which (t, r, h) is in training.

    The rule scores these 1 and all other entities 0, on both sides; ranks are filtered, and among equal scores the
    target has the mean place (realistic). `answered` is the share of targets that the rule names.
    """
    ranking = graph.ranking(split)
    mirrored = ranking.queries.clone()
    mirrored[:, 1] = (mirrored[:, 1] + graph.num_relations) % (2 * graph.num_relations)
    named = _pairs(graph.answers_to(mirrored, ["train"]), graph.num_entities)
    known = _pairs(ranking.known, graph.num_entities)
    wrong = named[~torch.isin(named, known)]
    wrong_of = torch.bincount(wrong // graph.num_entities, minlength=len(ranking.queries))[ranking.query]
    others_of = graph.num_entities - ranking.known.counts[ranking.query] - wrong_of
    hit = torch.isin(ranking.query * graph.num_entities + ranking.target, named)
    rank = torch.where(hit, 1 + wrong_of / 2, 1 + wrong_of + others_of / 2).double()
    return {"mrr": float(rank.reciprocal().mean()), "answered": float(hit.double().mean())}


def _pairs(answers: Answers, num_entities: int) -> Tensor:
    """One number for each query and answer."""
    query = torch.repeat_interleave(torch.arange(len(answers.counts)), answers.counts)
    return query * num_entities + answers.index


def _mirrored(triples: Triples) -> dict[tuple[int, int], float]:
    """(relation, the one that it is mirrored in, which may be itself) → the share of its triples that are."""
    head, relation, tail = torch.unique(torch.cat([triples.split(split) for split in SPLITS]), dim=0).unbind(1)
    forward = head * triples.num_entities + tail
    backward, order = (tail * triples.num_entities + head).sort()
    first = torch.searchsorted(backward, forward)
    matches = torch.searchsorted(backward, forward, right=True) - first
    # Every pair of a triple and another one between the same entities, turned round.
    row = torch.repeat_interleave(matches)
    other = order[torch.arange(len(row)) + (first - matches.cumsum(0) + matches)[row]]
    pairs, counts = torch.unique(torch.stack([relation[row], relation[other]]), dim=1, return_counts=True)
    shares = counts / torch.bincount(relation, minlength=triples.num_relations)[pairs[0]].double()
    mirrored = zip(*pairs.tolist(), shares.tolist(), strict=True)
    return {(one, other): share for one, other, share in mirrored if share >= _MIRRORED}


def _inverse_in_train(triples: Triples, split: str, inverses: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Number and share of held-out triples that training has turned round, under a relation that mirrors theirs."""
    sizes = triples.num_entities, triples.num_relations
    head, relation, tail = triples.split(split).unbind(1)
    mirrored, inverse = torch.tensor(inverses, dtype=torch.int64).view(-1, 2).unbind(1)
    row, pair = (relation[:, None] == mirrored).nonzero().unbind(1)
    turned = torch.stack([tail[row], inverse[pair], head[row]], dim=1)
    leaked = torch.unique(row[torch.isin(codes(turned, *sizes), codes(triples.train, *sizes))])
    return {"triples": len(leaked), "share": len(leaked) / len(head)}


def _unseen(triples: Triples, split: str) -> dict[str, int]:
    """Entities and relations of a held-out split that training has not, and the triples with them."""
    rows, train = triples.split(split), triples.train
    ends = rows[:, [0, 2]]
    new = ~torch.isin(ends, train[:, [0, 2]])
    new_relation = ~torch.isin(rows[:, 1], train[:, 1])
    return {
        "entities": torch.unique(ends[new]).numel(),
        "triples": int(new.any(dim=1).sum()),
        "relations": torch.unique(rows[new_relation, 1]).numel(),
        "triples_of_new_relations": int(new_relation.sum()),
    }


def _degrees(triples: Triples) -> dict[str, Any]:
    """Training triples an entity is in, and the entities that are in the most."""
    head, _, tail = triples.train.unbind(1)
    degree = torch.bincount(torch.cat([head, tail]), minlength=triples.num_entities)
    hubs = torch.sort(degree, descending=True, stable=True).indices[:_HUBS].tolist()
    return {
        "degree": {
            "mean": float(degree.double().mean()),
            "median": float(degree.double().median()),
            "largest": int(degree.max()),
            "isolated": int((degree == 0).sum()),
            "self_loops": int((head == tail).sum()),
        },
        "hubs": [{"entity": triples.entities[entity], "triples": int(degree[entity])} for entity in hubs],
    }


def _relations(triples: Triples) -> list[dict[str, Any]]:
    """Each relation's triples in every split and its kind in training, the most frequent first."""

    def counted(relation: Tensor) -> list[int]:
        counts: list[int] = torch.bincount(relation, minlength=triples.num_relations).tolist()
        return counts

    counts = {split: counted(triples.split(split)[:, 1]) for split in SPLITS}
    head, relation, tail = triples.train.unbind(1)
    # Different entities at one end.
    heads, tails = (counted(torch.unique(torch.stack([relation, ends]), dim=1)[0]) for ends in (head, tail))
    rows: list[dict[str, Any]] = []
    for position, name in enumerate(triples.relations):
        row: dict[str, Any] = {"relation": name, **{split: counts[split][position] for split in SPLITS}}
        means: dict[str, Any] = {"kind": None, "tails_per_head": None, "heads_per_tail": None}
        if row["train"]:
            per_head, per_tail = row["train"] / heads[position], row["train"] / tails[position]
            kind = f"{'N' if per_tail > _MANY else '1'}-{'N' if per_head > _MANY else '1'}"
            means = {"kind": kind, "tails_per_head": per_head, "heads_per_tail": per_tail}
        rows.append(row | means)
    return sorted(rows, key=lambda row: (-row["train"], row["relation"]))


def _warnings(report: dict[str, Any]) -> list[str]:
    """Faults to look at before a number is trusted."""
    leakage, pairs = report["leakage"], report["inverse_pairs"]
    shared = {pair.replace("_", " and "): count for pair, count in leakage["shared_triples"].items() if count}
    warnings = [f"triples in both {pair}: {count:,}" for pair, count in shared.items()]
    for split, rule in leakage["reverse_rule"].items():
        # In a small graph, targets that the rule does not name have a high rank too.
        if min(rule["mrr"], rule["answered"]) > _SUSPICIOUS:
            warnings.append(f"the reverse rule alone has MRR {rule['mrr']:.3f} on {split}: report it with every result")
    if pairs:
        first = f"{pairs[0]['relation']} and {pairs[0]['inverse']}"
        warnings.append(f"pairs of relations that are each other's inverse: {len(pairs):,}, {first} among them")
    for split, inverse in leakage["inverse_in_train"].items():
        if inverse["triples"]:
            words = f"{split} triples that are in train turned round, under an inverse relation"
            warnings.append(f"{words}: {inverse['triples']:,} ({100 * inverse['share']:.1f} %)")
    for split, unseen in report["unseen"].items():
        if unseen["triples"]:
            warnings.append(f"{split} triples with an entity that training never sees: {unseen['triples']:,}")
        if unseen["relations"]:
            count = unseen["triples_of_new_relations"]
            warnings.append(f"{split} triples of a relation that training never sees: {count:,}")
        if not report["splits"][split]:
            warnings.append(f"{split} has no triple: nothing can be {'chosen' if split == 'valid' else 'tested'} on it")
    if single := sum(row["train"] == 1 for row in report["relations"]):
        warnings.append(f"relations with a single training triple: {single:,}")
    return warnings
