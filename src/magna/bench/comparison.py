"""All peers on one problem: check the results, time the passes, and return rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from magna.bench import floor, measure
from magna.bench.peers import PEERS, Ours, Peer, Problem, Results, Step, peers_on, stepper, truth
from magna.config.threads import other_cores
from magna.graph import Graph

OP = "edge_softmax + attention_diffusion, forward + backward"
# The peer of the ratios: a PyG user's loop, or plain gather and scatter if PyG did not run.
BASELINES = ("pyg", "reference")
# Far above rounding, far below the error of a wrong program.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-1}
# With more cores busy elsewhere, threads wait for each other.
BUSY_CORES = 0.2

Row = dict[str, Any]
Progress = Callable[[str], None]


def compare(
    problem: Problem,
    name: str,
    *,
    bandwidth: float,
    budget_s: float,
    peers: Iterable[str] | None = None,
    progress: Progress = lambda message: None,
) -> tuple[list[Row], list[str]]:
    """Measure every peer that can take the problem (None: all for this device), and note why the others cannot.

    `name` is the graph's in the rows, `bandwidth` is in bytes per second, and each peer is timed for `budget_s`, a slow
    one for three turns in any case.

    Returns:
        A dict for each peer that ran, and a line for each that did not; another line if the machine was busy.
    """
    device = problem.graph.device
    exact = truth(problem)
    steps: dict[str, Step] = {}
    checked: dict[str, Row] = {}
    notes: list[str] = []
    for backend in peers or peers_on(device):
        peer = PEERS[backend]
        reason = peer.why_not(problem)
        if reason is not None:
            notes.append(f"{backend} on {name}: {reason}")
            continue
        progress(f"{name}: checking {backend}")
        try:
            for label, step, results, memory in _versions(backend, peer, problem):
                checked[label] = _checked(results, exact, problem.x.dtype) | memory._asdict()
                steps[label] = step
        except Exception as error:  # the others still run
            notes.append(f"{backend} on {name} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    del exact
    progress(f"{name}: timing {', '.join(steps)}")
    with other_cores() as others:
        timings = measure.interleaved(steps, device, budget_s)
        busy = others()
    if busy is not None and busy > BUSY_CORES:
        notes.append(f"{name}: other programs kept {busy:.1f} cores busy; do not trust even the ratios")
    baseline = next((name for name in BASELINES if name in timings), None)
    sizes, dtype = problem.sizes(), problem.x.dtype
    fixed = {"op": OP, "graph": name, **sizes, "dtype": str(dtype).removeprefix("torch."), "other_cores": busy}
    lowest = floor.floor_ms(floor.traffic(**sizes, element_bytes=dtype.itemsize), bandwidth)
    rows = []
    for label, timing in timings.items():
        peer_ms = timings[baseline].ms if baseline else None
        rows.append(
            fixed
            | {"backend": label, "ms": timing.ms, "ms_spread": timing.spread, "samples": timing.samples}
            | {"peer": baseline, "peer_ms": peer_ms, "ratio": None if peer_ms is None else peer_ms / timing.ms}
            | checked[label]
            | {"floor_ms": lowest.gathers, "floor_ratio": timing.ms / lowest.gathers, "floor_once_ms": lowest.once}
        )
    return rows, notes


def _versions(backend: str, peer: Peer, problem: Problem) -> Iterator[tuple[str, Step, Results, measure.PassMemory]]:
    """Name, step, results and memory of a peer; our GPU backend comes as a CUDA graph too."""
    step, inputs, device = stepper(problem, peer), problem.tensors(), problem.graph.device
    if device.type == "cuda":
        # The first call compiles for these shapes.
        step()
    else:
        warm_up(peer, problem)
    yield backend, step, *measure.memory_of(step, inputs, device)
    if isinstance(peer, Ours) and peer.backend == "triton":
        # A CUDA graph takes its memory while it is captured, and keeps it.
        replay, memory = measure.memory_of(lambda: measure.as_cuda_graph(step), inputs, device)
        yield f"{backend} (CUDA graph)", replay, replay(), memory


def _checked(results: Results, exact: Results, dtype: torch.dtype) -> Row:
    """The error of a pass; wrong results are refused."""
    errors = measure.errors(results, exact)
    worst = max(errors.values())
    if not worst <= TOLERANCE[dtype]:
        raise ArithmeticError(f"not timed, its result is wrong (relative error {worst:.1e})")
    return {"error": worst, "errors": errors}


def warm_up(peer: Peer, problem: Problem) -> None:
    """Let a peer load its libraries and threads on a graph so small that it costs no memory."""
    heads, width = problem.x.shape[1:]
    edges = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]], device=problem.graph.device)
    tiny = Problem.random(Graph.from_edge_index(edges, 2), heads, width, problem.K, problem.x.dtype)
    stepper(tiny, peer)()
