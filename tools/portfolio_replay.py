"""Replay of stored predictions: greedy choice of members, rules of averaging, and leave-one-graph-out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from magna.search.greedy import chosen_weights
from magna.search.judging import Judge

JUDGE = Judge("classes", "accuracy")
PEERS = ("peer-mlp", "peer-gcn", "peer-appnp", "peer-gat")
Stored = Mapping[str, Mapping[str, Tensor]]  # candidate → its predictions on one split of a graph


def load(out: Path) -> dict[tuple[str, str], Stored]:
    """Predictions of every graph and split, of those candidates that all of them have."""
    stored: dict[tuple[str, str], dict[str, Any]] = {}
    for file in sorted(out.glob("*/*/*.safetensors")):
        stored.setdefault((file.parts[-3], file.parts[-2]), {})[file.stem] = load_file(file)
    most = max(len(each) for each in stored.values())
    return {place: each for place, each in stored.items() if len(each) == most}


def accuracy(probabilities: Tensor, truth: Tensor) -> float:
    return float((probabilities.argmax(1) == truth).double().mean())


def together(each: Stored, members: Sequence[str], weigh: Callable[..., list[float]]) -> float:
    """Test accuracy of the members' average, weighed on validation."""
    truth = each[members[0]]["valid_y"]
    weights = weigh([each[member]["valid"] for member in members], truth)
    mean = sum(w * each[member]["test"] for w, member in zip(weights, members, strict=True))
    assert isinstance(mean, Tensor)
    return accuracy(mean, each[members[0]]["test_y"])


def single(valid: Sequence[Tensor], truth: Tensor) -> list[float]:
    scores = [JUDGE.rank(each, truth) for each in valid]
    best = scores.index(max(scores))
    return [float(index == best) for index in range(len(valid))]


def average(valid: Sequence[Tensor], truth: Tensor) -> list[float]:
    return chosen_weights(valid, truth, JUDGE)


RULES: dict[str, Callable[..., list[float]]] = {"single": single, "average": average}


def choose(stored: Mapping[tuple[str, str], Stored], pool: Sequence[str], most: int) -> list[str]:
    """Members by greedy steps, each the one that raises the mean test accuracy of the average most."""
    chosen: list[str] = []
    while len(chosen) < most:
        rest = [name for name in pool if name not in chosen]
        gains = {name: fmean(together(each, [*chosen, name], average) for each in stored.values()) for name in rest}
        best = max(rest, key=lambda name: gains[name])
        before = fmean(together(each, chosen, average) for each in stored.values()) if chosen else -math.inf
        if gains[best] <= before:
            break
        chosen.append(best)
    return [name for name in pool if name in chosen]


def replay(out: Path, most: int = 10) -> dict[str, Any]:
    """Leave-one-graph-out: the portfolio is chosen without a graph and tested on it, beside the peers."""
    stored = load(out)
    pool = [name for name in next(iter(stored.values())) if name not in PEERS]
    rows, graphs = [], sorted({graph for graph, _ in stored})
    for graph in graphs:
        others = {place: each for place, each in stored.items() if place[0] != graph}
        members = choose(others, pool, most)
        left_out = {place: each for place, each in stored.items() if place[0] == graph}
        row: dict[str, Any] = {"graph": graph, "splits": len(left_out), "members": members}
        for rule, weigh in RULES.items():
            row[rule] = fmean(together(each, members, weigh) for each in left_out.values())
        for peer in PEERS:
            row[peer] = fmean(accuracy(each[peer]["test"], each[peer]["test_y"]) for each in left_out.values())
        row["best peer"] = fmean(together(each, PEERS, single) for each in left_out.values())
        row["seconds"] = fmean(sum(float(each[name]["seconds"]) for name in members) for each in left_out.values())
        rows.append(row)
    names = (*RULES, *PEERS, "best peer")
    means = {name: fmean(row[name] for row in rows) for name in names}
    ranks = {name: fmean(1 + sum(row[other] > row[name] for other in names) for row in rows) for name in names}
    return {"rows": rows, "mean": means, "rank": ranks, "all": choose(stored, pool, most)}


if __name__ == "__main__":
    torch.set_num_threads(1)
