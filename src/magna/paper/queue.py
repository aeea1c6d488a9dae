"""The fixed order in which `magna reproduce all` works, and the hours that are left of it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from magna.config.atomic_files import write_whole
from magna.config.schema import REPORT_SEEDS
from magna.errors import DataError, MissingExtra
from magna.paper.cell import Cell
from magna.paper.cells import CellStore
from magna.paper.experiments import EXPERIMENTS, cells
from magna.paper.published import KNOWLEDGE_GRAPHS
from magna.paper.registry import REGISTRY
from magna.training.environment import environment
from magna.training.plan import plan
from magna.training.progress import duration
from magna.training.run_folder import pick_device
from magna.training.trials import structure

SEED_BLOCK = 5  # seeds of every row before any row gets more
CPU_HOURS = 36  # of both cores, at most, for what the CPU trains
# Data sets that come last, and that `reproduce all` leaves out on the CPU.
FOR_GPU = (*KNOWLEDGE_GRAPHS, "ogbn-arxiv")
_LATE = ("pubmed",)  # takes longer than all smaller graphs together
PACE = "pace.json"  # seconds of a run by device and recipe, measured on this machine

Say = Callable[[str], None]


class Step(NamedTuple):
    """Work that ends with equal seeds in all rows of one data set, or a study without cells."""

    experiment: str
    dataset: str = ""  # of cells
    seeds: int = 0  # of each cell, after the step
    missing: Sequence[tuple[Cell, int]] = ()  # cells with fewer, and the seeds that each lacks

    @property
    def title(self) -> str:
        """Experiment, data set and seeds in words."""
        return f"{self.experiment}, {self.dataset}, to {self.seeds} seeds" if self.dataset else self.experiment

    def for_gpu(self, device: str) -> bool:
        """True if this device leaves it out."""
        return device == "cpu" and self.dataset in FOR_GPU


class Forecast(NamedTuple):
    """Seconds of one run, and the device of the runs that it was learned from."""

    seconds: float | None = None
    device: str | None = None


def steps(store: CellStore, seeds: int | None = None) -> list[Step]:
    """Work that is left, in its order: small graphs first, and a block of seeds of every row before more.

    `seeds` replaces the number of every experiment. Cells with current runs are done; studies are always in the list.
    """
    every = [(_place(step), step) for step in _all_steps(seeds)]
    seeds_of: dict[str, set[int]] = {}
    left = []
    for _, step in sorted(every, key=itemgetter(0)):
        if not step.dataset:
            left.append(step)
            continue
        missing = []
        for cell in cells(REGISTRY[step.experiment].cells, [step.dataset]):
            asked = set(REPORT_SEEDS[: cell.seeds_of(step.seeds)])
            if cell.path not in seeds_of:
                seeds_of[cell.path] = {run["seed"] for run in store.runs(cell)}
            if lacking := asked - seeds_of[cell.path]:
                missing.append((cell, len(lacking)))
            seeds_of[cell.path] |= asked  # tables may share a cell
        if missing:
            left.append(step._replace(missing=missing))
    return left


def _all_steps(seeds: int | None) -> Iterator[Step]:
    """Every step in the order of the registry, as if nothing were done."""
    for name, entry in REGISTRY.items():
        if entry.study:
            yield Step(name)
        elif entry.cells:
            experiment = EXPERIMENTS[entry.cells]
            full = seeds if seeds is not None else experiment.seeds
            for dataset in (*experiment.datasets, *experiment.also):
                for count in (*range(SEED_BLOCK, full, SEED_BLOCK), full):
                    yield Step(name, dataset, count)


def _place(step: Step) -> tuple[int, int]:
    """Place of a step in the order; equal ones stay in the order of the registry."""
    return 2 if step.dataset in FOR_GPU else 1 if step.dataset in _LATE else 0, step.seeds


class Forecasts:
    """Forecasts of cells: by runs of the same recipe on this device, by its measured pace, by runs elsewhere."""

    def __init__(self, store: CellStore, device: str) -> None:
        self.store, self.device = store, device
        self._runs: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
        for table in EXPERIMENTS:
            with suppress(DataError):  # a damaged file is named when it is trained again
                for record in (each for records in store.read(table).values() for each in records):
                    for key in ((record.recipe, record.changes), record.recipe):
                        self._runs[key] += [run for run in record.runs if run.get("seconds")]
        self._paces = _read_paces(store.out)

    def of_run(self, cell: Cell) -> Forecast:
        """Forecast of one run of a cell."""
        exact, of_recipe = self._runs[cell.config.recipe, cell.changes], self._runs[cell.config.recipe]
        pace = self._paces.get(self.device, {}).get(_pace_key(cell))
        if pace is not None and not _on(self.device, exact):
            epochs = [run["epochs"] / cell.config.train.epochs for run in exact or of_recipe]
            return Forecast(pace * min(1.0, fmean(epochs) if epochs else 1.0), self.device)
        for runs in (_on(self.device, exact), _on(self.device, of_recipe), exact, of_recipe):
            if runs:
                device = runs[-1]["device"]
                return Forecast(fmean(run["seconds"] for run in _on(device, runs)), device)
        return Forecast()

    def of_step(self, step: Step) -> list[Forecast]:
        """Forecast of each cell of a step, with its search before the first seeds, or of a study."""
        if not step.missing:
            return [Forecast(REGISTRY[step.experiment].seconds, "cpu")]
        forecasts = []
        for cell, count in step.missing:
            run = self.of_run(cell)
            if run.seconds is not None:
                search = self._of_search(cell, run) if step.seeds <= SEED_BLOCK else 0.0
                run = run._replace(seconds=count * run.seconds + search)
            forecasts.append(run)
        return forecasts

    def _of_search(self, cell: Cell, run: Forecast) -> float:
        """Seconds of a search that has not ended: of other rows on this device, else those of a run for each trial."""
        if not (trials := self.store.settled(cell).trials):
            return 0.0
        known = self.store.node_searches.seconds(cell.table, cell.dataset).get(run.device or "")
        return fmean(known) if known else trials * (run.seconds or 0.0)

    def measure(self, todo: Sequence[Step], data_dir: str | Path | None, device: str, say: Say) -> None:
        """Time a few steps of each recipe that has no run on this device, once; the pace is kept beside the cells.

        Of cells that could share a batch the last one stands for all: of a sweep over K, that of the most hops.
        """
        paces = self._paces.setdefault(self.device, {})
        wanted = {
            _pace_key(cell): cell
            for step in todo
            for cell, _ in step.missing
            if not step.for_gpu(self.device) and self.of_run(cell).device != self.device
        }
        for key, cell in wanted.items():
            say(f"{cell.dataset}, {cell.row}: timing a few steps")
            count = EXPERIMENTS[cell.table].seeds
            try:
                forecast = plan(cell.config, seeds=count, data_dir=data_dir, device=device)["time"]
            except (DataError, MissingExtra) as error:
                say(f"{cell.dataset}, {cell.row}: {error}")
                continue
            if forecast["seconds"] is not None:
                paces[key] = forecast["seconds"] / count
                if self.store.out is not None:
                    write_whole(self.store.out / PACE, json.dumps(self._paces, indent=1).encode(), "the same command")


def hours_left(todo: Sequence[Step], forecasts: Forecasts) -> tuple[dict[str, float], int]:
    """Seconds of the steps by the device of their forecast, and the number of cells without one."""
    totals: dict[str, float] = {}
    without = 0
    for step in todo:
        for each in forecasts.of_step(step):
            if each.seconds is None or each.device is None:
                without += 1
            else:
                totals[each.device] = totals.get(each.device, 0.0) + each.seconds
    return totals, without


def time_left(todo: Sequence[Step], forecasts: Forecasts) -> str:
    """Forecast of the steps in words, by the devices that it was learned from."""
    totals, without = hours_left(todo, forecasts)
    words = [f"{duration(seconds)} on {name}" for name, seconds in totals.items()]
    words += [f"{without} cells without a forecast"] if without else []
    return f"left: {', '.join(words)}"


def queue(
    *,
    work: str | Path,
    results: str | Path | None,
    measure: bool = True,
    data_dir: str | Path | None = None,
    device: str = "auto",
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Cells and studies that are left, in the order of `magna reproduce all`, with their forecasts."""
    store = CellStore(Path(work), None if results is None else Path(results))
    todo, name = steps(store), device_name(device)
    forecasts = Forecasts(store, name)
    if measure:
        forecasts.measure(todo, data_dir, device, say)
    totals, without = hours_left(todo, forecasts)
    listed, on_cpu = [], 0.0
    for step in todo:
        for (path, count), each in zip(_names(step), forecasts.of_step(step), strict=True):
            seconds = None if each.seconds is None else round(each.seconds, 1)
            line: dict[str, Any] = {"experiment": step.experiment, "dataset": step.dataset or None, "cell": path}
            line |= {"seeds": count, "up_to": step.seeds, "forecast_s": seconds, "device": each.device}
            on_cpu += seconds or 0.0 if each.device == "cpu" else 0.0
            listed.append(line | {"for_gpu": step.for_gpu(name), "beyond_cap": on_cpu > 3600 * CPU_HOURS})
    return {
        "device": name,
        "queue": listed,
        "seconds": {device: round(seconds) for device, seconds in totals.items()},
        "without_forecast": without,
        "cpu_hours": CPU_HOURS,
    }


def _names(step: Step) -> list[tuple[str, int]]:
    """Path of each cell of a step, and its missing seeds; of a study its name."""
    return [(cell.path, count) for cell, count in step.missing] or [(step.experiment, 0)]


def device_name(device: str) -> str:
    """The device as runs record it."""
    return str(environment(pick_device(device))["device"])


def _on(device: str, runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [run for run in runs if run["device"] == device]


def _pace_key(cell: Cell) -> str:
    """Recipe of a cell, and a mark of the settings that a batch shares, on which the time of an epoch depends."""
    mark = hashlib.sha256(repr(structure(cell.config)).encode()).hexdigest()[:12]
    return f"{cell.config.recipe} {mark}"


def _read_paces(folder: Path | None) -> dict[str, dict[str, float]]:
    with suppress(OSError, ValueError):
        if folder is not None and isinstance(paces := json.loads((folder / PACE).read_text(encoding="utf-8")), dict):
            return paces
    return {}
