"""Predictions of a link model: the best tails or heads of queries, and the ranks of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from magna.config.registry import LINK_TASK
from magna.config.tables import LinkDataOptions
from magna.data import KnowledgeGraph, from_anywhere
from magna.data.text import csv_rows, is_csv
from magna.data.triples import read_lines, without_header
from magna.errors import ArgumentError, DataError
from magna.nn.link_model import LinkModel
from magna.tasks import LinkPrediction, make_task
from magna.tasks.links import log_probabilities
from magna.training.capture import matmul_precision
from magna.training.run_folder import RunFolder, pick_device
from magna.use.files import write_answers
from magna.use.new_entities import with_new_entities
from magna.use.portfolio import LinkPortfolio

_COLUMNS = ("head", "relation", "tail")


@dataclass(frozen=True)
class Query:
    """A question by names: the tails of (head, relation, ?), or the heads of (?, relation, tail)."""

    head: str | None
    relation: str
    tail: str | None
    place: str = field(default="", compare=False, repr=False)  # line of a file, for messages

    def __post_init__(self) -> None:
        if (self.head is None) == (self.tail is None):
            ends = (self.head, self.relation, self.tail)
            raise ArgumentError("query", ends, "head or tail and not both; the other one is the answer")

    def numbers(self, graph: KnowledgeGraph) -> tuple[int, int]:
        """(head, relation) as the model takes them; a head is asked for as the tail of the inverse relation."""
        relation, end = graph.triples.relation_id(self.relation), self.tail if self.head is None else self.head
        assert end is not None
        return graph.triples.entity_id(end), relation + (graph.num_relations if self.head is None else 0)


@dataclass(frozen=True)
class Answer:
    """An entity that may complete a query."""

    entity: str
    score: float
    probability: float  # against all entities that are not known answers
    known: bool  # a triple of the data


@dataclass(frozen=True)
class LinkPredictions:
    """The best answers of each query, best first."""

    dataset: str
    queries: list[Query]
    answers: list[list[Answer]]
    notes: tuple[str, ...] = ()  # on the data

    def columns(self) -> dict[str, list[Any]]:
        """All answers by column, a row each, as `pandas.DataFrame` takes them."""
        rows = [
            (
                *(answer.entity if end is None else end for end in (query.head, query.relation, query.tail)),
                *(rank, answer.probability, answer.score, answer.known),
            )
            for query, answers in zip(self.queries, self.answers, strict=True)
            for rank, answer in enumerate(answers, start=1)
        ]
        names = (*_COLUMNS, "rank", "probability", "score", "known")
        return {name: [row[at] for row in rows] for at, name in enumerate(names)}

    def to_dict(self) -> dict[str, Any]:
        """All answers by query, as JSON has them."""
        queries = [
            {name: getattr(query, name) for name in _COLUMNS} | {"answers": [asdict(answer) for answer in answers]}
            for query, answers in zip(self.queries, self.answers, strict=True)
        ]
        return {"task": LINK_TASK, "dataset": self.dataset, "queries": queries, "notes": list(self.notes)}

    def write(self, path: str | Path, form: str | None = None) -> None:
        """Write CSV, JSON or Parquet; without `form`, the ending of the name decides."""
        write_answers(path, form, self.columns(), self.to_dict())


def predict_links(
    run_dir: str | Path | RunFolder,
    queries: Sequence[Query | tuple[str | None, str, str | None]] | None,
    data: str | Path | None = None,
    *,
    top: int = 10,
    new_triples: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
) -> LinkPredictions:
    """The entities that complete each query best, by a finished run.

    Args:
        run_dir: the run folder.
        queries: by names; (head, relation, None) or (None, relation, tail) stands for a `Query`.
        data: a folder with the same entities and relations in place of the run's knowledge graph.
        top: number of answers to each.
        new_triples: a file of further triples of known entities, which the encoder reads; nothing is trained.
        data_dir: the data folder.
        device: "auto", "cpu" or "cuda".
    """
    _check_question(queries, top)
    run = RunFolder.open(run_dir)
    return answer_queries(run, open_links(run, data, data_dir, device, new_triples=new_triples), queries, top)


def answer_queries(
    run: RunFolder,
    opened: tuple[LinkPrediction, LinkModel, tuple[str, ...]],
    queries: Sequence[Query | tuple[str | None, str, str | None]] | None,
    top: int,
) -> LinkPredictions:
    """The `top` best answers of each query, by a run that `open_links` has opened."""
    _check_question(queries, top)
    task, model, notes = opened
    asked, numbers = _numbered(queries, task.graph)
    entities, temperature = task.graph.triples.entities, temperature_of(run)
    answers: list[list[Answer]] = []
    with matmul_precision(run.config.train.precision):
        for _, scores, known in task.blocks(model, torch.tensor(numbers)):
            scores, known = scores.double().cpu(), known.cpu()
            probabilities = log_probabilities(scores / temperature, known).exp()
            # NaN is last, as in the ranks.
            best = scores.nan_to_num(-torch.inf, posinf=torch.inf).topk(min(top, scores.size(1)), dim=1).indices
            columns = (each.gather(1, best).tolist() for each in (scores, probabilities, known))
            for row in zip(best.tolist(), *columns, strict=True):
                answers.append([Answer(entities[e], *values) for e, *values in zip(*row, strict=True)])
    return LinkPredictions(task.dataset, asked, answers, notes)


def read_queries(path: str | Path) -> list[Query]:
    """The queries of a file, plain or .gz: head, relation and tail, one of head and tail empty or `?`.

    Columns are separated by tabs, or in a .csv by commas. A header is skipped.
    """
    path = Path(path)
    if is_csv(path):
        lines = [(number, [cell.strip() for cell in cells]) for number, cells in csv_rows(path)]
    else:
        lines = read_lines(path)
    queries = [_read_query(path, *line) for line in without_header(lines)[0] if any(line[1])]
    if not queries:
        raise DataError(path, "it has no query", allowed="lines of head, relation and tail, one end empty or ?")
    return queries


def _read_query(path: Path, number: int, columns: list[str]) -> Query:
    if len(columns) not in (2, 3):
        raise DataError(path, f"it has {len(columns)} columns", number, allowed="head, relation, tail")
    head, relation, tail = (None if column in ("", "?") else column for column in (*columns, "")[:3])
    if relation is None:
        raise DataError(path, "it has no relation", number, allowed="head, relation, tail, one end empty or ?")
    try:
        return Query(head, relation, tail, place=f"{path}, line {number}")
    except ArgumentError as error:
        raise DataError(path, str(error), number) from None


def _check_question(queries: Sequence[Any] | None, top: int) -> None:
    if top < 1:
        raise ArgumentError("top", top, "1 or more")
    if not queries:
        raise ArgumentError("queries", queries, "one or more, such as (head, relation, None)")


def _numbered(queries: Sequence[Any] | None, graph: KnowledgeGraph) -> tuple[list[Query], list[tuple[int, int]]]:
    """The queries, and each as the model takes it; of many, the wrong one is named."""
    asked, numbers = [], []
    queries = queries or ()
    for position, query in enumerate(queries, start=1):
        try:
            query = Query(*query) if isinstance(query, tuple) and len(query) == 3 else query
            if not isinstance(query, Query):
                allowed = "Query(head, relation, None), Query(None, relation, tail), or such a tuple"
                raise ArgumentError("query", query, allowed)
            numbers.append(query.numbers(graph))
            asked.append(query)
        except ArgumentError as error:
            place = getattr(query, "place", "") or (f"query {position} of {len(queries)}" if len(queries) > 1 else "")
            raise error.renamed(f"{place}: {error.name}" if place else error.name) from None
    return asked, numbers


def open_links(
    run: RunFolder,
    data: str | Path | None,
    data_dir: str | Path | None,
    device: str,
    ranked: Sequence[str] = (),
    new_triples: str | Path | None = None,
) -> tuple[LinkPrediction, LinkModel, tuple[str, ...]]:
    """The task on the run's triples or others, of which it can rank `ranked`; the model, and notes on the data."""
    config = run.config
    if not isinstance(config.data, LinkDataOptions):
        raise ArgumentError(
            "run_dir", str(run.path), "a run of link prediction", "no head and relation, for labels of nodes"
        )
    control = config.data.control
    if new_triples is not None and control == "random-graph":
        allowed = "none for a run on a random graph, which hides all triples"
        raise ArgumentError("new_triples", str(new_triples), allowed)
    where = pick_device(device)
    if data is None:
        run.check_data("data=… with the folder where its triples are now")
    else:
        config = replace(config, data=from_anywhere(config.data, data))
    task = make_task(config, data_dir, where, ranked)
    assert isinstance(task, LinkPrediction)
    changes = _changes(run, task)
    model = _model(run, task)
    assert isinstance(model, LinkModel)
    triples = task.graph.triples
    # The training has reported the notes on its own data.
    notes = (*(() if data is None else triples.notes), *changes)
    sizes, needed = ((each.num_entities, each.num_relations) for each in (model, task.graph))
    if sizes != needed:
        fault = f"it is of {sizes[0]} entities and {sizes[1]} relations, the run of {needed[0]} and {needed[1]}"
        raise DataError(run.path / "model", fault, hint="a copy of the run folder, or train again")
    if new_triples is not None:
        extended = triples.with_train_file(Path(new_triples))
        notes += extended.notes[len(triples.notes) :]
        task = LinkPrediction(KnowledgeGraph.from_triples(extended), where, control, ranked)
    return task, model.to(where), notes


