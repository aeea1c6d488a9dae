"""The tables of `magna reproduce`, ours beside theirs, from the files of its cells. Reads files, never a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from magna.paper import published
from magna.paper.experiments import ABLATIONS, CONTROLS, RANDOM_SPLITS, SWITCHES, TABLE_1, TABLE_3
from magna.paper.published import DATASETS, GRAPHS, LINK_METRICS, LinkRow
from magna.tasks.metrics import Spread, difference, paired_test, spread

if TYPE_CHECKING:
    from rich.console import Console

EMPTY = "—"
# With fifty comparisons a difference of two standard errors turns up by chance alone.
CLEAR = 3.0

Records = Mapping[tuple[str, str], Sequence[dict[str, Any]]]  # (row, data set) → its cells, several where it has splits
Read = Callable[[str], Records]  # a table → everything recorded for it


class Table(NamedTuple):
    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        return markdown(self.header, self.rows)

    def show(self, console: Console) -> None:
        """On a terminal: no marks of Markdown, and a figure or a word stays in one piece."""
        from rich import box, table

        rows = [
            [text.replace("**", "").replace("`", "").replace(" ± ", "\u00a0±\u00a0") for text in row]
            for row in self.rows
        ]
        columns = list(zip(self.header, *rows, strict=True))
        words = [max(len(word) for text in column for word in text.split(" ")) for column in columns]
        widths = [max(map(len, column)) for column in columns]
        room = console.width - (2 * len(columns) - 1)  # two blanks between columns, one behind the last
        while sum(widths) > max(room, sum(words)):
            widest = max((width, at) for at, width in enumerate(widths) if width > words[at])[1]
            widths[widest] -= 1
        fits = sum(widths) <= room
        shown = table.Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for name, width in zip(self.header, widths, strict=True):
            shown.add_column(name, overflow="fold", width=width if fits else None)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; a sentence where it has no rows."""
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return "Nothing has been recorded yet."
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *body])


def make_table(name: str, results: Path, without: Collection[str] = ()) -> Table:
    """The table with what `results` holds of it, less the files `without`; what is missing is a dash."""
    return _TABLES[name](lambda table: read_cells(results, table, without))


def table1(read: Read) -> Table:
    """Public split: our recipes, then what was published."""
    ours = read("table1")
    rows = []
    for row in TABLE_1:
        found = [cell for dataset in DATASETS for cell in ours.get((row, dataset), [])]
        rows.append([f"{row} (ours)", *(_figure(_over_seeds(ours, row, d)) for d in DATASETS), _origin(found)])
    rows += [[row.model, *(str(row.figures[d]) for d in DATASETS), row.source] for row in published.TABLE_1]
    return Table(["accuracy, %", *map(str.capitalize, DATASETS), "source"], rows)


def ablations(read: Read) -> Table:
    """The tuned model without its parts, and the difference to the whole: ours, then the paper's."""
    ours, base = read("ablations"), read("table1")
    rows = []
    for dataset in DATASETS:
        whole, theirs = _over_seeds(base, "MAGNA, tuned", dataset), published.MAGNA_PAPER.figures[dataset]
        rows.append([dataset.capitalize(), "MAGNA", _figure(whole), "", str(theirs), ""])
        for row in ABLATIONS:
            part, their_part = _over_seeds(ours, row, dataset), published.ABLATIONS[row].figures[dataset]
            paper = [str(their_part), _signed(their_part.mean - theirs.mean)]
            rows.append([dataset.capitalize(), row, _figure(part), _difference(part, whole), *paper])
    return Table(["data", "model", "accuracy, %", "difference", "paper", "difference"], rows)


def switches(read: Read) -> Table:
    """One setting of the tuned recipe changed at a time: accuracy, and the difference with its standard error."""
    ours, base = read("switches"), read("table1")
    tuned = {dataset: _over_seeds(base, "MAGNA, tuned", dataset) for dataset in DATASETS}
    rows = [
        [point, f"`{text}`", *(_with_difference(_over_seeds(ours, text, d), tuned[d]) for d in DATASETS)]
        for point, text in SWITCHES
        if any((text, dataset) in ours for dataset in DATASETS)
    ]
    if rows:
        rows.insert(0, ["", "as tuned", *(_figure(tuned[dataset]) for dataset in DATASETS)])
    return Table(["point", "change", *map(str.capitalize, DATASETS)], rows)


