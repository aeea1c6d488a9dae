"""Tables of `magna reproduce`, ours beside the published ones, from the records of their cells."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

from magna.paper import published
from magna.paper.cells import Records
from magna.paper.link_tables import controls, table3
from magna.paper.node_systems import WITH
from magna.paper.node_tables import ablations, nodes
from magna.paper.published import CITATION_GRAPHS, PublishedRow
from magna.paper.record_text import COST_HEADER, Read, accuracy_of, cost_and_origin, metric_of, of_row, origin_of
from magna.paper.render import EMPTY, TextTable, difference_text, signed, spread_text
from magna.paper.rows import (
    AUTHORS_RECIPES,
    NODE_BASELINES,
    SPLIT_RECIPES,
    SWEPT_ALPHAS,
    SWEPT_HOPS,
    SWEPT_MODELS,
    SWITCHES,
    TABLE_1_RECIPES,
    TABLE_2_RECIPES,
    TUNED,
    authors_row,
    sweep_row,
)
from magna.tasks.metrics import paired_test, spread

ARXIV = "ogbn-arxiv"
# Ours and theirs agree if they are no further apart than this or the larger of their deviations.
AGREEMENT = 0.5


def make_table(name: str, read: Read) -> TextTable:
    """Make a table from the records that `read` returns; a missing figure is a dash."""
    return _TABLES[name](read)


def table1(read: Read) -> TextTable:
    """Accuracy on the public split: our recipes, the baselines with their authors' settings, the published models."""
    return _public_split(read("table1"), (*TABLE_1_RECIPES, *AUTHORS_RECIPES))


def table1_models(read: Read) -> TextTable:
    """Table 1 without the baselines with their authors' settings, which `table1_baselines` has."""
    return _public_split(read("table1"), tuple(TABLE_1_RECIPES))


def _public_split(ours: Records, measured: Sequence[str]) -> TextTable:
    rows = []
    for row in measured:
        figures = [spread_text(accuracy_of(ours, row, dataset)) for dataset in CITATION_GRAPHS]
        rows.append([f"{row} (ours)", *figures, origin_of(of_row(ours, row))])
    for theirs in published.PAPER_TABLE_1:
        rows.append([theirs.model, *theirs.figures.values(), theirs.source])
    return TextTable(["accuracy, %", *map(str.capitalize, CITATION_GRAPHS), "source"], rows)


def table1_baselines(read: Read) -> TextTable:
    """Baselines with their authors' settings beside the printed figures, and the data sets where they are apart."""
    ours, rows = read("table1"), []
    for model in NODE_BASELINES:
        row, theirs = authors_row(model), published.PRINTED.get(model)
        compared = theirs is not None and theirs.source != published.QUOTED
        agreement = _agreement(ours, row, theirs) if theirs is not None and compared else EMPTY
        source = EMPTY if theirs is None else theirs.source
        rows.append([model, *_beside(ours, row, theirs), source, agreement, origin_of(of_row(ours, row))])
    return TextTable(["model", *_titles("printed"), "printed by", "agrees", "source"], rows)


def _agreement(ours: Records, row: str, theirs: PublishedRow) -> str:
    """The differences to the printed figures that are too large; "yes" if there are none, a dash without figures."""
    compared, apart = False, []
    for dataset in CITATION_GRAPHS:
        if (accuracy := accuracy_of(ours, row, dataset)) is not None:
            by, compared = accuracy.mean - theirs.mean(dataset), True
            if round(abs(by), 9) > max(accuracy.std, theirs.deviation(dataset), AGREEMENT):
                apart.append(f"{dataset.capitalize()} {signed(by)}")
    return f"no: {', '.join(apart)}" if apart else "yes" if compared else EMPTY


def table2(read: Read) -> TextTable:
    """Accuracy on ogbn-arxiv with OGB's files and, apart from it, of the recipe with stand-in features."""
    ours, rows = read("table2"), []
    for row in TABLE_2_RECIPES:
        records = ours.get((row, ARXIV), [])
        figure = spread_text(accuracy_of(ours, row, ARXIV), 2) if records else "not measured"
        origin = origin_of(records) if records else f"`magna reproduce table2 --row {shlex.quote(row)}`"
        rows.append([f"{row} (ours)", figure, published.PAPER_TABLE_2[row.partition(",")[0]], origin])
    stand_in, place = read("training"), ("arxiv", f"{ARXIV} (stand-in features)")
    figure, origin = spread_text(accuracy_of(stand_in, *place), 2), origin_of(stand_in.get(place, []))
    rows.append(["MAGNA on stand-in features (ours)", figure, "not comparable", origin])
    return TextTable(["accuracy, %", ARXIV, "paper", "source"], rows)


