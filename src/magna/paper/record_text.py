"""Figures and their origin as texts, from the records of a table."""

from __future__ import annotations

from collections.abc import Sequence

from magna.paper.cells import Records
from magna.paper.published import CITATION_GRAPHS
from magna.paper.records import PROTOCOL, Record
from magna.paper.render import EMPTY
from magna.tasks.metrics import Spread, spread

UNMEASURED = "not yet measured"


def metric_of(records: Sequence[Record], metric: str, part: str = "test", scale: float = 1) -> Spread | None:
    """Metric of the first record over its seeds, or None if its runs lack that part of the scores."""
    runs = records[0].runs if records else []
    return spread([scale * run[part][metric] for run in runs]) if runs and part in runs[0] else None


def accuracy_of(records: Records, row: str, dataset: str) -> Spread | None:
    """Accuracy in percent over the seeds, or None without a record."""
    return metric_of(records.get((row, dataset), []), "accuracy", scale=100)


def of_row(records: Records, row: str) -> list[Record]:
    """Records of a row on the citation graphs."""
    return [record for dataset in CITATION_GRAPHS for record in records.get((row, dataset), [])]


def origin_of(records: Sequence[Record]) -> str:
    """Seeds and devices of our figures, and a mark where the protocol has changed since."""
    if not records:
        return UNMEASURED
    seeds = dict.fromkeys(len(record.runs) for record in records)
    devices = dict.fromkeys(run["device"] for record in records for run in record.runs)
    outdated = ", outdated" if any(record.protocol != PROTOCOL for record in records) else ""
    words = f"{' or '.join(map(str, seeds))} {'seed' if max(seeds) == 1 else 'seeds'}"
    return f"ours, {words}, {' or '.join(devices)}{outdated}"


def commits_of(records: Sequence[Record]) -> str:
    """Commits that trained the runs, each once; a dash for a package without its history."""
    commits = (run["commit"] for record in records for run in record.runs)
    return ", ".join(dict.fromkeys(commit or EMPTY for commit in commits))
