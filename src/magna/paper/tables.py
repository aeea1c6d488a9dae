"""Tables of `magna reproduce`, ours beside the published ones, from the records of their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean

from magna.paper import published
from magna.paper.cells import Records
from magna.paper.experiments import (
    ABLATED_PARTS,
    CONTROLS,
    SEARCHED_RECIPES,
    SPLIT_RECIPES,
    SWEPT_ALPHAS,
    SWEPT_HOPS,
    SWEPT_MODELS,
    SWITCHES,
    TABLE_1_RECIPES,
    TABLE_3_RECIPES,
    sweep_row,
)
from magna.paper.node_systems import WITH, WITHOUT, rows_of
from magna.paper.published import CITATION_GRAPHS, KNOWLEDGE_GRAPHS, LINK_METRICS
from magna.paper.records import PROTOCOL, Record
from magna.paper.render import (
    EMPTY,
    TextTable,
    bytes_text,
    count_text,
    difference_text,
    seconds_text,
    short,
    signed,
    spread_text,
)
from magna.tasks.metrics import Spread, holm, paired_test, spread

TUNED = "MAGNA, tuned"
SIGNIFICANT = 0.05
UNMEASURED = "not yet measured"
COST_HEADER = ("parameters", "an epoch", "memory")

Read = Callable[[str], Records]  # a table → its records


def make_table(name: str, read: Read) -> TextTable:
    """Make a table from the records that `read` returns; a missing figure is a dash."""
    return _TABLES[name](read)


def left_out(name: str, table: TextTable) -> list[str]:
    """Baselines of the paper's table that this one does not show."""
    shown = {row[0].removesuffix(" (ours)") for row in table.rows}
    return [model for model in published.PAPER_BASELINES if model not in shown] if name == "table1" else []


def table1(read: Read) -> TextTable:
    """Accuracy on the public split: our recipes, then the published models."""
    ours = read("table1")
    rows = []
    for row in TABLE_1_RECIPES:
        records = [record for dataset in CITATION_GRAPHS for record in ours.get((row, dataset), [])]
        figures = [spread_text(_accuracy(ours, row, dataset)) for dataset in CITATION_GRAPHS]
        rows.append([f"{row} (ours)", *figures, _origin(records)])
    for theirs in published.PAPER_TABLE_1:
        rows.append([theirs.model, *theirs.figures.values(), theirs.source])
    return TextTable(["accuracy, %", *map(str.capitalize, CITATION_GRAPHS), "source"], rows)


def ablations(read: Read) -> TextTable:
    """The tuned model without its parts, and the difference to the whole: ours, then the paper's."""
    ours, base = read("ablations"), read("table1")
    rows = []
    for dataset in CITATION_GRAPHS:
        whole, theirs = _accuracy(base, TUNED, dataset), published.MAGNA_PAPER
        paper, records = [theirs.figures[dataset], ""], base.get((TUNED, dataset), [])
        rows.append([dataset.capitalize(), "MAGNA", spread_text(whole), "", *paper, *_cost_and_origin(records)])
        for row in ABLATED_PARTS:
            part, their_part = _accuracy(ours, row, dataset), published.PAPER_ABLATIONS[row]
            paper = [their_part.figures[dataset], signed(their_part.mean(dataset) - theirs.mean(dataset))]
            figures = [spread_text(part), difference_text(part, whole), *paper]
            rows.append([dataset.capitalize(), row, *figures, *_cost_and_origin(ours.get((row, dataset), []))])
    header = ["data", "model", "accuracy, %", "difference", "paper", "difference", *COST_HEADER, "source"]
    return TextTable(header, rows)


def switches(read: Read) -> TextTable:
    """The tuned recipe with one setting changed: accuracy, and the difference with its standard error."""
    ours, base = read("switches"), read("table1")
    tuned = {dataset: _accuracy(base, TUNED, dataset) for dataset in CITATION_GRAPHS}

    def figure(text: str, dataset: str) -> str:
        part = _accuracy(ours, text, dataset)
        return EMPTY if part is None else f"{part.mean:.1f} ({difference_text(part, tuned[dataset])})"

    rows = [
        [point, f"`{text}`", *(figure(text, dataset) for dataset in CITATION_GRAPHS)]
        for point, text in SWITCHES
        if any((text, dataset) in ours for dataset in CITATION_GRAPHS)
    ]
    if rows:
        rows.insert(0, ["", "as tuned", *(spread_text(tuned[dataset]) for dataset in CITATION_GRAPHS)])
    return TextTable(["point", "change", *map(str.capitalize, CITATION_GRAPHS)], rows)


