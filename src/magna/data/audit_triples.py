"""What one should know about a knowledge graph before training on it: size, leakage, unseen names, hubs, relations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.data.audit import show_findings
from magna.data.knowledge_graph import Answers, KnowledgeGraph
from magna.data.triples import SPLITS, Triples, codes

_HELD_OUT = ("valid", "test")
_HUBS = 5
_SHOWN_RELATIONS = 15
_NUMBERS_WIDTH = 58  # of the table of relations, without their names
# More answers than this on average make a side "N" (Bordes et al. 2013).
_MANY = 1.5
# A relation is mirrored in another one when this share of its triples is there, turned round; two are each other's
# inverse when both are. All splits count: a split at random parts the two triples of a pair, so that training alone
# would show less the more is held out.
_MIRRORED = 0.8
# The reverse rule, which knows nothing, should not get further than this.
_SUSPICIOUS = 0.1  # MRR of the reverse rule, and the share of answers that it names


def audit(graph: KnowledgeGraph) -> dict[str, Any]:
    """A report of plain numbers and texts, ready for JSON.

    >>> from magna.data.knowledge_graph import load_knowledge_graph
    >>> report = audit(load_knowledge_graph("families"))
    >>> report["leakage"]["shared_triples"], report["inverse_pairs"]
    ({'train_valid': 0, 'train_test': 0, 'valid_test': 0}, [])
    """
    triples = graph.triples
    report: dict[str, Any] = {"dataset": triples.name, "task": "link prediction", "notes": list(triples.notes)}
    splits = {split: len(triples.split(split)) for split in SPLITS}
    report["size"] = {
        "entities": triples.num_entities,
        "relations": triples.num_relations,
        "triples": sum(splits.values()),
        "queries": len(graph.queries),
    }
    report["splits"], report["duplicates"] = splits, dict(triples.duplicates)
    report["leakage"] = {
        "shared_triples": _shared(triples),
        "reverse_rule": {split: reverse_rule(graph, split) for split in _HELD_OUT if splits[split]},
    }
    mirrored = _mirrored(triples)
    report["symmetric"] = [
        {"relation": triples.relations[one], "share": share} for (one, other), share in mirrored.items() if one == other
    ]
    report["inverse_pairs"] = [
        {"relation": triples.relations[one], "inverse": triples.relations[other], "share": min(share, back)}
        for (one, other), share in mirrored.items()
        if one < other and (back := mirrored.get((other, one)))
    ]
    told_by = [(one, other) for one, other in mirrored if one != other]
    report["leakage"]["inverse_in_train"] = {
        split: _inverse_in_train(triples, split, told_by) for split in _HELD_OUT if splits[split]
    }
    report["unseen"] = {split: _unseen(triples, split) for split in _HELD_OUT}
    report["degree"], report["hubs"] = _degrees(triples)
    report["relations"] = _relations(triples)
    report["warnings"] = _warnings(report)
    return report


def reverse_rule(graph: KnowledgeGraph, split: str) -> dict[str, float]:
    """How far one line gets: answer (h, r, ?) with every t for which (t, r, h) is in training.

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