def random_splits(read: Read) -> Table:
    """Mean and deviation over random splits, and paired tests of MAGNA against the others over the same splits."""
    ours = read("random-splits")
    first = next(iter(RANDOM_SPLITS))
    rows = []
    for dataset in DATASETS:
        for row in RANDOM_SPLITS:
            found, theirs = _by_split(ours, row, dataset), published.RANDOM_SPLITS[row].figures[dataset]
            figure = _figure(spread(list(found.values())) if found else None)
            tests = ["", "", ""] if row == first else _paired(_by_split(ours, first, dataset), found)
            rows.append([dataset.capitalize(), row, figure, *tests, str(theirs)])
    header = ["data", "model", "accuracy, %", "MAGNA is better by", "t-test, p", "Wilcoxon, p", "paper"]
    return Table(header, rows)


def table3(read: Read) -> Table:
    """Filtered ranks on each knowledge graph that was trained on: our recipes and controls, then what was published."""
    ours = read("table3")
    rows = []
    for dataset in _recorded_graphs(ours):
        for row in (*TABLE_3, *CONTROLS):
            cells = ours.get((row, dataset), [])
            if not cells and dataset not in GRAPHS:
                continue
            for words, part in _parts(row, cells):
                figures = [_ranked(cells, metric, part, dispersed=metric in ("mr", "mrr")) for metric in LINK_METRICS]
                rows.append([_written(dataset), f"{words} (ours)", *figures, _origin(cells)])
        for theirs in (*published.TABLE_3, *published.LINKS_ELSEWHERE):
            figures = [_theirs(theirs, dataset, metric) for metric in LINK_METRICS]
            if set(figures) != {EMPTY}:
                rows.append([_written(dataset), theirs.model, *figures, theirs.source])
    return Table(["data", "model", *LINK_METRICS.values(), "source"], rows)


def controls(read: Read) -> Table:
    """What is left of the tuned model's MRR, and of its encoder's alone, under each control, and without an encoder."""
    ours = read("table3")
    rows = []
    for dataset in _recorded_graphs(ours):
        whole = _metric_over_seeds(ours.get(("MAGNA, tuned", dataset), []), "mrr")
        for row in ("MAGNA, tuned", *CONTROLS, "DistMult"):
            if cells := ours.get((row, dataset)):
                part = _metric_over_seeds(cells, "mrr")
                by = "" if row == "MAGNA, tuned" else _short(_difference(part, whole, digits=3))
                change = " ".join(f"`{change}`" for change in cells[0]["changes"]) or f"recipe `{cells[0]['recipe']}`"
                encoder = _ranked(cells, "mrr", "test_encoder", dispersed=True)
                figures = [_ranked(cells, "mrr", dispersed=True), by, encoder]
                rows.append([_written(dataset), row, change, *figures, _commits(cells)])
    return Table(["data", "model", "setting", "MRR", "difference", "encoder's scores alone", "commit"], rows)


def links(read: Read) -> Table:
    """Table 3 in short: two metrics, and of what was published the rows to compare with."""
    ours, metrics = read("table3"), ("mrr", "hits@10")
    rows = []
    for row in (*TABLE_3, *CONTROLS):
        found = {dataset: ours.get((row, dataset), []) for dataset in GRAPHS}
        cells = [cell for dataset in GRAPHS for cell in found[dataset]]
        for words, part in _parts(row, cells):
            figures = [_ranked(found[d], metric, part, dispersed=metric == "mrr") for d in GRAPHS for metric in metrics]
            rows.append([f"{words} (ours)", *figures, _origin(cells)])
    for theirs in (published.DISTMULT_PAPER, *published.LINKS_ELSEWHERE, published.MAGNA_LINKS_PAPER):
        rows.append([theirs.model, *(_theirs(theirs, d, metric) for d in GRAPHS for metric in metrics), theirs.source])
    heads = [f"{name} {LINK_METRICS[metric]}" for name in GRAPHS.values() for metric in metrics]
    return Table(["filtered ranks", *heads, "source"], rows)


_TABLES: dict[str, Callable[[Read], Table]] = {
    "table1": table1,
    "ablations": ablations,
    "switches": switches,
    "random-splits": random_splits,
    "table3": table3,
    "controls": controls,
    "links": links,
}