def temperature_of(run: RunFolder) -> float:
    """The temperature of a run's scores; those of a portfolio are logarithms of probabilities already, with 1."""
    return 1.0 if run.members else float((run.summary or {})["temperature"])


def _model(run: RunFolder, task: LinkPrediction) -> Any:
    """The model of a run, with vectors for the entities that only the task has."""
    if members := run.members:
        return LinkPortfolio([(_model(member, task), weight, temperature_of(member)) for member, weight in members])
    model, before = run.load_model(), run.schema
    assert isinstance(model, LinkModel)
    if len(before["entities"]) == task.graph.num_entities:
        return model
    return with_new_entities(model, run.config, before, task)


def _changes(run: RunFolder, task: LinkPrediction) -> tuple[str, ...]:
    """Notes on triples that have changed since the training; new entities are noted, other names are an error."""
    before, now = run.schema, task.schema
    notes = []
    if set(now["entities"]) > set(before["entities"]):
        new = sorted(set(now["entities"]) - set(before["entities"]))
        first = f"{new[0]!r} and {len(new) - 1:,} others are" if len(new) > 1 else f"{new[0]!r} is"
        seen = set(task.graph.triples.train[:, [0, 2]].flatten().tolist())
        lonely = sum(task.graph.triples.entity_id(name) not in seen for name in new)
        words = f"; {lonely:,} without one have the mean vector" if lonely else ""
        notes.append(f"{first} new: vectors follow from the train triples, and nothing else is trained{words}")
        before = before | {"entities": now["entities"]}
    for kind in ("entities", "relations"):
        if before[kind] != now[kind]:
            new, missing = (sorted(set(a[kind]) - set(b[kind])) for a, b in ((now, before), (before, now)))
            fault = f"{new[0]!r} is new" if new else f"{missing[0]!r} is missing" if missing else "in another order"
            fault = f"it has other {kind} than the run was trained on, {fault}"
            raise DataError(task.dataset, fault, allowed="the same entities and relations", hint="to train again")
    changed = [split for split, mark in before["fingerprints"].items() if mark != now["fingerprints"][split]]
    note = f"{task.dataset} has other triples in {', '.join(changed)} than the run was trained on"
    return (*notes, note) if changed and not notes else tuple(notes)
