"""All peers on one problem: check the results first, then time, and put the numbers into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from magna.bench import floor, measure
from magna.bench.peers import PEERS, Ours, Peer, Problem, Results, Step, peers_on, stepper, truth
from magna.config.threads import other_cores
from magna.graph import Graph

OP = "edge_softmax + attention_diffusion, forward + backward"
# The peer that ratios are taken against: a PyG user's loop, or plain gather and scatter where PyG did not run.
BASELINES = ("pyg", "reference")
# Far above what rounding gives, far below what a wrong program gives.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-1}
# With more than this at work beside us, threads that wait for each other lose their time.
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
    """Measure every peer that can take the problem, and say of the others why they cannot.

    Args:
        problem: the inputs; every peer gets the same tensors.
        name: what the rows call the graph.
        bandwidth: bytes per second of this device, as `floor.bandwidth` measures them.
        budget_s: seconds of timing for each peer (slow ones take three turns whatever that costs).
        peers: names out of `PEERS`; all that are meant for this device where it is not given.

    Returns:
        rows: one dict for each peer that ran.
        notes: one line for each that did not, and one where the machine was busy with something else.
    """
    device = problem.graph.device
    exact = truth(problem)
    steps: dict[str, Step] = {}
    found: dict[str, Row] = {}
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
                found[label] = _checked(results, exact, problem.x.dtype) | memory._asdict()
                steps[label] = step
        except Exception as error:  # whatever one peer dies of, the others still run
            notes.append(f"{backend} on {name} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    del exact
    progress(f"{name}: timing {', '.join(steps)}")
    with other_cores() as others:
        timings = measure.interleaved(steps, device, budget_s)
        busy = others()
    if busy is not None and busy > BUSY_CORES:
        notes.append(f"{name}: other programs kept {busy:.1f} cores busy; even ratios are not to be trusted")
    baseline = next((name for name in BASELINES if name in timings), None)
    fixed = _shape_row(problem, name) | {"other_cores": busy}
    lowest = floor.floor_ms(_traffic(problem), bandwidth)
    rows = []
    for label, timing in timings.items():
        peer_ms = timings[baseline].ms if baseline else None
        rows.append(
            fixed
            | {"backend": label, "ms": timing.ms, "ms_spread": timing.spread, "samples": timing.samples}
            | {"peer": baseline, "peer_ms": peer_ms, "ratio": None if peer_ms is None else peer_ms / timing.ms}
            | found[label]
            | {"floor_ms": lowest.gathers, "floor_ratio": timing.ms / lowest.gathers, "floor_once_ms": lowest.once}
        )
    return rows, notes


def _versions(backend: str, peer: Peer, problem: Problem) -> Iterator[tuple[str, Step, Results, measure.Memory]]:
    """A peer as it is called, and our GPU backend as a CUDA graph too, with what one pass gives and takes."""
    step, inputs, device = stepper(problem, peer), problem.tensors(), problem.graph.device
    if device.type == "cuda":
        # The first call compiles, for these very shapes.
        step()
    else:
        warm_up(peer, problem)
    yield backend, step, *measure.memory_of(step, inputs, device)
    if isinstance(peer, Ours) and peer.backend == "triton":
        # A CUDA graph takes its memory while it is captured, and keeps it.
        replay, memory = measure.memory_of(lambda: measure.captured(step), inputs, device)
        yield f"{backend} (CUDA graph)", replay, replay(), memory


def _checked(results: Results, exact: Results, dtype: torch.dtype) -> Row:
    """The error of a pass; a peer whose results are wrong is refused, not timed."""
    errors = measure.errors(results, exact)
    worst = max(errors.values())
    if not worst <= TOLERANCE[dtype]:
        raise ArithmeticError(f"not timed, its result is wrong (relative error {worst:.1e})")
    return {"error": worst, "errors": errors}


def warm_up(peer: Peer, problem: Problem) -> None:
    """Load what a peer loads once (libraries, thread pools), on a graph so small that it costs no memory."""
    heads, width = problem.x.shape[1:]
    edges = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]], device=problem.graph.device)
    tiny = Problem.random(Graph.from_edge_index(edges, 2), heads, width, problem.K, problem.x.dtype)
    stepper(tiny, peer)()


def _shape_row(problem: Problem, name: str) -> Row:
    heads, width = problem.x.shape[1:]
    return {
        "op": OP,
        "graph": name,
        "num_nodes": problem.graph.num_nodes,
        "num_edges": problem.graph.num_edges,
        "heads": heads,
        "width": width,
        "K": problem.K,
        "dtype": str(problem.x.dtype).removeprefix("torch."),
    }


def _traffic(problem: Problem) -> floor.Floor:
    heads, width = problem.x.shape[1:]
    graph = problem.graph
    return floor.traffic(graph.num_nodes, graph.num_edges, heads, width, problem.K, problem.x.element_size())
