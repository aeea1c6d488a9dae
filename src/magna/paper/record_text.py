"""Figures and their origin as texts, from the records of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from magna.paper.cells import Records
from magna.paper.published import CITATION_GRAPHS
from magna.paper.records import PROTOCOL, Record
from magna.paper.render import EMPTY, bytes_text, count_text, seconds_text
from magna.tasks.metrics import Spread, spread

UNMEASURED = "not yet measured"
COST_HEADER = ("parameters", "an epoch", "memory")

Read = Callable[[str], Records]  # a table → its records


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


def cost_texts(records: Sequence[Record]) -> list[str]:
    """Parameters, time of an epoch and memory of a cell, below `COST_HEADER`; a dash for what no run has recorded.

    Runs of other devices than the last one are left out.
    """
    every = [run for record in records for run in record.runs]
    runs = [run for run in every if run["device"] == every[-1]["device"]]
    epochs = [run["seconds"] / run["epochs"] for run in runs if run.get("seconds") and run.get("epochs")]

    def mean(values: Sequence[float], text: Callable[[float], str]) -> str:
        return text(fmean(values)) if values else EMPTY

    parameters, peaks = ([run[key] for run in runs if run.get(key)] for key in ("parameters", "peak_bytes"))
    return [mean(parameters, count_text), mean(epochs, seconds_text), mean(peaks, bytes_text)]


def cost_and_origin(records: Sequence[Record]) -> list[str]:
    """Texts of the last columns of a row."""
    return [*cost_texts(records), origin_of(records)]
