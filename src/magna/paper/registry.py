"""The registry of the paper's experiments: what each measures, what makes it, and what it costs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, NamedTuple

from magna.errors import ArgumentError

Kind = Literal["table", "figure"]


class Entry(NamedTuple):
    """One experiment. It trains the cells of a table, or one function measures it.

    Functions are named as `module.function` of `magna.paper.studies` and imported when they run: a shell completes
    names of experiments without torch.
    """

    kind: Kind
    measures: str
    cells: str = ""  # the table of `magna.paper.experiments` whose cells it trains
    study: str = ""  # makes the table of an experiment without cells
    draw: str = ""  # draws a figure from the rows of its CSV file
    conclude: str = ""  # adds columns to the table of trained cells, and says what follows from it
    seconds: float | None = None  # of a study on one CPU core that others share, measured
    quick_seconds: float | None = None


REGISTRY = {
    "table1": Entry("table", "accuracy on the public splits of Cora, Citeseer and Pubmed", cells="table1"),
    "table2": Entry("table", "accuracy on ogbn-arxiv, with OGB's own files", cells="table2"),
    "table3": Entry("table", "filtered ranks on WN18RR and FB15k-237, with controls", cells="table3"),
    "table6": Entry(
        "table", "Diff-GCN with LayerNorm and feed-forward, and GAT 512 wide, on the public splits", cells="table6"
    ),
    "table7": Entry("table", "accuracy over ten random splits, with paired tests", cells="random-splits"),
    "nodes": Entry("table", "every node model without the consistency loss, under one search space", cells="nodes"),
    "nodes-consistency": Entry(
        "table", "every node model with the consistency loss, under one search space", cells="nodes-consistency"
    ),
    "ablations": Entry("table", "the tuned model without its parts, as in Table 1", cells="ablations"),
    "switches": Entry("table", "the tuned model with one setting changed at a time", cells="switches"),
    "fig4a": Entry(
        "figure",
        "Laplacian eigenvalues of a trained model's attention, before and after diffusion, against the formula",
        study="spectrum.measure_spectrum",
        draw="spectrum.draw_spectrum",
        seconds=7_500,
        quick_seconds=170,
    ),
    "fig4b": Entry(
        "figure",
        "accuracy against depth: MAGNA, GAT with residuals, GCN and Diff-GCN, 3 to 24 layers",
        study="depth.measure_depth",
        draw="depth.draw_depth",
        seconds=60_000,
        quick_seconds=150,
    ),
    "fig4c": Entry(
        "figure",
        "accuracy against the number of hops K, and whether the best K follows the mean path length",
        cells="fig4c",
        draw="sweeps.draw_hops_sweep",
        conclude="sweeps.compare_with_path_length",
    ),
    "fig4d": Entry("figure", "accuracy against the teleport alpha", cells="fig4d", draw="sweeps.draw_alpha_sweep"),
    "fig5": Entry(
        "figure",
        "discrepancy of first-layer, first-head attention from uniform weights, MAGNA against GAT",
        study="discrepancy.measure_discrepancy",
        draw="discrepancy.draw_discrepancy",
        seconds=7_000,
        quick_seconds=140,
    ),
    "statistics": Entry(
        "table",
        "sizes of the data sets (Tables 4 and 5), counted by the loaders",
        study="statistics.count_statistics",
        seconds=10,
        quick_seconds=10,
    ),
    "search-spaces": Entry(
        "table",
        "the published search spaces (Tables 8 to 10) and those that magna sweep X-paper runs",
        study="search_spaces.compare_spaces",
        seconds=1,
        quick_seconds=1,
    ),
    "propositions": Entry(
        "table",
        "largest deviation of the kernels from each proposition, on random attention",
        study="laws.measure_laws",
        seconds=3,
        quick_seconds=1,
    ),
    "complexity": Entry(
        "figure",
        "time of diffusion, forward and backward, against edges and hops",
        study="complexity.measure_complexity",
        draw="complexity.draw_complexity",
        seconds=100,
        quick_seconds=15,
    ),
    "hops": Entry(
        "figure",
        "accuracy against the distance of the answer on generated graphs, for every node model",
        study="hops.measure_hops",
        draw="hops.draw_hops",
        seconds=20_000,
        quick_seconds=150,
    ),
}
ALL = "all"
ALSO_CALLED = {"random-splits": "table7"}


def entry_names() -> list[str]:
    """Names that `magna reproduce` takes; `ALL` runs every experiment that is built."""
    return [*REGISTRY, *ALSO_CALLED, ALL]


def entry_of(name: str) -> tuple[str, Entry]:
    """The name of an experiment in the paper's words, and its entry.

    >>> entry_of("random-splits")[0]
    'table7'
    """
    name = ALSO_CALLED.get(name, name)
    if name not in REGISTRY:
        raise ArgumentError("experiment", name, entry_names())
    return name, REGISTRY[name]


def function_of(place: str) -> Any:
    """The function that an entry names."""
    module, _, function = place.partition(".")
    return getattr(import_module(f"magna.paper.studies.{module}"), function)
