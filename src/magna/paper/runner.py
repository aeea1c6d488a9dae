"""`magna reproduce`: run an experiment of the registry, write its files and list what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from magna.config.atomic_files import make_folder
from magna.errors import ArgumentError, DataError, MissingExtra
from magna.paper import reproduce
from magna.paper.cells import CellStore
from magna.paper.experiments import EXPERIMENTS, cells, quick_cells
from magna.paper.listing import as_missing
from magna.paper.outputs import write_outputs
from magna.paper.queue import Forecasts, device_name, steps, time_left
from magna.paper.registry import ALL, REGISTRY, Entry, entry_of, function_of
from magna.paper.render import TextTable
from magna.paper.study import Missing, StudyJob
from magna.paper.style import import_pyplot

QUICK_NOTE = "Quick form: few seeds and cells, no result. "


def run_experiment(
    name: str,
    *,
    work: str | Path,
    results: str | Path | None = None,
    out: str | Path | None = None,
    quick: bool = False,
    seeds: int | None = None,
    datasets: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    data_dir: str | Path | None = None,
    run_dir: str | Path | None = None,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure what an experiment lacks, write its files to `out`, and return its rows.

    The other arguments are those of :func:`magna.paper.reproduce.reproduce`. An experiment without cells takes no
    `rows`; it trains what it needs in `run_dir`.
    """
    name, entry = entry_of(name)
    if out is not None:  # what cannot be written is refused before the training
        make_folder(out, "out")
        if entry.draw:
            import_pyplot()
    options: dict[str, Any] = {"quick": quick, "seeds": seeds, "datasets": datasets, "data_dir": data_dir}
    options |= {"device": device, "say": say}
    if entry.cells:
        table_options: dict[str, Any] = {"work": work, "results": results, "rows": rows, "run_dir": run_dir}
        result = reproduce.reproduce(entry.cells, **table_options, **options)
        table = TextTable(result["header"], result["rows"])
        caption = f"{entry.measures[0].upper()}{entry.measures[1:]}."
        if quick:
            caption = f"{_quick_note(entry.cells, result['seeds'])} {caption}"
        lacking = _missing_cells(name, entry, result, quick, datasets, rows, CellStore(Path(work), _path(results)))
        if entry.conclude:
            outcome = function_of(entry.conclude)(table, caption, data_dir)
            table, caption = outcome.table, outcome.caption
            result |= outcome.shown._asdict()
    else:
        if rows is not None:
            raise ArgumentError("row", list(rows), f"with tables of trained cells alone, as {name} has none")
        folder = Path(run_dir or ("runs/reproduce-quick" if quick else "runs/reproduce"))
        outcome = function_of(entry.study)(StudyJob(folder, _path(results), **options))
        table, caption, lacking = outcome.table, QUICK_NOTE * quick + outcome.caption, list(outcome.missing)
        shown = outcome.shown._asdict()
        result = {"table": name, "quick": quick, "datasets": list(datasets or ()), "seeds": seeds} | shown
    files = []
    if out is not None:
        draw = function_of(entry.draw) if entry.draw else None
        files = write_outputs(name, entry.kind, table, caption, draw, Path(out))
    missing = [each._asdict() for each in lacking]
    place = {"out": None if out is None else str(out), "files": files, "missing": missing, "caption": caption}
    return {"name": name, "kind": entry.kind} | result | place


def _quick_note(table: str, seeds: int) -> str:
    """The cells of the quick form of a table, and the settings in which they are not those of the table."""
    experiment = EXPERIMENTS[table]
    rows, datasets = " and ".join(experiment.quick_rows), " and ".join(experiment.quick_datasets)
    settings = ", ".join(experiment.quick)
    return f"Quick form, no result: {rows} on {datasets}, {seeds} seeds, trained to patience with {settings}."


def run_all(**options: Any) -> dict[str, Any]:
    """Run every experiment that is built, with the options of `run_experiment`.

    The order is that of `magna plan --queue`, of the quick form that of the registry. After a stop, the same call
    continues, as what is done is not trained again. An experiment whose data or extra is missing is named and left out,
    and so are the data sets that the CPU would take too long for.
    """
    if narrowed := [name for name in ("datasets", "rows") if options.get(name)]:
        raise ArgumentError(narrowed[0], options[narrowed[0]], f"with one experiment, not with {ALL}")
    every = _All(options)
    if options.get("quick"):
        for name in REGISTRY:
            every.say(f"{name}: {REGISTRY[name].measures}")
            every.run(name)
    else:
        every.work()
    rows = [[name, REGISTRY[name].kind, every.state(name)] for name, entry in REGISTRY.items()]
    files, missing = (
        [each for result in every.results.values() for each in result[key]] for key in ("files", "missing")
    )
    header = ["name", "kind", "state"]
    return {"name": ALL, "kind": "table", "header": header, "rows": rows, "files": files, "missing": missing}


