"""Time of attention diffusion, forward and backward, against the number of edges and of hops."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from magna.graph import Graph
from magna.ops import attention_diffusion, edge_softmax
from magna.paper.render import TextTable
from magna.paper.study import Outcome, Rows, StudyJob, as_rows, column
from magna.paper.style import BLUE, GREY, ORANGE, new_figure
from magna.training.run_folder import pick_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EDGES, QUICK_EDGES = tuple(2**power for power in range(14, 23)), tuple(2**power for power in range(13, 19))
HOPS, QUICK_HOPS = (1, 2, 3, 4, 6, 8, 10, 16, 32), (1, 2, 4, 8, 16)
REPEATS, QUICK_REPEATS = 15, 15
_HEADS, _WIDTH, _DEGREE = 8, 8, 16
_FIXED_K = 6
_HEADER = ["against", "edges", "nodes", "K", "fastest ms", "median ms", "repeats", "device"]
_AXES = {"edges": "edges", "hops": "K"}


class Line(NamedTuple):
    """A line by least squares, and the standard error of its slope."""

    slope: float
    error: float
    offset: float


def measure_complexity(job: StudyJob) -> Outcome:
    """Time one pass forward and backward on generated graphs: all edge counts with K = 6, all hops with one graph."""
    device = torch.device(pick_device(job.device))
    edges, hops = (QUICK_EDGES, QUICK_HOPS) if job.quick else (EDGES, HOPS)
    repeats = QUICK_REPEATS if job.quick else REPEATS
    middle = edges[len(edges) // 2]
    cases = [("edges", number, _FIXED_K) for number in edges] + [("hops", middle, K) for K in hops]
    passes = [_Pass(generated_graph(number, device), K) for _, number, K in cases]
    times: list[list[float]] = [[] for _ in passes]
    with _one_thread():
        for turn in range(repeats + 1):  # a noisy moment meets all cases; the first turn is not counted
            job.say(f"turn {turn} of {repeats}")
            for each, one in zip(times, passes, strict=True):
                ms = one.milliseconds()
                each += [ms] if turn else []
    rows = []
    for (against, number, K), each in zip(cases, times, strict=True):
        shown = (min(each), sorted(each)[len(each) // 2])
        place = [against, str(number), str(number // _DEGREE), str(K)]
        rows.append([*place, *(f"{ms:.4g}" for ms in shown), str(repeats), _name(device)])
    table = TextTable(_HEADER, rows)
    caption = (
        f"Time of attention diffusion, forward and backward, on generated graphs with {_DEGREE} edges a node, {_HEADS} "
        f"heads of width {_WIDTH}, float32, on {_clock_name(device)}. Dots: fastest of "
        f"{repeats} repeats; dashes: their median. Left: K = {_FIXED_K}, with the power fitted to the dots; 1 is "
        f"linear. Right: {middle:,} edges, with the line fitted to the dots. ± is one standard error."
    )
    return Outcome(table, caption, _summary(as_rows(table)))


def _summary(rows: Rows) -> TextTable:
    powers = {against: _power(rows, against) for against in _AXES}
    lines = [[f"exponent of the time in {word}", f"{fit.slope:.3f} ± {fit.error:.3f}"] for word, fit in powers.items()]
    line = fitted(*_points(rows, "hops"))
    lines.append(["milliseconds a hop", f"{line.slope:.3g} ± {line.error:.2g}"])
    return TextTable(["quantity", "value ± SE"], lines)


def generated_graph(num_edges: int, device: torch.device) -> Graph:
    """A random graph with 16 edges a node; every node has in-edges."""
    num_nodes = num_edges // _DEGREE
    target = torch.arange(num_nodes).repeat_interleave(_DEGREE)
    source = torch.randint(num_nodes, target.shape, generator=torch.Generator().manual_seed(0))
    return Graph.from_edge_index(torch.stack([source, target]).to(device), num_nodes)


class _Pass:
    """One pass forward and backward over a graph."""

    def __init__(self, graph: Graph, K: int) -> None:
        draw = torch.Generator(graph.device).manual_seed(0)
        self.graph, self.K = graph, K
        scores = torch.randn(graph.num_edges, _HEADS, device=graph.device, generator=draw)
        self.attention = edge_softmax(scores, graph).requires_grad_()
        shape = graph.num_nodes, _HEADS, _WIDTH
        self.x = torch.randn(shape, device=graph.device, generator=draw, requires_grad=True)

    def milliseconds(self) -> float:
        started = _clock(self.graph.device)
        out = attention_diffusion(self.x, self.attention, self.graph, K=self.K, alpha=0.1)
        torch.autograd.grad(out.sum(), (self.x, self.attention))
        return 1000 * (_clock(self.graph.device) - started)


def _clock(device: torch.device) -> float:
    """Seconds: on a GPU those of the wall clock, on a CPU those that this program computes, alone or beside others."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread, as threads that wait for others use the CPU too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fitted(x: Sequence[float], y: Sequence[float]) -> Line:
    """Least squares of y on x.

    >>> fitted([1.0, 2.0, 4.0], [3.0, 5.0, 9.0])
    Line(slope=2.0, error=0.0, offset=1.0)
    """
    size = len(x)
    mean_x, mean_y = sum(x) / size, sum(y) / size
    square = sum((each - mean_x) ** 2 for each in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / square
    offset = mean_y - slope * mean_x
    rest = sum((b - offset - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    return Line(slope, math.sqrt(rest / (size - 2) / square), offset)


def _power(rows: Rows, against: str) -> Line:
    """The line through the logarithms: its slope is the exponent."""
    x, y = _points(rows, against)
    return fitted([*map(math.log, x)], [*map(math.log, y)])


def _points(rows: Rows, against: str) -> tuple[list[float], list[float]]:
    """Edges or hops, and milliseconds of the fastest repeat."""
    return column(rows, _AXES[against], against=against), column(rows, "fastest ms", against=against)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _clock_name(device: torch.device) -> str:
    return _name(device) if device.type == "cuda" else "one thread of the CPU, in CPU time"


def draw_complexity(rows: Rows, caption: str) -> Figure:
    """Time against edges and against hops, with the fitted lines."""
    figure, (left, right) = new_figure(2, 2.4, caption)
    power, line = _power(rows, "edges"), fitted(*_points(rows, "hops"))
    x, hops = _points(rows, "edges")[0], _points(rows, "hops")[0]
    left.plot(
        x,
        [math.exp(power.offset) * value**power.slope for value in x],
        color=GREY,
        linewidth=1,
        label=f"exponent {power.slope:.2f} ± {power.error:.2f}",
    )
    label = f"{line.slope:.3g} ± {line.error:.2g} ms a hop"
    right.plot(hops, [line.offset + line.slope * K for K in hops], color=GREY, linewidth=1, label=label)
    for panel, against in ((left, "edges"), (right, "hops")):
        place, fastest = _points(rows, against)
        panel.plot(place, fastest, "o", color=BLUE, label="fastest")
        panel.plot(place, column(rows, "median ms", against=against), "_", color=ORANGE, markersize=8, label="median")
        panel.set(ylabel="ms, forward and backward")
        panel.legend()
    left.set(xscale="log", yscale="log", xlabel="edges")
    left.set_yticks([digit * 10.0**power for power in range(-2, 6) for digit in (1, 3)])
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("")
    left.set_ylim(0.7 * min(_points(rows, "edges")[1]), 1.5 * max(_points(rows, "edges")[1]))
    right.set(
        xlabel="hops K",
        xticks=range(0, int(max(hops)) + 1, max(1, int(max(hops)) // 8)),
        xlim=(0, None),
        ylim=(0, None),
    )
    return figure