def table6(read: Read) -> TextTable:
    """Diff-GCN with layer norm and feed-forward, and wide baselines, beside the plain models."""
    ours = {**read("table1"), **read("table6")}
    rows = [
        [row, *_beside(ours, row, published.PAPER_TABLE_6.get(row)), origin_of(of_row(ours, row))]
        for row in ("Diff-GCN", "Diff-GCN + LN + FF", "Diff-GCN, 512 wide", "GAT", "GAT, 512 wide", TUNED)
    ]
    return TextTable(["accuracy, %", *_titles("paper"), "source"], rows)


def _titles(other: str) -> list[str]:
    """Titles of our figures of each citation graph and of theirs."""
    return [title for name in map(str.capitalize, CITATION_GRAPHS) for title in (name, f"{name}, {other}")]


def _beside(ours: Records, row: str, theirs: PublishedRow | None) -> list[str]:
    """Our figure of each citation graph and theirs."""
    figures = dict.fromkeys(CITATION_GRAPHS, EMPTY) if theirs is None else theirs.figures
    return [text for name in CITATION_GRAPHS for text in (spread_text(accuracy_of(ours, row, name)), figures[name])]


def switches(read: Read) -> TextTable:
    """The tuned recipe with one setting changed: accuracy, and the difference with its standard error."""
    ours, base = read("switches"), read("table1")
    tuned = {dataset: accuracy_of(base, TUNED, dataset) for dataset in CITATION_GRAPHS}

    def figure(text: str, dataset: str) -> str:
        part = accuracy_of(ours, text, dataset)
        return EMPTY if part is None else f"{part.mean:.1f} ({difference_text(part, tuned[dataset])})"

    rows = [
        [point, f"`{text}`", *(figure(text, dataset) for dataset in CITATION_GRAPHS)]
        for point, text in SWITCHES
        if any((text, dataset) in ours for dataset in CITATION_GRAPHS)
    ]
    if rows:
        rows.insert(0, ["", "as tuned", *(spread_text(tuned[dataset]) for dataset in CITATION_GRAPHS)])
    return TextTable(["point", "change", *map(str.capitalize, CITATION_GRAPHS)], rows)


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
            cost = cost_and_origin(ours.get((row, dataset), []))
            rows.append([dataset.capitalize(), row, figure, *tests, theirs, *cost])
    header = ["data", "model", "accuracy, %", "MAGNA is better by", "t-test, p", "Wilcoxon, p", "paper"]
    return TextTable([*header, *COST_HEADER, "source"], rows)


def _by_split(records: Records, row: str, dataset: str) -> dict[int, float]:
    """Mean accuracy over the seeds of each split."""
    means = {record.split: metric_of([record], "accuracy", scale=100) for record in records.get((row, dataset), [])}
    return {split: mean.mean for split, mean in means.items() if split is not None and mean is not None}


def _paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[str]:
    """Ours minus theirs with its standard error, and two p values."""
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < 2:
        return [EMPTY] * 3
    by, t_test, wilcoxon = paired_test([ours[split] for split in both], [theirs[split] for split in both])
    return [f"{signed(by.mean)} ± {by.standard_error:.1f}", f"{t_test:.2g}", f"{wilcoxon:.2g}"]


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
        if (accuracy := accuracy_of(records, row, dataset)) is not None:
            numbers = [str(value), f"{accuracy.mean:.2f}", f"{accuracy.std:.2f}", str(accuracy.size)]
            rows.append([dataset.capitalize(), model, *numbers, origin_of(records[row, dataset])])
    return TextTable(["data", "model", key.partition(".")[2], "accuracy, %", "SD", "seeds", "source"], rows)


# fmt: off
_TABLES: dict[str, Callable[[Read], TextTable]] = {
    WITH: partial(nodes, table=WITH),
    **{
        make.__name__.replace("_", "-"): make
        for make in (
            table1, table1_models, table1_baselines, nodes, ablations, switches, table2, table3, controls, table6,
            random_splits, fig4c, fig4d,
        )
    },
}
# fmt: on