class _All:
    """Results and faults of all experiments so far."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = {"say": lambda line: None} | dict(options)
        self.say: Callable[[str], None] = self.options["say"]
        self.results: dict[str, dict[str, Any]] = {}
        self.faults: dict[tuple[str, str], str] = {}  # by experiment and data set
        self.diverged: set[str] = set()

    def run(self, name: str, dataset: str = "", **narrowed: Any) -> None:
        """Run one experiment, or one data set of it; what cannot be read or imported is named."""
        run_dir = self.options.get("run_dir") if _keeps_runs(name) else None
        datasets = {"datasets": [dataset]} if dataset else {}
        try:
            self.results[name] = run_experiment(name, **self.options | {"run_dir": run_dir} | datasets | narrowed)
        except (DataError, MissingExtra) as error:
            self.say(f"{name}: {error}")
            self.faults[name, dataset] = str(error)
        else:
            self.diverged |= {*self.results[name].get("diverged", ())}

    def work(self) -> None:
        """Run the steps of the queue, each with the time that is left, then show the tables that had no step."""
        store = CellStore(Path(self.options["work"]), _path(self.options.get("results")))
        device = device_name(self.options.get("device", "auto"))
        todo = steps(store, self.options.get("seeds"))
        for place, step in enumerate(todo):
            if step.for_gpu(device):
                command = f"magna reproduce {step.experiment} --dataset {step.dataset}"
                self.say(f"{step.title}: left out on the CPU; try {command}")
                continue
            if (step.experiment, step.dataset) in self.faults:
                continue
            left = [each for each in todo[place:] if not each.for_gpu(device)]
            self.say(f"{step.title}: {time_left(left, Forecasts(store, device))}")
            if not step.dataset:
                self.run(step.experiment)
            elif rows := dict.fromkeys(cell.row for cell, _ in step.missing if cell.path not in self.diverged):
                self.run(step.experiment, step.dataset, rows=list(rows), seeds=step.seeds)
        for name, entry in REGISTRY.items():
            if entry.cells and name not in self.results:
                self.run(name, datasets=(), say=lambda line: None)

    def state(self, name: str) -> str:
        """State of an experiment in words."""
        lacking = len(self.results[name]["missing"]) if name in self.results else 0
        words = [f"{lacking} missing"] if lacking else []
        words += [fault for (of, _), fault in self.faults.items() if of == name]
        return "; ".join(words) or "complete"


def _keeps_runs(name: str) -> bool:
    """True if a run of the experiment lies in `run_dir` while it is trained."""
    entry = REGISTRY[name]
    return bool(entry.study) or not all(cell.config.task.SHARES_BATCH for cell in cells(entry.cells))


def collect_cells(name: str, *, work: str | Path, results: str | Path) -> dict[str, Any]:
    """Add the finished cells of a table in `work` to the committed `results`."""
    name, entry = entry_of(name)
    if not entry.cells:
        trained = [each for each, other in REGISTRY.items() if other.cells]
        raise ArgumentError("experiment", name, f"with cells to collect: {', '.join(trained)}")
    return {"name": name, "kind": entry.kind} | reproduce.collect(entry.cells, work=work, results=results)


def _missing_cells(
    name: str,
    entry: Entry,
    result: Mapping[str, Any],
    quick: bool,
    datasets: Sequence[str] | None,
    rows: Sequence[str] | None,
    store: CellStore,
) -> list[Missing]:
    """Cells of the table without a result; of a quick one, among those that were asked for."""
    if quick:
        failed = {*result["diverged"], *result["unavailable"], *result["without_data"]}
        chosen = [cell for cell in quick_cells(entry.cells, datasets, rows) if cell.path in failed]
    else:
        asked = dict.fromkeys((*EXPERIMENTS[entry.cells].datasets, *(datasets or ())))
        every = map(store.settled, cells(entry.cells, list(asked)))
        chosen = [cell for cell in every if not store.runs(cell) or cell.path in result["diverged"]]
    return as_missing(name, chosen, result["seeds"], store.results)


def _path(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)
