"""Measure the kernels at length, and record the numbers.

    python benchmarks/run.py kernels                     all graphs, backends and precisions
    python benchmarks/run.py scaling                     time over edges and hops, with fitted exponents
    python benchmarks/run.py memory                      peak memory and time over hops
    python benchmarks/run.py epoch                       an epoch of the paper's Cora model, and PyG's
    python benchmarks/run.py step                        a training step on a knowledge graph
    python benchmarks/run.py switch-off                  a training step without each of the GPU pieces
    python benchmarks/run.py loss                        the loss over all entities, time and memory
    python benchmarks/run.py ranking                     the ranks of whole test sets
    python benchmarks/run.py table                       write the records into docs/reference/benchmarks.md

The device is the GPU if there is one. Graphs are read from --data-dir or MAGNA_DATA_DIR; a missing graph is replaced
by a synthetic one of the same size, and marked.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import knowledge
import ledger
import studies
import switch_off
import tables
import torch

from magna.bench.graphs import SHAPES
from magna.bench.peers import PEERS
from magna.training.run_folder import pick_device


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.study == "table":
        tables.update()
        return
    device = torch.device(pick_device(arguments.device))
    stamped = ledger.stamp(device, arguments.commit)
    out, data_dir = arguments.out, getattr(arguments, "data_dir", None)
    if arguments.study == "kernels":
        studies.kernels(arguments.graph, arguments.dtype, device, data_dir, out, stamped, arguments.backend)
    elif arguments.study == "scaling":
        studies.scaling(device, out, stamped)
    elif arguments.study == "epoch":
        studies.epochs(arguments.recipe, arguments.set, device, data_dir, out, stamped)
    elif arguments.study == "step":
        knowledge.steps(arguments.recipe, device, data_dir, out, stamped)
    elif arguments.study == "switch-off":
        switch_off.switch_off(device, data_dir, out, stamped)
    elif arguments.study == "loss":
        knowledge.loss(arguments.graph, device, out, stamped)
    elif arguments.study == "ranking":
        knowledge.ranking(arguments.graph, device, data_dir, out, stamped)
    else:
        studies.memory(device, out, stamped)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="study", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    shared.add_argument("--out", type=Path, default=ledger.RECORDS, help="folder for the records")
    shared.add_argument("--commit", help="measured commit, if git cannot tell it")
    data = argparse.ArgumentParser(add_help=False)
    data.add_argument("--data-dir", help="folder with the data sets")

    kernels = commands.add_parser("kernels", parents=[shared, data])
    kernels.add_argument("--graph", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    kernels.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    kernels.add_argument("--backend", nargs="+", choices=list(PEERS), help="only these")
    commands.add_parser("scaling", parents=[shared])
    epoch = commands.add_parser("epoch", parents=[shared, data])
    epoch.add_argument("--recipe", default="cora-paper")
    epoch.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings other than the recipe's")
    commands.add_parser("memory", parents=[shared])
    step = commands.add_parser("step", parents=[shared, data])
    step.add_argument("--recipe", nargs="+", default=list(knowledge.ENTITIES))
    commands.add_parser("switch-off", parents=[shared, data])
    for name, parents in (("loss", [shared]), ("ranking", [shared, data])):
        study = commands.add_parser(name, parents=parents)
        study.add_argument("--graph", nargs="+", default=list(knowledge.ENTITIES), choices=list(knowledge.ENTITIES))
    commands.add_parser("table", help="write the tables of docs/reference/benchmarks.md")
    return parser


if __name__ == "__main__":
    main()
