"""Find the portfolio for nodes: train every candidate on every training graph once, then choose by replay.

`python -m tools.portfolio store --out FOLDER` trains what FOLDER lacks, `replay` prints the leave-one-graph-out table.
Graphs are those of DATA/own-graphs, Cora, Citeseer, Pubmed, digits, and generated ones.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from magna.config.tables import NodeDataOptions
from magna.data import NodeData, load_node_data, with_random_split
from magna.data.node_data import undirected
from magna.errors import Diverged
from magna.search.facts import read_facts
from magna.search.members import Member, parse_members
from magna.tasks import NodeClassification
from magna.training.loop import fit

CANDIDATES = Path(__file__).with_name("portfolio_candidates.toml")
OWN = ("chameleon-filtered", "cora-ml", "photo", "actor", "blogcatalog", "tolokers")
PUBLIC = ("cora", "citeseer", "digits", "pubmed")
GENERATED = ("paths", "blocks", "heterophily", "no-signal")


def own_graph(file: Path, split: int) -> NodeData:
    """A graph of DATA/own-graphs with one of its splits."""
    stored = np.load(file)
    rows, columns = stored["features_shape"]
    x = np.zeros((rows, columns), dtype=np.float32)
    counts = np.diff(stored["features_indptr"])
    x[np.repeat(np.arange(rows), counts), stored["features_indices"]] = stored["features_data"]
    source, target = torch.from_numpy(stored["edges"].astype(np.int64))
    y, parts = torch.from_numpy(stored["labels"].astype(np.int64)), torch.from_numpy(stored["splits"][split])
    train, valid, test = ((parts == number).nonzero().squeeze(1) for number in range(3))
    edges = undirected(source, target, rows)
    return NodeData(file.stem, edges, y, int(y.max()) + 1, train, valid, test, x=torch.from_numpy(x))


def generated(kind: str, split: int) -> NodeData:
    """A graph of 2,000 nodes and 4 classes: long paths, dense blocks, edges between classes, or edges by chance."""
    draw = np.random.default_rng(split)
    size, classes = 2_000, 4
    y = draw.integers(classes, size=size)
    if kind == "paths":
        order = np.argsort(y, kind="stable")
        source, target = order[:-1], order[1:]
    else:
        degree = 30 if kind == "blocks" else 8
        source = draw.integers(size, size=size * degree // 2)
        wanted = {"blocks": y[source], "heterophily": (y[source] + 1) % classes, "no-signal": None}[kind]
        target = draw.integers(size, size=source.size)
        if wanted is not None:
            members = [np.flatnonzero(y == label) for label in range(classes)]
            chosen = np.array([draw.choice(members[label]) for label in wanted])
            target = np.where(draw.random(source.size) < 0.7, chosen, target)
    x = draw.normal(size=(size, 16)) + 0.6 * np.eye(16)[y]
    edges = undirected(torch.from_numpy(source), torch.from_numpy(target), size)
    empty = torch.tensor([], dtype=torch.int64)
    graph = NodeData(
        f"generated-{kind}", edges, torch.from_numpy(y), classes, empty, empty, empty, x=torch.tensor(x).float()
    )
    return _with_few_labels(graph, draw)


def _with_few_labels(data: NodeData, draw: np.random.Generator) -> NodeData:
    """20 training and 30 validation nodes a class, the rest for the test."""
    parts: list[list[int]] = [[], [], []]
    for label in range(data.num_classes):
        nodes = draw.permutation(np.flatnonzero(data.y.numpy() == label)).tolist()
        for part, chosen in zip(parts, (nodes[:20], nodes[20:50], nodes[50:]), strict=True):
            part += chosen
    train, valid, test = (torch.tensor(sorted(part)) for part in parts)
    return replace(data, train=train, valid=valid, test=test)


def graphs(folder: Path, splits: int) -> Iterator[tuple[str, int, NodeData]]:
    for split in range(splits):
        for kind in GENERATED:
            yield f"generated-{kind}", split, generated(kind, split)
        for name in (*OWN, *PUBLIC):
            if name in OWN:
                data = own_graph(folder / "own-graphs" / f"{name}.npz", split)
            else:
                data = load_node_data(NodeDataOptions(name=name), folder)
                data = data if split == 0 else with_random_split(data, split)
            yield name, split, data


def candidates() -> list[Member]:
    return parse_members(tomllib.loads(CANDIDATES.read_text(encoding="utf-8"))["members"])


def store(folder: Path, out: Path, splits: int) -> None:
    for name, split, data in graphs(folder, splits):
        facts, truth = read_facts(data), out / name / str(split)
        truth.mkdir(parents=True, exist_ok=True)
        tasks: dict[str, NodeClassification] = {}
        for member in candidates():
            target = truth / f"{member.name}.safetensors"
            if target.is_file():
                continue
            config = member.config(NodeDataOptions(name=name), facts.feature_kind, member.name, 0)
            scaling = member.scaling_for(facts.feature_kind)
            if scaling not in tasks:
                scaled = data.with_standardised_features() if scaling == "columns" else data
                tasks[scaling] = NodeClassification(scaled, config, torch.device("cpu"), ("train", "valid"))
            task, started = tasks[scaling], time.perf_counter()
            torch.manual_seed(0)
            model = task.make_model(config.model)
            try:
                fit(config, task, model, lambda epoch: None)
                probabilities = task.finite_scores(model).softmax(1)
            except (Diverged, ValueError):
                probabilities = torch.full((data.num_nodes, data.num_classes), 1 / data.num_classes)
            seconds = time.perf_counter() - started
            stored_parts = {"valid": probabilities[data.valid], "test": probabilities[data.test]}
            stored_parts |= {
                "valid_y": data.y[data.valid],
                "test_y": data.y[data.test],
                "seconds": torch.tensor([seconds]),
            }
            save_file({key: value.contiguous() for key, value in stored_parts.items()}, target)
            valid = float((stored_parts["valid"].argmax(1) == stored_parts["valid_y"]).double().mean())
            print(f"{name} {split} {member.name}: validation {valid:.3f}, {seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["store", "replay"])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("MAGNA_DATA_DIR", "data")))
    parser.add_argument("--out", type=Path, default=Path("runs/portfolio"))
    parser.add_argument("--splits", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.verb == "store":
        store(arguments.data, arguments.out, arguments.splits)
    else:
        from tools.portfolio_replay import replay

        print(json.dumps(replay(arguments.out), indent=1))


if __name__ == "__main__":
    main()