def read_cells(results: Path, table: str, without: Collection[str] = ()) -> Records:
    """Everything recorded for a table, less some files."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in sorted((results / table).rglob("*.json")):
        try:
            cell = json.loads(file.read_text(encoding="utf-8"))
            place = (cell["row"], cell["dataset"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{file} is no figure of a table; try to delete it, then it is trained again") from None
        if file.relative_to(results).as_posix() not in without:
            found.setdefault(place, []).append(cell)
    return found


def _accuracies(cell: dict[str, Any]) -> list[float]:
    return [100 * run["test"]["accuracy"] for run in cell["runs"]]


def _over_seeds(records: Records, row: str, dataset: str) -> Spread | None:
    cells = records.get((row, dataset))
    return spread(_accuracies(cells[0])) if cells else None


def _metric_over_seeds(cells: Sequence[dict[str, Any]], metric: str, part: str = "test") -> Spread | None:
    """None where the runs do not have that part of their scores."""
    has = bool(cells) and part in cells[0]["runs"][0]
    return spread([run[part][metric] for run in cells[0]["runs"]]) if has else None


def _parts(row: str, cells: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The rows of a figure and where its runs have them: the whole, and of the tuned model each half of its scores."""
    yield row, "test"
    if row == "MAGNA, tuned" and any("test_skip" in cell["runs"][0] for cell in cells):
        yield f"{row}: the encoder's scores alone", "test_encoder"
        yield f"{row}: those past the encoder alone", "test_skip"


def _by_split(records: Records, row: str, dataset: str) -> dict[int, float]:
    """Split → mean over its seeds."""
    return {cell["split"]: spread(_accuracies(cell)).mean for cell in records.get((row, dataset), [])}


def _figure(found: Spread | None) -> str:
    """A single value has no deviation."""
    if found is None:
        return EMPTY
    return f"{found.mean:.1f}" if found.size == 1 else f"{found.mean:.1f} ± {found.std:.1f}"


def _ranked(cells: Sequence[dict[str, Any]], metric: str, part: str = "test", *, dispersed: bool) -> str:
    """Mean and, where it is to be seen, deviation of a metric of link prediction over the seeds of a cell."""
    found = _metric_over_seeds(cells, metric, part)
    if found is None:
        return EMPTY
    digits = 0 if metric == "mr" else 3
    mean, std = f"{found.mean:.{digits}f}", f"{found.std:.{digits}f}"
    return _short(mean if found.size == 1 or not dispersed else f"{mean} ± {std}")


def _theirs(row: LinkRow, dataset: str, metric: str) -> str:
    return row.figures.get((dataset, metric), EMPTY)


def _recorded_graphs(records: Records) -> list[str]:
    """Those of the paper first."""
    found = {dataset for _, dataset in records}
    return [*(dataset for dataset in GRAPHS if dataset in found), *sorted(found - GRAPHS.keys())]


def _written(dataset: str) -> str:
    return GRAPHS.get(dataset, dataset)


def _short(text: str) -> str:
    """Shares without the zero before the point, as the field writes them."""
    return text.replace("0.", ".")


def _signed(number: float, digits: int = 1) -> str:
    return f"{number:+.{digits}f}".replace("-", "−")


def _difference(part: Spread | None, whole: Spread | None, digits: int = 1) -> str:
    """With its standard error, which single runs do not have; bold where it is clear."""
    if part is None or whole is None:
        return EMPTY
    by, error = difference(part, whole)
    if min(part.size, whole.size) < 2:
        return _signed(by, digits)
    words = f"{_signed(by, digits)} ± {error:.{digits}f}"
    return f"**{words}**" if abs(by) > CLEAR * error else words


def _with_difference(part: Spread | None, whole: Spread | None) -> str:
    return EMPTY if part is None else f"{part.mean:.1f} ({_difference(part, whole)})"


def _paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[str]:
    """Ours minus theirs with its standard error, and two p values."""
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < 2:
        return [EMPTY] * 3
    by, t_test, wilcoxon = paired_test([ours[s] for s in both], [theirs[s] for s in both])
    return [f"{_signed(by.mean)} ± {by.standard_error:.1f}", f"{t_test:.2g}", f"{wilcoxon:.2g}"]


def _origin(found: Sequence[dict[str, Any]]) -> str:
    """How our figures came about: seeds and device, each once."""
    if not found:
        return "not yet measured"
    seeds = dict.fromkeys(len(cell["runs"]) for cell in found)
    words = f"{' or '.join(map(str, seeds))} {'seed' if max(seeds) == 1 else 'seeds'}"
    devices = dict.fromkeys(run.get("device", cell["environment"]["device"]) for cell in found for run in cell["runs"])
    return f"ours, {words}, {' or '.join(devices)}"


def _commits(found: Sequence[dict[str, Any]]) -> str:
    """The code that trained the runs of some cells, each once; a dash for what was installed without its history."""
    commits = (run.get("commit", cell.get("commit")) for cell in found for run in cell["runs"])
    return ", ".join(dict.fromkeys(commit or EMPTY for commit in commits))