def nodes(read: Read, table: str = WITHOUT) -> TextTable:
    """Accuracy of every node model under the common search, and its difference to MAGNA on each data set."""
    ours = read(table)
    tests = _against_first(ours, list(rows_of(table)))
    rows = []
    for row in rows_of(table):
        figures = [spread_text(_accuracy(ours, row, dataset)) for dataset in CITATION_GRAPHS]
        verdicts = [tests.get((row, dataset), "") for dataset in CITATION_GRAPHS]
        records = next((ours[row, dataset] for dataset in CITATION_GRAPHS if (row, dataset) in ours), [])
        rows.append([row, *figures, *verdicts, *_cost_and_origin(records)])
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


def random_splits(read: Read) -> TextTable:
    """Accuracy over random splits, and paired tests of MAGNA against the others over the same splits."""
    ours = read("random-splits")
    first = next(iter(SPLIT_RECIPES))
    rows = []
    for dataset in CITATION_GRAPHS:
        for row in SPLIT_RECIPES:
            means, theirs = _by_split(ours, row, dataset), published.PAPER_SPLITS[row].figures[dataset]
            figure = spread_text(spread(list(means.values())) if means else None)
            tests = ["", "", ""] if row == first else _paired(_by_split(ours, first, dataset), means)
            cost = _cost_and_origin(ours.get((row, dataset), []))
            rows.append([dataset.capitalize(), row, figure, *tests, theirs, *cost])
    header = ["data", "model", "accuracy, %", "MAGNA is better by", "t-test, p", "Wilcoxon, p", "paper"]
    return TextTable([*header, *COST_HEADER, "source"], rows)


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
                rows.append(
                    [
                        name,
                        f"{title} (ours)",
                        *figures,
                        *(cost_texts(records) if part == "test" else [EMPTY] * 3),
                        _origin(records),
                    ]
                )
        for theirs in (*published.PAPER_TABLE_3, *published.LINKS_ELSEWHERE):
            figures = [theirs.figures.get((dataset, metric), EMPTY) for metric in LINK_METRICS]
            if set(figures) != {EMPTY}:
                rows.append([name, theirs.model, *figures, *[EMPTY] * len(COST_HEADER), theirs.source])
    return TextTable(["data", "model", *LINK_METRICS.values(), *COST_HEADER, "source"], rows)


def _part_cost(records: Sequence[Record], part: str) -> list[str]:
    return cost_texts(records) if part == "test" else [EMPTY] * len(COST_HEADER)


def controls(read: Read) -> TextTable:
    """MRR of the tuned model, of its encoder alone, of both under each control, and of a model without an encoder."""
    ours = read("table3")
    rows = []
    for dataset in _recorded_graphs(ours):
        whole = _metric(ours.get((TUNED, dataset), []), "mrr")
        for row in (TUNED, *CONTROLS, "DistMult"):
            if not (records := ours.get((row, dataset))):
                continue
            by = "" if row == TUNED else short(difference_text(_metric(records, "mrr"), whole, digits=3))
            change = " ".join(f"`{change}`" for change in records[0].changes) or f"recipe `{records[0].recipe}`"
            figures = [_rank(records, "mrr"), by, _rank(records, "mrr", "test_encoder")]
            rows.append([KNOWLEDGE_GRAPHS.get(dataset, dataset), row, change, *figures, _commits(records)])
    return TextTable(["data", "model", "setting", "MRR", "difference", "encoder's scores alone", "commit"], rows)


def fig4c(read: Read) -> TextTable:
    """Accuracy by the number of hops."""
    return _sweep(read("fig4c"), "model.K", SWEPT_HOPS)


