"""Tables of link prediction: Table 3 with the searched systems, and the controls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from magna.paper import published
from magna.paper.cells import Records
from magna.paper.published import KNOWLEDGE_GRAPHS, LINK_METRICS
from magna.paper.record_text import COST_HEADER, Read, commits_of, cost_texts, metric_of, origin_of
from magna.paper.records import Record
from magna.paper.render import EMPTY, TextTable, difference_text, short, spread_text
from magna.paper.rows import CONTROLS, SEARCHED_RECIPES, TABLE_3_RECIPES, TUNED


def table3(read: Read) -> TextTable:
    """Filtered ranks and costs on each recorded knowledge graph: our recipes, controls and searched systems, then the
    published models.
    """
    ours = read("table3")
    rows = []
    for dataset in _recorded_graphs(ours):
        name = KNOWLEDGE_GRAPHS.get(dataset, dataset)
        for row in dict.fromkeys((*TABLE_3_RECIPES, *CONTROLS, *SEARCHED_RECIPES)):
            records = ours.get((row, dataset), [])
            if not records and (dataset not in KNOWLEDGE_GRAPHS or row not in (*TABLE_3_RECIPES, *CONTROLS)):
                continue
            for title, part in _parts(row, records):
                figures = [_rank(records, metric, part, dispersed=metric in ("mr", "mrr")) for metric in LINK_METRICS]
                rows.append([name, f"{title} (ours)", *figures, *_part_cost(records, part), origin_of(records)])
        for theirs in (*published.PAPER_TABLE_3, *published.LINKS_ELSEWHERE):
            figures = [theirs.figures.get((dataset, metric), EMPTY) for metric in LINK_METRICS]
            if set(figures) != {EMPTY}:
                rows.append([name, theirs.model, *figures, *[EMPTY] * len(COST_HEADER), theirs.source])
    return TextTable(["data", "model", *LINK_METRICS.values(), *COST_HEADER, "source"], rows)


def controls(read: Read) -> TextTable:
    """MRR of the tuned model, of its encoder alone, of both under each control, and of a model without an encoder."""
    ours = read("table3")
    rows = []
    for dataset in _recorded_graphs(ours):
        whole = metric_of(ours.get((TUNED, dataset), []), "mrr")
        for row in (TUNED, *CONTROLS, "DistMult"):
            if not (records := ours.get((row, dataset))):
                continue
            by = "" if row == TUNED else short(difference_text(metric_of(records, "mrr"), whole, digits=3))
            change = " ".join(f"`{change}`" for change in records[0].changes) or f"recipe `{records[0].recipe}`"
            figures = [_rank(records, "mrr"), by, _rank(records, "mrr", "test_encoder")]
            rows.append([KNOWLEDGE_GRAPHS.get(dataset, dataset), row, change, *figures, commits_of(records)])
    return TextTable(["data", "model", "setting", "MRR", "difference", "encoder's scores alone", "commit"], rows)


def _part_cost(records: Sequence[Record], part: str) -> list[str]:
    return cost_texts(records) if part == "test" else [EMPTY] * len(COST_HEADER)


def _parts(row: str, records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Titles and parts of the scores: the whole, and for the tuned model each half."""
    yield row, "test"
    if row == TUNED and any("test_skip" in record.runs[0] for record in records):
        yield f"{row}: encoder alone", "test_encoder"
        yield f"{row}: shallow embeddings alone", "test_skip"


def _rank(records: Sequence[Record], metric: str, part: str = "test", *, dispersed: bool = True) -> str:
    return short(spread_text(metric_of(records, metric, part), 0 if metric == "mr" else 3, dispersed=dispersed))


def _recorded_graphs(records: Records) -> list[str]:
    """Knowledge graphs with a record, those of the paper first."""
    recorded = {dataset for _, dataset in records}
    return [dataset for dataset in KNOWLEDGE_GRAPHS if dataset in recorded] + sorted(recorded - KNOWLEDGE_GRAPHS.keys())
