"""Tables of node models under the common search, and the ablations that it tunes again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from magna.paper import published
from magna.paper.cells import Records
from magna.paper.node_systems import WITH, WITHOUT, rows_of
from magna.paper.published import CITATION_GRAPHS
from magna.paper.record_text import COST_HEADER, Read, accuracy_of, cost_and_origin
from magna.paper.records import Record
from magna.paper.render import TextTable, difference_text, paired_text, signed, spread_text
from magna.paper.rows import ABLATED_PARTS, TUNED
from magna.tasks.metrics import holm, paired_test, spread

SIGNIFICANT = 0.05
# Ablation → its row in the table `nodes-consistency`, where that has another name.
TUNED_AGAIN = {"No Diffusion": "MAGNA, one hop without teleport"}


def nodes(read: Read, table: str = WITHOUT) -> TextTable:
    """Accuracy of every node model under the common search, and its difference to MAGNA on each data set."""
    ours = read(table)
    tests = _against_first(ours, list(rows_of(table)))
    rows = []
    for row in rows_of(table):
        figures = [spread_text(accuracy_of(ours, row, dataset)) for dataset in CITATION_GRAPHS]
        verdicts = [tests.get((row, dataset), "") for dataset in CITATION_GRAPHS]
        records = next((ours[row, dataset] for dataset in CITATION_GRAPHS if (row, dataset) in ours), [])
        rows.append([row, *figures, *verdicts, *cost_and_origin(records)])
    names = [dataset.capitalize() for dataset in CITATION_GRAPHS]
    return TextTable(["accuracy, %", *names, *(f"− MAGNA, {name}" for name in names), *COST_HEADER, "source"], rows)


def _against_first(ours: Records, rows: Sequence[str]) -> dict[tuple[str, str], str]:
    """Difference of each row to the first on the same seeds; "level" unless Holm's corrected p is below 0.05."""
    tests = {}
    for dataset, row in product(CITATION_GRAPHS, rows[1:]):
        first, other = (_by_seed(ours.get((each, dataset), [])) for each in (rows[0], row))
        both = sorted(first.keys() & other.keys())
        if len(both) > 1:
            tests[row, dataset] = paired_test(*([100 * each[seed] for seed in both] for each in (other, first)))
    corrected = holm([test.t_test for test in tests.values()])
    texts = {}
    for (place, test), p in zip(tests.items(), corrected, strict=True):
        by = f"{signed(test.difference.mean)} ± {test.difference.standard_error:.1f}"
        texts[place] = f"**{by}**" if p < SIGNIFICANT else f"level ({by})"
    return texts


def _by_seed(records: Sequence[Record]) -> dict[int, float]:
    return {run["seed"]: run["test"]["accuracy"] for record in records for run in record.runs}


def ablations(read: Read) -> TextTable:
    """The model without its parts, and the difference to the whole: as tuned, each tuned again, and the paper's."""
    ours, base, searched = read("ablations"), read("table1"), read(WITH)
    rows = []
    for dataset in CITATION_GRAPHS:
        whole, theirs = accuracy_of(base, TUNED, dataset), published.MAGNA_PAPER
        again = [spread_text(accuracy_of(searched, "MAGNA", dataset)), ""]
        figures = [spread_text(whole), "", *again, theirs.figures[dataset], ""]
        rows.append([dataset.capitalize(), "MAGNA", *figures, *cost_and_origin(base.get((TUNED, dataset), []))])
        for row in ABLATED_PARTS:
            part, their_part = accuracy_of(ours, row, dataset), published.PAPER_ABLATIONS[row]
            paper = [their_part.figures[dataset], signed(their_part.mean(dataset) - theirs.mean(dataset))]
            again = _tuned_again(searched, TUNED_AGAIN.get(row, row), dataset)
            figures = [spread_text(part), difference_text(part, whole), *again, *paper]
            rows.append([dataset.capitalize(), row, *figures, *cost_and_origin(ours.get((row, dataset), []))])
    header = ["data", "model", "accuracy, %", "difference", "tuned again", "difference", "paper", "difference"]
    return TextTable([*header, *COST_HEADER, "source"], rows)


def _tuned_again(searched: Records, row: str, dataset: str) -> list[str]:
    """Accuracy of a part with settings of its own search, and its difference to MAGNA on the same seeds."""
    part, whole = (_by_seed(searched.get((each, dataset), [])) for each in (row, "MAGNA"))
    by = [100 * (part[seed] - whole[seed]) for seed in part.keys() & whole.keys()]
    return [spread_text(accuracy_of(searched, row, dataset)), paired_text(spread(by) if by else None)]
