"""A finished run of link prediction put to use: the best tails or heads of a query, and its ranks again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from magna.config.schema import Config
from magna.data import KnowledgeGraph, from_anywhere
from magna.data.tables import csv_rows, is_csv
from magna.data.triples import Line, read_lines, without_header
from magna.tasks import LinkPrediction, make_task
from magna.tasks.links import log_probabilities, told_answers
from magna.tasks.models import LinkPredictor
from magna.training.capture import matmul_precision
from magna.training.run_folder import RunFolder, pick_device
from magna.use.files import write_answers

_BLOCK = 128  # queries that are scored at a time


@dataclass(frozen=True)
class Query:
    """What is asked, by names: the tails of (head, relation, ?), or the heads of (?, relation, tail)."""

    head: str | None
    relation: str
    tail: str | None
    place: str = field(default="", compare=False, repr=False)  # for messages: the line of a file

    def check(self) -> Query:
        if (self.head is None) == (self.tail is None):
            both = "neither head nor tail" if self.head is None else "both head and tail"
            raise ValueError(f"a query for {self.relation!r} has {both}; allowed: one of them, the other is the answer")
        return self


@dataclass(frozen=True)
class Answer:
    """An entity that may complete a query."""

    entity: str
    score: float  # the decoder's
    probability: float  # against all entities that are not known to be answers
    known: bool  # the data says so already


@dataclass(frozen=True)
class LinkPredictions:
    """The best answers of each query, best first."""

    dataset: str
    queries: list[Query]
    answers: list[list[Answer]]
    notes: tuple[str, ...] = ()  # what one should know of the data

    def columns(self) -> dict[str, list[Any]]:
        """Everything by column, a row for each answer: what a table file holds, and what `pandas.DataFrame` takes."""
        rows = [
            (
                answer.entity if query.head is None else query.head,
                query.relation,
                answer.entity if query.tail is None else query.tail,
                rank,
                answer.probability,
                answer.score,
                answer.known,
            )
            for query, answers in zip(self.queries, self.answers, strict=True)
            for rank, answer in enumerate(answers, start=1)
        ]
        names = ("head", "relation", "tail", "rank", "probability", "score", "known")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def to_dict(self) -> dict[str, Any]:
        """Everything by query: what `magna predict --json` prints."""
        return {
            "task": "link_prediction",
            "dataset": self.dataset,
            "queries": [
                {
                    "head": query.head,
                    "relation": query.relation,
                    "tail": query.tail,
                    "answers": [vars(answer) for answer in answers],
                }
                for query, answers in zip(self.queries, self.answers, strict=True)
            ],
            "notes": list(self.notes),
        }

    def write(self, path: str | Path, form: str | None = None) -> None:
        """As CSV, JSON or Parquet; the ending of the name says which where `form` does not."""
        write_answers(path, form, self.columns(), self.to_dict())


@torch.no_grad()
def predict_links(
    run_dir: str | Path,
    queries: Sequence[Query],
    data: str | Path | None = None,
    *,
    top: int = 10,
    new_triples: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
) -> LinkPredictions:
    """The entities that a finished run thinks complete each query.

    Args:
        run_dir: the run folder.
        queries: by names.
        data: a folder with the same entities and relations in place of the run's own knowledge graph.
        top: how many answers of each.
        new_triples: a file of further triples of known entities; they are told to the encoder, without training.
        data_dir: the data folder.
        device: "auto", "cpu" or "cuda".
    """
    if top < 1:
        raise ValueError(f"top is {top}; allowed: 1 or more")
    if not queries:
        raise ValueError("there is no query; allowed: a relation with a head or a tail, or a file of them")
    temperature, task, model, notes = _open(run_dir, data, data_dir, device, (), new_triples)
    graph = task.graph
    asked = torch.tensor(_all_numbers(queries, graph))
    known = graph.answers_to(asked)
    answers: list[list[Answer]] = []
    with matmul_precision(task.precision):
        scored = model(task.edge_index, task.edge_type, *asked.to(task.device).unbind(1))
        for start in range(0, len(asked), _BLOCK):
            part = slice(start, start + _BLOCK)
            scores = scored.part(part).scores().double().cpu()
            told = told_answers(known, part, scores.shape)
            probable = log_probabilities(scores / temperature, told).exp()
            # What is no number loses, as it does in the ranks.
            best = scores.nan_to_num(-torch.inf, posinf=torch.inf).topk(min(top, scores.size(1)), dim=1).indices
            answers += [
                [
                    Answer(graph.triples.entities[e], float(scores[b, e]), float(probable[b, e]), bool(told[b, e]))
                    for e in row
                ]
                for b, row in enumerate(best.tolist())
            ]
    return LinkPredictions(task.dataset, list(queries), answers, notes)


def evaluate_links(
    run_dir: str | Path,
    split: str = "test",
    data: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Rank a finished run again from its files: what `magna evaluate --json` prints for link prediction."""
    _, task, model, notes = _open(run_dir, data, data_dir, device, (split,))
    with matmul_precision(task.precision):
        report = task.report(model, split)
    return {"task": "link_prediction", "dataset": task.dataset, "split": split, **report, "notes": list(notes)}