def fig4d(read: Read) -> TextTable:
    """Accuracy by the teleport."""
    return _sweep(read("fig4d"), "model.alpha", SWEPT_ALPHAS)


def _sweep(records: Records, key: str, values: Sequence[float]) -> TextTable:
    """One line for each value that was measured, with plain numbers, as a figure is drawn from it."""
    rows = []
    for dataset, model, value in product(CITATION_GRAPHS, SWEPT_MODELS, values):
        row = sweep_row(model, key, value)
        if (accuracy := _accuracy(records, row, dataset)) is not None:
            numbers = [str(value), f"{accuracy.mean:.2f}", f"{accuracy.std:.2f}", str(accuracy.size)]
            rows.append([dataset.capitalize(), model, *numbers, _origin(records[row, dataset])])
    return TextTable(["data", "model", key.partition(".")[2], "accuracy, %", "SD", "seeds", "source"], rows)


_TABLES: dict[str, Callable[[Read], TextTable]] = {
    WITH: partial(nodes, table=WITH),
    **{
        table.__name__.replace("_", "-"): table
        for table in (table1, nodes, ablations, switches, random_splits, table3, controls, fig4c, fig4d)
    },
}


def _metric(records: Sequence[Record], metric: str, part: str = "test", scale: float = 1) -> Spread | None:
    """Metric of the first record over its seeds, or None if its runs lack that part of the scores."""
    runs = records[0].runs if records else []
    return spread([scale * run[part][metric] for run in runs]) if runs and part in runs[0] else None


def _accuracy(records: Records, row: str, dataset: str) -> Spread | None:
    return _metric(records.get((row, dataset), []), "accuracy", scale=100)


def _by_split(records: Records, row: str, dataset: str) -> dict[int, float]:
    """Mean accuracy over the seeds of each split."""
    means = {record.split: _metric([record], "accuracy", scale=100) for record in records.get((row, dataset), [])}
    return {split: mean.mean for split, mean in means.items() if split is not None and mean is not None}


def _parts(row: str, records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Titles and parts of the scores: the whole, and for the tuned model each half."""
    yield row, "test"
    if row == TUNED and any("test_skip" in record.runs[0] for record in records):
        yield f"{row}: encoder alone", "test_encoder"
        yield f"{row}: shallow embeddings alone", "test_skip"


def _rank(records: Sequence[Record], metric: str, part: str = "test", *, dispersed: bool = True) -> str:
    return short(spread_text(_metric(records, metric, part), 0 if metric == "mr" else 3, dispersed=dispersed))


def _recorded_graphs(records: Records) -> list[str]:
    """Knowledge graphs with a record, those of the paper first."""
    recorded = {dataset for _, dataset in records}
    return [dataset for dataset in KNOWLEDGE_GRAPHS if dataset in recorded] + sorted(recorded - KNOWLEDGE_GRAPHS.keys())


def _paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[str]:
    """Ours minus theirs with its standard error, and two p values."""
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < 2:
        return [EMPTY] * 3
    by, t_test, wilcoxon = paired_test([ours[split] for split in both], [theirs[split] for split in both])
    return [f"{signed(by.mean)} ± {by.standard_error:.1f}", f"{t_test:.2g}", f"{wilcoxon:.2g}"]


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


def _cost_and_origin(records: Sequence[Record]) -> list[str]:
    return [*cost_texts(records), _origin(records)]


def _origin(records: Sequence[Record]) -> str:
    """Seeds and devices of our figures, and a mark where the protocol has changed since."""
    if not records:
        return UNMEASURED
    seeds = dict.fromkeys(len(record.runs) for record in records)
    devices = dict.fromkeys(run["device"] for record in records for run in record.runs)
    outdated = ", outdated" if any(record.protocol != PROTOCOL for record in records) else ""
    words = f"{' or '.join(map(str, seeds))} {'seed' if max(seeds) == 1 else 'seeds'}"
    return f"ours, {words}, {' or '.join(devices)}{outdated}"


def _commits(records: Sequence[Record]) -> str:
    """Commits that trained the runs, each once; a dash for a package without its history."""
    commits = (run["commit"] for record in records for run in record.runs)
    return ", ".join(dict.fromkeys(commit or EMPTY for commit in commits))
