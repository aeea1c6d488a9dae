"""Kernels against their peers on this machine, as `magna bench` runs and prints them."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from magna.bench import floor
from magna.bench.comparison import Progress, Row, compare
from magna.bench.graphs import SHAPES, load_graph, shape_of
from magna.bench.peers import Problem
from magna.graph import Graph
from magna.paper.render import digits
from magna.training.environment import package_version
from magna.training.run_folder import pick_device

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

    `graphs` are names of `magna.bench.graphs.SHAPES`; None: Cora and Pubmed on the CPU, all on a GPU, Cora alone if
    `quick`. A missing graph is replaced by a synthetic one of the same size.

    Returns:
        {"device", "threads", "bandwidth", "versions", "rows", "notes"}: a row holds graph, backend, milliseconds, the
        peer and its ratio, memory, error and floor.
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
        measured, missing = compare(problem, name, bandwidth=bandwidth, budget_s=0.3 if quick else 2.0, progress=say)
        rows += [row | {"synthetic": synthetic} for row in measured]
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
    """The inputs of a benchmark graph, and True if the graph is synthetic."""
    shape = shape_of(name)
    edge_index, synthetic = load_graph(name, data_dir)
    graph = Graph.from_edge_index(edge_index.to(device), shape.num_nodes)
    return Problem.random(graph, shape.heads, shape.width, shape.K, dtype), synthetic


def describe(device: torch.device) -> str:
    """A device in words: the GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} {'thread' if threads == 1 else 'threads'}"


def processor() -> str:
    """Name of the processor."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def versions() -> dict[str, str | None]:
    """Versions of the packages that take part, None for missing ones."""
    return {name: package_version(name) for name in ("magna", "torch", "triton", "torch-geometric", "dgl")}


def show_benchmark(result: dict[str, Any], console: Console) -> None:
    """Print a result of `run` as a table."""
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
    last = ""
    for row in result["rows"]:
        graph = row["graph"] + (" (synthetic)" if row["synthetic"] else "")
        if last and last != graph:
            table.add_section()
        table.add_row(
            graph if graph != last else "",
            row["backend"],
            digits(row["ms"]),
            digits(row["ms_spread"]),
            "" if row["ratio"] is None else f"{row['ratio']:,.1f}",
            "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:,.0f}",
            f"{row['error']:.0e}",
            f"{row['floor_ratio']:,.1f}",
        )
        last = graph
    console.print(table)
    for note in result["notes"]:
        console.print(f"note: {note}", style="dim", highlight=False, markup=False)
