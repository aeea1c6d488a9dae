"""Measurements of the kernels: all graphs, growth with edges and hops, memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ledger
import torch

from magna import bench
from magna.bench import floor, measure
from magna.bench.comparison import compare
from magna.bench.epoch import compare_epochs
from magna.bench.graphs import skewed_graph
from magna.bench.peers import Ours, Peer, Problem, PyG, stepper
from magna.config.schema import load_recipe
from magna.graph import Graph
from magna.ops.cpu.memory_pool import free_memory
from magna.tasks import NodeClassification, make_task
from magna.typing import Backend

Record = dict[str, Any]

HEADS, WIDTH = 8, 16
EDGES = [10**5, 10**6, 10**7, 10**8]
LARGEST_ON_CPU = 10**7
HOPS = [2, 4, 8, 16, 32]
HOPS_EDGES = 10**6
MEMORY_HOPS = [8, 16, 32, 64]
MEMORY_GRAPH = "uniform, 100,000 nodes, 1,000,000 edges"
FUSED: dict[str, Backend] = {"cpu": "cpu", "cuda": "triton"}


def kernels(
    names: Iterable[str],
    dtypes: Iterable[str],
    device: torch.device,
    data_dir: str | None,
    out: Path,
    stamped: Record,
    peers: list[str] | None,
) -> None:
    """Every graph in every precision on every backend; rows are written graph by graph."""
    bandwidth = floor.bandwidth(device)
    print(f"{stamped['device']}: {bandwidth / 1e9:,.0f} GB/s", flush=True)
    for name in names:
        for dtype in dtypes:
            problem, synthetic = bench.make_problem(name, device, getattr(torch, dtype), data_dir)
            rows, notes = compare(problem, name, bandwidth=bandwidth, budget_s=2.0, peers=peers)
            note = "synthetic graph" if synthetic else ""
            ledger.append(
                out / f"{ledger.slug(device)}.csv",
                [stamped | row | {"bandwidth": bandwidth, "note": note} for row in rows],
            )
            for row in rows:
                print(_line(row), flush=True)
            for line in notes:
                print(f"  {line}", flush=True)


def _line(row: Record) -> str:
    peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:9,.0f} MB"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:7.1f} x"
    return (
        f"{row['graph']:11} {row['dtype']:9} {row['backend']:20} {row['ms']:11,.3f} ms ±{row['ms_spread']:<8.2g}"
        f"{ratio} {peak} error {row['error']:.0e}, {row['floor_ratio']:.1f} x floor"
    )


def epochs(
    recipe: str, settings: list[str], device: torch.device, data_dir: str | None, out: Path, stamped: Record
) -> None:
    """A training step and a validation of a recipe's model, ours and PyG's in turn; one more row in a JSON list."""
    config = load_recipe(recipe).with_values(settings)
    task = make_task(config, data_dir, device)
    assert isinstance(task, NodeClassification)
    row = compare_epochs(task, config)
    print(f"{row['model']}: {row['ms']:,.0f} ms, PyG {row['peer_ms']:,.0f} ms: {row['share']:.2f} of it")
    path = out / f"epoch-{ledger.slug(device)}.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    ledger.write_json(path, {"rows": [*before, stamped | row | {"settings": settings}]})


def scaling(device: torch.device, out: Path, stamped: Record) -> Record:
    """Time over the number of edges and over the number of hops, with the exponents of the fitted power laws."""
    path = out / f"scaling-{ledger.slug(device)}.json"
    record = stamped | {"heads": HEADS, "width": WIDTH, "edges": [], "hops": [], "exponents": {}}
    sizes = [size for size in EDGES if device.type == "cuda" or size <= LARGEST_ON_CPU]
    runs = [("edges", size, 4) for size in sizes] + [("hops", HOPS_EDGES, K) for K in HOPS]
    graph: Graph | None = None
    for axis, num_edges, K in runs:
        if graph is None or graph.num_edges != num_edges:
            graph = None
            graph = skewed_graph(num_edges, device)
        problem = Problem.random(graph, HEADS, WIDTH, K)
        try:
            run = stepper(problem, Ours(FUSED[device.type], memory="save"))
            run()
            if device.type == "cuda":
                # Launches take the same time whatever the size; a CUDA graph leaves the work.
                run = measure.as_cuda_graph(run)
            timing = measure.interleaved({"": run}, device, budget_s=1.0)[""]
        except torch.OutOfMemoryError:
            print(f"{num_edges:,} edges, K = {K}: not enough memory", flush=True)
            continue
        degree = int(graph.rowptr.diff().max())
        row = {"num_edges": num_edges, "K": K, "max_degree": degree, "ms": timing.ms, "ms_spread": timing.spread}
        record[axis].append(row)
        points = [(r["num_edges"] if axis == "edges" else r["K"], r["ms"]) for r in record[axis]]
        if len(points) > 1:
            record["exponents"][axis] = {"all": exponent(points), "last_step": exponent(points[-2:])}
        ledger.write_json(path, record)
        print(f"{num_edges:>11,} edges, K = {K:2}: {timing.ms:10.3f} ms ±{timing.spread:.2g}", flush=True)
        del problem, run
    print(f"exponents: {record['exponents']}")
    return record


def exponent(points: list[tuple[float, float]]) -> float:
    """B of the power law t = a n^b that fits the points best, by least squares of the logarithms."""
    xs, ys = [math.log(n) for n, _ in points], [math.log(t) for _, t in points]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum((x - x0) ** 2 for x in xs)


def _variants(device: torch.device) -> dict[str, Peer]:
    fused = FUSED[device.type]
    return {"recompute": Ours(fused, memory="recompute"), "save": Ours(fused, memory="save"), "pyg": PyG()}


def memory(device: torch.device, out: Path, stamped: Record) -> Record:
    """Peak memory and time over the number of hops: about √K states kept, all kept, and a PyG loop.

    Each number comes from a process of its own, so that no peak hides in memory that another run left.
    """
    path = out / f"memory-{ledger.slug(device)}.json"
    record = stamped | {"rows": []}
    for K in MEMORY_HOPS:
        for variant in _variants(device):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                try:
                    peak, ms = pool.submit(_peak_and_ms, variant, K, device.type).result()
                except (BrokenProcessPool, MemoryError, torch.OutOfMemoryError):
                    peak = ms = None
            print(
                f"{variant:10} K = {K:2}: {'no room' if ms is None else f'{ms:8,.0f} ms, peak {peak} bytes'}",
                flush=True,
            )
            record["rows"].append({"graph": MEMORY_GRAPH, "variant": variant, "K": K, "peak_bytes": peak, "ms": ms})
            ledger.write_json(path, record)
    return record


def _peak_and_ms(variant: str, K: int, kind: str) -> tuple[int | None, float]:
    """Peak memory of a pass above its inputs, and the least time of five."""
    # A PyG loop keeps a row per edge and hop, and works on about four more.
    if variant == "pyg" and kind == "cpu" and (K + 4) * HOPS_EDGES * HEADS * WIDTH * 4 > 0.8 * free_memory():
        raise MemoryError
    device = torch.device(kind)
    edges = torch.randint(HOPS_EDGES // 10, (2, HOPS_EDGES), generator=torch.Generator().manual_seed(0))
    graph = Graph.from_edge_index(edges.to(device), HOPS_EDGES // 10)
    problem = Problem.random(graph, HEADS, WIDTH, K)
    run = stepper(problem, _variants(device)[variant])
    run()  # the first call compiles and fills caches
    peak = measure.memory_of(run, problem.tensors(), device)[1].peak_bytes
    return peak, min(measure.elapsed_ms(run, device) for _ in range(5))
