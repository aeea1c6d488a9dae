"""One side of the speed comparison: time a task each time its name comes in on the standard input.

`python -m tools.speed_probe cpu|cuda` under the interpreter and with the PYTHONPATH of a side.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tools import sides
from tools.record_probe import command

# Epochs of one timing. On a GPU a step is captured once and takes well below a millisecond.
EPOCHS = {"cpu": {"cora": 8, "digits": 8, "families": 1}, "cuda": {"cora": 1000, "wn18rr": 8}}
PASSES = 8  # of the operator in one timing
OPERATOR = {"heads": 8, "width": 64, "K": 6}


def main(device: str) -> None:
    torch.set_num_threads(1)
    tasks: dict[str, Callable[[], float]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in tasks:
            kind, _, data = name.partition(" ")
            tasks[name] = operator(data) if kind == "operator" else epoch(data, device)
            tasks[name]()  # caches, pages and compiled kernels
        print(json.dumps(tasks[name]()), flush=True)


def epoch(recipe: str, device: str) -> Callable[[], float]:
    """Seconds of an epoch of a recipe, as its run reports them."""
    epochs = EPOCHS[device][recipe]

    def work() -> float:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            # On a GPU the captured step alone; on a CPU validation belongs to an epoch.
            settings = {"train.epochs": epochs, "train.patience": epochs}
            settings["train.eval_every"] = epochs if device == "cuda" else 1
            sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
            result = command("train", recipe, *sets, "--device", device, "--run-dir", str(run))
            return float(result["runs"][0]["seconds"]) / epochs

    return work


def operator(data: str) -> Callable[[], float]:
    """Seconds of a forward and backward pass of the attention diffusion on a public graph."""
    from magna import Graph, attention_diffusion, edge_softmax

    loaded = sides.imported("datasets.planetoid", "data.planetoid").load_planetoid(data)
    graph = Graph.from_edge_index(loaded.edge_index, loaded.num_nodes)
    chance = torch.Generator().manual_seed(0)
    heads, width = OPERATOR["heads"], OPERATOR["width"]
    x = torch.randn(graph.num_nodes, heads, width, generator=chance).requires_grad_()
    scores = torch.randn(graph.num_edges, heads, generator=chance).requires_grad_()

    def work() -> float:
        start = time.perf_counter()
        for _ in range(PASSES):
            out = attention_diffusion(x, edge_softmax(scores, graph), graph, K=OPERATOR["K"], alpha=0.1)
            torch.autograd.grad(out.sum(), (x, scores))
        return (time.perf_counter() - start) / PASSES

    return work


if __name__ == "__main__":
    main(sys.argv[1])
