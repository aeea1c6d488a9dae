"""Kernels against their peers on this machine: what `magna bench` runs and prints."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from magna.bench import floor
from magna.bench.comparison import Progress, Row, compare
from magna.bench.graphs import SHAPES, load, shape_of
from magna.bench.peers import Problem
from magna.graph import Graph
from magna.training.run_folder import package_version, pick_device

if TYPE_CHECKING:
    from rich.console import Console

# A PyG loop takes minutes over the larger graphs on a CPU.
DEFAULT_GRAPHS = {"cpu": ("cora", "pubmed"), "cuda": tuple(SHAPES)}


def run(
    graphs: Sequence[str] | None = None,
    device: str = "auto",
    quick: bool = False,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time softmax and diffusion, forward and backward, on all backends and peers that run here.

    Args:
        graphs: names out of `magna.bench.graphs.SHAPES`; Cora and Pubmed on the CPU, all on a GPU where none is given.
        device: "auto", "cpu" or "cuda".
        quick: Cora alone, a few seconds.
        data_dir: where the graphs are; synthetic ones of the same size are taken where it does not hold them.
        progress: called with a line of text as the work goes on.

    Returns:
        {"device", "threads", "bandwidth", "versions", "rows", "notes"}: a row holds the graph, the backend, its
        milliseconds, the peer it is compared with and how many times faster it is, memory, error and floor.
    """
    where = torch.device(pick_device(device))
    say = progress or (lambda message: None)
    names = graphs or (("cora",) if quick else DEFAULT_GRAPHS[where.type])
    for name in names:
        shape_of(name)
    say("measuring memory bandwidth")
    bandwidth = floor.bandwidth(where)
    rows: list[Row] = []
    notes: list[str] = []
    for name in names:
        problem, synthetic = make_problem(name, where, torch.float32, data_dir)
        found, missing = compare(problem, name, bandwidth=bandwidth, budget_s=0.3 if quick else 2.0, progress=say)
        rows += [row | {"synthetic": synthetic} for row in found]
        notes += missing
    return {
        "device": describe(where),
        "threads": torch.get_num_threads(),
        "bandwidth": bandwidth,
        "versions": versions(),
        "rows": rows,
        "notes": notes,
    }


def make_problem(
    name: str, device: torch.device, dtype: torch.dtype, data_dir: str | Path | None = None
) -> tuple[Problem, bool]:
    """The inputs of a benchmark graph, and whether the graph is synthetic."""
    shape = shape_of(name)
    edge_index, synthetic = load(name, data_dir)
    graph = Graph.from_edge_index(edge_index.to(device), shape.num_nodes)
    return Problem.random(graph, shape.heads, shape.width, shape.K, dtype), synthetic


def describe(device: torch.device) -> str:
    """A device in words: the GPU's name, or the processor and how many threads are used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} {'thread' if threads == 1 else 'threads'}"


def _processor() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str | None]:
    """Versions of what takes part, None where it is not installed."""
    return {name: package_version(name) for name in ("magna", "torch", "triton", "torch-geometric", "dgl")}


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show_benchmark(result: dict[str, Any], console: Console) -> None:
    """Print a result of `run` as a table a person can read."""
    from rich import box
    from rich.table import Table

    bandwidth = f"{result['bandwidth'] / 1e9:,.0f} GB/s"
    table = Table(
        title=f"softmax + diffusion, forward + backward: {result['device']}, {bandwidth}",
        caption=f"× peer: times faster than {result['rows'][0]['peer'] if result['rows'] else 'the peer'}; "
        "× floor: time over the time that moving the data alone takes",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in ("graph", "backend", "ms", "±", "× peer", "peak MB", "error", "× floor"):
        table.add_column(column, justify="left" if column in ("graph", "backend") else "right", no_wrap=True)
    last = None
    for row in result["rows"]:
        graph = row["graph"] + (" (synthetic)" if row["synthetic"] else "")
        if last not in (None, graph):
            table.add_section()
        table.add_row(
            graph if graph != last else "",
            row["backend"],
            _digits(row["ms"]),
            _digits(row["ms_spread"]),
            _number(row["ratio"], 1),
            _megabytes(row["peak_bytes"]),
            f"{row['error']:.0e}",
            f"{row['floor_ratio']:,.1f}",
        )
        last = graph
    console.print(table)
    for note in result["notes"]:
        console.print(f"note: {note}", style="dim", highlight=False, markup=False)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _megabytes(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:,.0f}"
