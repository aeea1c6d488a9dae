"""Measurements of the kernels: all graphs, growth with edges and hops, memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ledger
import torch

from magna import bench
from magna.bench import floor, measure
from magna.bench.comparison import compare, warm_up
from magna.bench.epoch import compare_epochs
from magna.bench.graphs import skewed_graph
from magna.bench.peers import Ours, Peer, Problem, PyG, stepper
from magna.config.schema import load_recipe
from magna.graph import Graph
from magna.tasks import make_task
from magna.typing import Backend

Record = dict[str, Any]

HEADS, WIDTH = 8, 16
EDGES = [10**5, 10**6, 10**7, 10**8]
LARGEST_ON_CPU = 10**7
HOPS = [2, 4, 8, 16, 32]
HOPS_EDGES = 10**6
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
    row = compare_epochs(make_task(config, data_dir, device), config)
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


def memory(names: Iterable[str], device: torch.device, data_dir: str | None, out: Path, stamped: Record) -> Record:
    """Peak memory over the number of hops: states saved, states recomputed, and a PyG loop.

    On the CPU each number comes from a process of its own, so that nothing another one left behind can hide in it.
    """
    path = out / f"memory-{ledger.slug(device)}.json"
    record = stamped | {"rows": []}
    for name in names:
        peak_of = _peak_on_gpu(name, device, data_dir) if device.type == "cuda" else _peak_in_process(name, data_dir)
        for variant in _variants(device):
            for K in HOPS:
                peak = peak_of(variant, K)
                print(f"{name:11} {variant:10} K = {K:2}: {_megabytes(peak)}", flush=True)
                record["rows"].append({"graph": name, "variant": variant, "K": K, "peak_bytes": peak})
                ledger.write_json(path, record)
    return record


def _megabytes(peak: int | None) -> str:
    return "not measured, more than this machine has" if peak is None else f"{peak / 1e6:9,.0f} MB"


def _peak_on_gpu(name: str, device: torch.device, data_dir: str | None) -> Callable[[str, int], int | None]:
    problem, _ = bench.make_problem(name, device, torch.float32, data_dir)
    variants = _variants(device)

    def peak(variant: str, K: int) -> int | None:
        at_hops = replace(problem, K=K)
        run = stepper(at_hops, variants[variant])
        try:
            # The first call compiles; the second is what every later one costs.
            run()
            return measure.memory_of(run, at_hops.tensors(), device)[1].peak_bytes
        except torch.OutOfMemoryError:
            return None

    return peak


def _peak_in_process(name: str, data_dir: str | None) -> Callable[[str, int], int | None]:
    shape = bench.shape_of(name)
    row_per_edge = shape.num_edges * shape.heads * shape.width * 4

    def peak(variant: str, K: int) -> int | None:
        # A PyG loop keeps a row per edge and hop, and works on about four more.
        if variant == "pyg" and (K + 4) * row_per_edge > 0.8 * _free_bytes():
            return None
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            try:
                return pool.submit(_peak_here, name, data_dir, variant, K).result()
            except BrokenProcessPool:
                return None

    return peak


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _peak_here(name: str, data_dir: str | None, variant: str, K: int) -> int | None:
    device = torch.device("cpu")
    problem = replace(bench.make_problem(name, device, torch.float32, data_dir)[0], K=K)
    peer = _variants(device)[variant]
    warm_up(peer, problem)
    run = stepper(problem, peer)
    return measure.memory_of(run, problem.tensors(), device)[1].peak_bytes
