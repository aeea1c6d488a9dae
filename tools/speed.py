"""The speed of this commit against that of the old one: `python -m tools.speed cpu|cuda`.

Both sides stay alive and are timed in turn, in pairs whose order alternates. The ratio new / old is the median over the
pairs, with its 95 % interval by order statistics. Start-up is the minimum of several processes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.record import ROOT, environment, old_side, storage

LIMIT = 1.03  # a task is no slower if the interval reaches this ratio
STARTS = {"magna --help": ["-m", "magna", "--help"], "import magna": ["-c", "import magna; magna.MAGNAConv"]}
TASKS = {
    "cpu": ("operator cora", "operator pubmed", "epoch cora", "epoch digits", "epoch families"),
    "cuda": ("epoch cora", "epoch wn18rr"),
}


class Ratio(NamedTuple):
    """Ratio of two times, with its 95 % interval."""

    median: float
    low: float
    high: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.speed", description=__doc__.partition("\n")[0])
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--old", type=Path, help="checkout of the old commit")
    parser.add_argument("--old-python", type=Path, help="interpreter of the old commit")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--only", nargs="+", help="only these tasks")
    options = parser.parse_args()
    sides = {"old": old_side(storage(), options.old, options.old_python), "new": (ROOT, Path(sys.executable))}
    slower = 0
    for task in options.only or TASKS[options.device]:
        times = paired(task, options.device, sides, options.pairs)
        ratio = compared(times["new"], times["old"])
        slower += ratio.low > LIMIT
        old, new = (statistics.median(times[side]) * 1e3 for side in ("old", "new"))
        verdict = "SLOWER" if ratio.low > LIMIT else "ok"
        print(
            f"{verdict:6}  {task:16} {old:9.2f} ms → {new:9.2f} ms   ratio {ratio.median:.3f} "
            f"[{ratio.low:.3f}, {ratio.high:.3f}], {options.pairs} pairs",
            flush=True,
        )
    if options.device == "cpu" and options.only is None:
        for name, arguments in STARTS.items():
            old, new = started(arguments, sides)
            slower += new > LIMIT * old
            verdict = "SLOWER" if new > LIMIT * old else "ok"
            print(f"{verdict:6}  {name:16} {old:9.3f} s  → {new:9.3f} s    ratio {new / old:.3f}, minimum of 20")
    return 1 if slower else 0


def paired(task: str, device: str, sides: dict[str, tuple[Path, Path]], pairs: int) -> dict[str, list[float]]:
    """Seconds of a task on both sides, in turn."""
    workers = {
        side: subprocess.Popen(
            [python, "-m", "tools.speed_probe", device],
            cwd=ROOT,
            env=environment(root),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for side, (root, python) in sides.items()
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    try:
        for number in range(pairs + 1):
            for side in sorted(sides, reverse=bool(number % 2)):
                worker = workers[side]
                assert worker.stdin is not None and worker.stdout is not None
                worker.stdin.write(task + "\n")
                worker.stdin.flush()
                if not (answer := worker.stdout.readline()):
                    raise SystemExit(f"{side}: {task} failed; try it with python -m tools.speed_probe {device}")
                if number:  # the first pair loads the data
                    times[side].append(json.loads(answer))
    finally:
        for worker in workers.values():
            worker.kill()
    return times


def compared(new: Sequence[float], old: Sequence[float]) -> Ratio:
    """Median of the ratios of pairs, with the order statistics that hold it in 95 of 100 cases.

    >>> compared([2.0] * 30, [1.0] * 30)
    Ratio(median=2.0, low=2.0, high=2.0)
    """
    ratios = sorted(a / b for a, b in zip(new, old, strict=True))
    margin = 1.96 * math.sqrt(len(ratios)) / 2
    low = max(0, math.floor(len(ratios) / 2 - margin))
    high = min(len(ratios) - 1, math.ceil(len(ratios) / 2 + margin) - 1)
    return Ratio(statistics.median(ratios), ratios[low], ratios[high])


def started(arguments: Sequence[str], sides: dict[str, tuple[Path, Path]], count: int = 20) -> list[float]:
    """Shortest time to start, old and new."""
    shortest = dict.fromkeys(sides, math.inf)
    for _ in range(count):
        for side, (root, python) in sides.items():
            begin = time.perf_counter()
            subprocess.run([python, *arguments], env=environment(root), cwd=os.sep, check=True, capture_output=True)
            shortest[side] = min(shortest[side], time.perf_counter() - begin)
    return list(shortest.values())


if __name__ == "__main__":
    sys.exit(main())
