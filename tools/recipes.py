"""Tables of the recipes that come with the package: size, time, memory and score of each.

`python -m tools.recipes [RECIPE …]` forecasts parameters and memory of recipes whose data is here, all by default, and
writes them to `results/recipes.csv`.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from magna.config.schema import Config, load_recipe, recipe_names
from magna.paper.records import Record, read_records
from magna.paper.render import TextTable, digits
from magna.tasks.metrics import METRIC_FORMS
from magna.training.plan import plan

NOT_MEASURED = "not measured"
FORECASTS = "recipes.csv"
TABLES = ("table1", "table3", "training")  # of results, with runs of recipes as they are
HEADER = ["recipe", "model", "parameters", "time a seed", "memory", "test score", "seeds", "command"]
# The command in `[expected] measured`, which may hold quoted commas.
_COMMAND = re.compile(r"magna (?:'[^']*'|[^',.;])*?(?= on (?:a|one|the)\b|[,.;]|$)")
# Data sets in the order of the page.
_NODES = ("digits", "cora", "citeseer", "pubmed", "ogbn-arxiv")
_ORDER = (*_NODES, "families", "wn18rr-v1", "fb15k-237-v1", "wn18rr", "fb15k-237")


def recipe_tables(results: Path) -> str:
    """A heading and a table for each data set, one row a recipe."""
    configs = [load_recipe(name) for name in recipe_names()]
    forecasts, runs = read_forecasts(results / FORECASTS), list(plain_records(results))
    parts = []
    for dataset in sorted({config.data.name for config in configs}, key=_ORDER.index):
        rows = [_row(config, forecasts, runs) for config in configs if config.data.name == dataset]
        parts.append(f"## {dataset}\n\n{TextTable(HEADER, rows).markdown()}")
    return "\n\n".join(parts)


def plain_records(results: Path) -> Iterator[Record]:
    """Committed runs of recipes without changes."""
    for table in TABLES:
        for record in read_records(results, table).values():
            if not record.changes and record.split is None and record.is_current(load_recipe(record.recipe)):
                yield record


def read_forecasts(path: Path) -> dict[str, Mapping[str, str]]:
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["recipe"]: row for row in csv.DictReader(file)}


def command_of(measured: str) -> str:
    """The command in a sentence about a measurement.

    >>> command_of("MRR of magna reproduce table3 --row 'MAGNA, tuned' --seeds 3, on one NVIDIA H200")
    "magna reproduce table3 --row 'MAGNA, tuned' --seeds 3"
    >>> command_of("magna train digits --seeds 10, on the CPU, torch 2.13.0; results/digits.json")
    'magna train digits --seeds 10'
    """
    match = _COMMAND.search(measured)
    return match[0].strip() if match else ""


def _row(config: Config, forecasts: Mapping[str, Mapping[str, str]], records: Iterable[Record]) -> list[str]:
    forecast, expected = forecasts.get(config.recipe), config.expected
    command = command_of(expected.measured) or f"magna train {config.recipe}"
    return [
        f"`{config.recipe}`",
        _model(config),
        f"{int(forecast['parameters']):,}" if forecast else NOT_MEASURED,
        _time([record for record in records if record.recipe == config.recipe]),
        f"{int(forecast['peak_bytes']) / 1e6:,.0f} MB" if forecast else NOT_MEASURED,
        _score(config) if expected.seeds else NOT_MEASURED,
        str(expected.seeds) if expected.seeds else NOT_MEASURED,
        f"`{command}`",
    ]


def _model(config: Config) -> str:
    model = config.model
    name = f"{model.name}, {model.decoder}" if hasattr(model, "decoder") else model.name
    members = getattr(model, "members", 1)
    return f"{members} × {name}" if members > 1 else name


def _score(config: Config) -> str:
    form, expected = METRIC_FORMS[config.task.METRIC], config.expected
    unit = " %" if form.unit == "%" else ""
    return f"{form.number(expected.test)} ± {form.number(expected.test_std)}{unit}"


def _time(records: Iterable[Record]) -> str:
    """Mean seconds of a seed, from the record with the most seeds."""
    timed = [record for record in records if all(run.get("seconds") for run in record.runs)]
    if not timed:
        return NOT_MEASURED
    runs = max(timed, key=lambda record: len(record.runs)).runs
    on_cpu = " (CPU)" * (runs[0]["device"] == "cpu")
    return f"{digits(fmean(run['seconds'] for run in runs))} s{on_cpu}"


def write_forecasts(path: Path, names: Sequence[str]) -> None:
    """Forecast recipes, one after the other; a recipe whose data is not here keeps its line."""
    rows = read_forecasts(path)
    for name in names or recipe_names():
        with suppress(ValueError, OSError):
            forecast = plan(name, device="cpu", measure=False)
            peak = forecast["memory"]["peak"]
            rows[name] = {"recipe": name, "parameters": str(forecast["parameters"]), "peak_bytes": str(peak)}
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, ["recipe", "parameters", "peak_bytes"], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows[name] for name in recipe_names() if name in rows)


if __name__ == "__main__":
    write_forecasts(Path("results") / FORECASTS, sys.argv[1:])