def read_queries(path: str | Path) -> list[Query]:
    """The queries of a file, plain or .gz: head, relation and tail, one of head and tail empty or `?`, separated by
    tabs as in files of triples or, in a .csv, by commas. A first line that names the columns is no query.
    """
    path = Path(path)
    lines, _ = without_header(_comma_lines(path) if is_csv(path) else read_lines(path))
    queries = []
    for number, columns in lines:
        if not any(columns):
            continue
        if len(columns) == 2:
            columns.append("")  # head and relation
        if len(columns) != 3:
            raise ValueError(f"{path} line {number} has {len(columns)} columns; allowed: head, relation, tail")
        head, relation, tail = (None if column in ("", "?") else column for column in columns)
        if relation is None:
            raise ValueError(f"{path} line {number} has no relation; allowed: head, relation, tail, one end empty or ?")
        try:
            queries.append(Query(head, relation, tail, place=f"{path} line {number}").check())
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from None
    if not queries:
        raise ValueError(f"{path} has no query; allowed: lines of head, relation and tail, one end empty or ?")
    return queries


def _comma_lines(path: Path) -> list[Line]:
    return [(number, [cell.strip() for cell in cells]) for number, cells in csv_rows(path)]


def _all_numbers(queries: Sequence[Query], graph: KnowledgeGraph) -> list[tuple[int, int]]:
    found = []
    for place, query in enumerate(queries, start=1):
        try:
            found.append(_numbers(query.check(), graph))
        except ValueError as error:
            which = query.place or (f"query {place} of {len(queries)}" if len(queries) > 1 else "")
            raise ValueError(f"{which}: {error}" if which else str(error)) from None
    return found


def _numbers(query: Query, graph: KnowledgeGraph) -> tuple[int, int]:
    """(head, relation) as the model asks; a head is asked for as the tail of the inverse relation."""
    relation = graph.triples.relation_id(query.relation)
    if query.head is not None:
        return graph.triples.entity_id(query.head), relation
    assert query.tail is not None
    return graph.triples.entity_id(query.tail), relation + graph.num_relations


class _Opened(NamedTuple):
    temperature: float
    task: LinkPrediction
    model: LinkPredictor
    notes: tuple[str, ...]


def _open(
    run_dir: str | Path,
    data: str | Path | None,
    data_dir: str | Path | None,
    device: str,
    ranked: Sequence[str],
    new_triples: str | Path | None = None,
) -> _Opened:
    run = RunFolder.open(run_dir)
    if run.config.task.name != "link_prediction":
        raise ValueError(f"{run.path} is a run of node classification; try --node or --nodes, or magna.use.nodes")
    model, where = run.load_model(), torch.device(pick_device(device))
    config = _with_data(run, data)
    if new_triples is not None and config.data.control == "random-graph":
        raise ValueError(f"{run.path} is a run on a random graph, which is told nothing; try without new triples")
    task = make_task(config, data_dir, where, ranked)
    assert isinstance(task, LinkPrediction) and isinstance(model, LinkPredictor)
    # What is to be said of the run's own data, its training has said.
    notes = (*(() if data is None else task.graph.triples.notes), *_compared(run, task))
    _check_sizes(run, model, task.graph)
    if new_triples is not None:
        triples = task.graph.triples
        more = triples.with_train_file(Path(new_triples))
        notes += more.notes[len(triples.notes) :]
        task = LinkPrediction(KnowledgeGraph.from_triples(more), config, where, ranked)
    temperature = (run.summary or {}).get("temperature", 1.0)  # as it is, where a run has not fitted one
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise run.damaged("summary.json", f"'temperature' is {temperature!r}")
    return _Opened(temperature, task, model.to(where).eval(), notes)


def _with_data(run: RunFolder, data: str | Path | None) -> Config:
    """The config of a run, on its own knowledge graph or on another."""
    config = run.config
    if data is not None:
        return replace(config, data=from_anywhere(config.data, data))
    run.check_data("try --data with the folder where its triples are now")
    return config


def _check_sizes(run: RunFolder, model: LinkPredictor, graph: KnowledgeGraph) -> None:
    sizes, needed = ((each["num_entities"], each["num_relations"]) for each in (model.config, vars(graph)))
    if sizes != needed:
        raise ValueError(
            f"{run.path / 'model'} is of {sizes[0]} entities and {sizes[1]} relations, the run of {needed[0]} and "
            f"{needed[1]}; try a copy of the run folder, or train again"
        )


def _compared(run: RunFolder, task: LinkPrediction) -> tuple[str, ...]:
    """What is to be said of triples that have changed since the training; other names are an error."""
    kept, found = run.schema, task.schema
    if kept is None:
        raise ValueError(f"{run.path} keeps no schema.json, which its names are in; try a copy of it, or train again")
    for kind in ("entities", "relations"):
        if kept.get(kind) is None:
            raise run.damaged("schema.json", f"it has no {kind!r}")
        if kept[kind] != found[kind]:
            new, gone = (sorted(set(one[kind]) - set(other[kind])) for one, other in ((found, kept), (kept, found)))
            which = f"{new[0]!r} is new" if new else f"{gone[0]!r} is missing" if gone else "in another order"
            raise ValueError(
                f"{task.dataset} has other {kind} than the run was trained on, {which}; allowed: the same entities and "
                "relations; try to train again"
            )
    # Runs of before there were fingerprints say nothing.
    marks = kept.get("fingerprints", {})
    if not isinstance(marks, dict) or not marks.keys() <= found["fingerprints"].keys():
        raise run.damaged("schema.json", f"'fingerprints' is {marks!r}")
    changed = [split for split, mark in marks.items() if mark != found["fingerprints"][split]]
    if not changed:
        return ()
    return (f"{task.dataset} has other triples in {', '.join(changed)} than the run was trained on",)