def show(report: dict[str, Any], console: Any) -> None:
    """The report for people, on a rich console."""
    from rich.table import Table

    size, splits, degree = report["size"], report["splits"], report["degree"]
    duplicates, shared = sum(report["duplicates"].values()), report["leakage"]["shared_triples"]
    rule = [
        f"MRR {found['mrr']:.3f} on {split}, names {100 * found['answered']:.1f} % of the answers"
        for split, found in report["leakage"]["reverse_rule"].items()
    ]
    inverse = [
        f"{found['triples']:,} {split} triples ({100 * found['share']:.1f} %)"
        for split, found in report["leakage"]["inverse_in_train"].items()
    ]
    twice = [f"{count:,} in {pair.replace('_', ' and ')}" for pair, count in shared.items() if count]
    unseen = [
        f"{found['entities']:,} in {found['triples']:,} {split} triples" for split, found in report["unseen"].items()
    ]
    facts = {
        "entities": f"{size['entities']:,}; {degree['isolated']:,} in no training triple",
        "relations": f"{size['relations']:,}; {len(report['symmetric']):,} are their own inverse, "
        f"{len(report['inverse_pairs']):,} pairs each other's",
        "triples": f"{size['triples']:,}; {duplicates:,} listed again, {degree['self_loops']:,} of one entity alone",
        "split": ", ".join(f"{splits[name]:,} {name}" for name in SPLITS),
        "queries": f"{size['queries']:,} distinct (head, relation) in training, both directions",
        "degree": f"mean {degree['mean']:.1f}, median {degree['median']:g}, largest {degree['largest']:,}",
        "hubs": ", ".join(f"{hub['entity']} ({hub['triples']:,})" for hub in report["hubs"]),
        "in two splits": ", ".join(twice) or "0 triples",
        "turned round": f"{', '.join(inverse)} are in train under an inverse relation"
        if inverse
        else "nothing is held out",
        "reverse rule": "; ".join(rule) or "nothing is held out",
        "unseen entities": "; ".join(unseen),
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    for name, text in facts.items():
        grid.add_row(f"  {name}", text)
    console.print(report["dataset"], style="bold", markup=False, highlight=False)
    console.print(grid, highlight=False, markup=False)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("relation", no_wrap=True)
    for name in (*SPLITS, "kind", "tails/head", "heads/tail"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["relations"][:_SHOWN_RELATIONS]:
        means = [f"{row[name]:.1f}" if row["train"] else "" for name in ("tails_per_head", "heads_per_tail")]
        table.add_row(
            _shortened(row["relation"], console.width - _NUMBERS_WIDTH),
            *(f"{row[split]:,}" for split in SPLITS),
            row["kind"] or "unseen",
            *means,
        )
    console.print()
    console.print(table, highlight=False, markup=False)
    if len(report["relations"]) > _SHOWN_RELATIONS:
        console.print(f"  and {len(report['relations']) - _SHOWN_RELATIONS:,} more (--json has all)", highlight=False)
    show_findings(report, console)


def _shortened(name: str, width: int) -> str:
    """The end of a long name, which says more than its beginning."""
    return name if len(name) <= width else f"…{name[1 - width :]}"


def _pairs(answers: Answers, num_entities: int) -> Tensor:
    """One number for each query and answer."""
    query = torch.repeat_interleave(torch.arange(len(answers.counts)), answers.counts)
    return query * num_entities + answers.index


def _shared(triples: Triples) -> dict[str, int]:
    """Triples that two splits have in common, word for word."""
    sizes = triples.num_entities, triples.num_relations
    of = {split: codes(triples.split(split), *sizes) for split in SPLITS}
    pairs = [("train", "valid"), ("train", "test"), ("valid", "test")]
    return {f"{one}_{other}": int(torch.isin(of[other], of[one]).sum()) for one, other in pairs}


def _mirrored(triples: Triples) -> dict[tuple[int, int], float]:
    """(relation, the one that it is mirrored in, which may be itself) → the share of its triples that are."""
    head, relation, tail = torch.cat([triples.split(split) for split in SPLITS]).unique(dim=0).unbind(1)
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


def _inverse_in_train(triples: Triples, split: str, told_by: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Held-out triples that are in training turned round, under a relation that theirs is mirrored in; their share."""
    sizes = triples.num_entities, triples.num_relations
    head, relation, tail = triples.split(split).unbind(1)
    held_out, inverse = torch.tensor(told_by, dtype=torch.int64).view(-1, 2).unbind(1)
    row, pair = (relation[:, None] == held_out).nonzero().unbind(1)
    turned = torch.stack([tail[row], inverse[pair], head[row]], dim=1)
    there = row[torch.isin(codes(turned, *sizes), codes(triples.train, *sizes))].unique()
    return {"triples": len(there), "share": len(there) / len(head)}


def _unseen(triples: Triples, split: str) -> dict[str, int]:
    """What a held-out split names and training does not; and the triples that do so."""
    rows, train = triples.split(split), triples.train
    ends = rows[:, [0, 2]]
    new = ~torch.isin(ends, train[:, [0, 2]])
    new_relation = ~torch.isin(rows[:, 1], train[:, 1])
    return {
        "entities": ends[new].unique().numel(),
        "triples": int(new.any(dim=1).sum()),
        "relations": rows[new_relation, 1].unique().numel(),
        "triples_of_new_relations": int(new_relation.sum()),
    }


def _degrees(triples: Triples) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Training triples an entity is in, and the entities that are in the most."""
    head, _, tail = triples.train.unbind(1)
    degree = torch.bincount(torch.cat([head, tail]), minlength=triples.num_entities)
    largest = torch.sort(degree, descending=True, stable=True)
    hubs = [
        {"entity": triples.entities[entity], "triples": count}
        for entity, count in zip(largest.indices[:_HUBS].tolist(), largest.values[:_HUBS].tolist(), strict=True)
    ]
    return {
        "mean": float(degree.double().mean()),
        "median": float(degree.double().median()),
        "largest": int(degree.max()),
        "isolated": int((degree == 0).sum()),
        "self_loops": int((head == tail).sum()),
    }, hubs


def _relations(triples: Triples) -> list[dict[str, Any]]:
    """Each relation's triples in every split and its kind in training, the most frequent first."""
    counts = {
        split: torch.bincount(triples.split(split)[:, 1], minlength=triples.num_relations).tolist() for split in SPLITS
    }
    head, relation, tail = triples.train.unbind(1)
    heads, tails = (_distinct(relation, ends, triples.num_relations) for ends in (head, tail))
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


def _distinct(relation: Tensor, ends: Tensor, num_relations: int) -> list[int]:
    """For each relation, how many different entities stand at one end."""
    pairs = torch.unique(torch.stack([relation, ends]), dim=1)
    counts: list[int] = torch.bincount(pairs[0], minlength=num_relations).tolist()
    return counts


def _warnings(report: dict[str, Any]) -> list[str]:
    """What a user should look at before trusting a number."""
    found = []
    for pair, count in report["leakage"]["shared_triples"].items():
        if count:
            found.append(f"triples in both {pair.replace('_', ' and ')}: {count:,}")
    for split, rule in report["leakage"]["reverse_rule"].items():
        # In a small graph, those that it does not name have a good place as well.
        if min(rule["mrr"], rule["answered"]) > _SUSPICIOUS:
            found.append(f"the reverse rule alone has MRR {rule['mrr']:.3f} on {split}: give it beside every result")
    if report["inverse_pairs"]:
        first = report["inverse_pairs"][0]
        found.append(
            f"pairs of relations that are each other's inverse: {len(report['inverse_pairs']):,}, "
            f"{first['relation']} and {first['inverse']} among them"
        )
    for split, inverse in report["leakage"]["inverse_in_train"].items():
        if inverse["triples"]:
            found.append(
                f"{split} triples that are in train turned round, under an inverse relation: {inverse['triples']:,} "
                f"({100 * inverse['share']:.1f} %)"
            )
    for split, unseen in report["unseen"].items():
        if unseen["triples"]:
            found.append(f"{split} triples with an entity that training never sees: {unseen['triples']:,}")
        if unseen["relations"]:
            found.append(
                f"{split} triples of a relation that training never sees: {unseen['triples_of_new_relations']:,}"
            )
        if not report["splits"][split]:
            found.append(f"{split} has no triple: nothing can be {'chosen' if split == 'valid' else 'tested'} on it")
    single = sum(row["train"] == 1 for row in report["relations"])
    if single:
        found.append(f"relations with a single training triple: {single:,}")
    return found
