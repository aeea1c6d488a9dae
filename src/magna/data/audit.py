"""Audit of a graph before training: size, shape, labels, leakage, and a K that its distances suggest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magna.data.node_data import NodeData, undirected

# Distances from every node of the largest component up to this size; from this many random nodes of a larger one.
EXACT_NODES, SAMPLED_NODES = 20_000, 512
_SAMPLE_SEED = 0
_SOURCES_AT_ONCE = 512
_LARGEST_K = 10  # of the paper's search space
_SPLITS = ("train", "valid", "test")


def audit_nodes(data: NodeData) -> dict[str, Any]:
    """Report of numbers and texts, ready for JSON.

    >>> from magna.data.digits import load_digits
    >>> report = audit_nodes(load_digits())
    >>> report["components"]["count"], report["warnings"]
    (2, [])
    """
    report: dict[str, Any] = {"dataset": data.name, "notes": list(data.notes)}
    report["size"] = _size(data)
    report["edges"] = _edges(data.edge_index, data.edge_type, data.num_nodes)
    report["degree"] = _degrees(data)
    report["homophily"] = _homophily(data)
    report["components"], report["distance"] = _reach(data)
    report["classes"], report["splits"] = _classes(data), {split: len(data.split(split)) for split in _SPLITS}
    report["leakage"] = _leakage(data)
    report["suggested_K"] = _suggested_K(report["distance"]["mean"])
    report["warnings"] = _warnings(report)
    return report


def _size(data: NodeData) -> dict[str, Any]:
    return {
        "nodes": data.num_nodes,
        "edges": data.edge_index.size(1),
        "features": 0 if data.x is None else data.x.size(1),
        "classes": data.num_classes,
        "relations": data.num_relations,
        "labelled": int((data.y >= 0).sum()),
    }


def _edges(edge_index: Tensor, edge_type: Tensor | None, num_nodes: int) -> dict[str, Any]:
    source, target = edge_index
    one_way, back = (torch.unique(code) for code in (source * num_nodes + target, target * num_nodes + source))
    distinct = one_way
    if edge_type is not None and edge_type.numel():
        distinct = torch.unique((source * num_nodes + target) * (int(edge_type.max()) + 1) + edge_type)
    return {
        "self_loops": int((source == target).sum()),
        "duplicates": source.numel() - distinct.numel(),
        "undirected": torch.equal(one_way, back),
    }


def _degrees(data: NodeData) -> dict[str, float]:
    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    both = degree + torch.bincount(data.edge_index[0], minlength=data.num_nodes)
    return {
        "mean_in": float(degree.double().mean()),
        "median_in": float(degree.double().median()),
        "largest_in": int(degree.max()),
        "isolated": int((both == 0).sum()),
    }


def _homophily(data: NodeData) -> float | None:
    """Share of edges that join two nodes of one class, among edges between two labelled nodes."""
    source, target = data.y[data.edge_index[:, data.edge_index[0] != data.edge_index[1]]]
    known = (source >= 0) & (target >= 0)
    return float((source == target)[known].double().mean()) if known.any() else None


def _reach(data: NodeData) -> tuple[dict[str, Any], dict[str, Any]]:
    """Connected components, and the average distance inside the largest one; edges are taken in both directions."""
    source, target = data.edge_index
    edges = undirected(source, target, data.num_nodes)
    labels, sizes = torch.unique(_components(edges, data.num_nodes), return_inverse=True, return_counts=True)[1:]
    inside = (labels == sizes.argmax()).nonzero().squeeze(1)
    source, target = torch.searchsorted(inside, edges[:, torch.isin(edges[0], inside)]).numpy()
    starts = np.searchsorted(target, np.arange(len(inside)))  # edges are sorted by target
    exact = len(inside) <= EXACT_NODES
    sources = np.arange(len(inside))
    if not exact:
        sources = np.random.Generator(np.random.PCG64(_SAMPLE_SEED)).choice(sources, SAMPLED_NODES, replace=False)
    blocks = np.split(sources, range(_SOURCES_AT_ONCE, len(sources), _SOURCES_AT_ONCE))
    pairs = len(sources) * (len(inside) - 1)
    total = sum(_total_distance(source, starts, block) for block in blocks) if pairs else 0
    components = {"count": len(sizes), "largest": len(inside), "share_of_largest": len(inside) / data.num_nodes}
    return components, {
        "mean": total / pairs if pairs else None,
        "exact": exact,
        "sources": len(sources),
        "definition": "average shortest path length over pairs of the largest component",
    }


def _components(edges: Tensor, num_nodes: int) -> Tensor:
    """[N]: the smallest node of each node's component; edges have both directions."""
    smallest, before = torch.arange(num_nodes), None
    while before is None or not torch.equal(smallest, before):
        before = smallest
        smallest = smallest.scatter_reduce(0, smallest[edges[1]], smallest[edges[0]], "amin")  # joins two trees
        smallest = smallest[smallest]  # halves their depth
    return smallest


def _total_distance(neighbours: np.ndarray, starts: np.ndarray, sources: np.ndarray) -> int:
    """The sum of the distances from each source to every node of a connected graph: 64 searches share a word.

    The neighbours of node i are `neighbours[starts[i]:starts[i + 1]]`; each node has at least one.
    """
    words = np.zeros((len(starts), -(-len(sources) // 64)), dtype=np.uint64)
    number = np.arange(len(sources))
    words[sources, number // 64] = np.uint64(1) << (number % 64).astype(np.uint64)
    reached, frontier, total, hops = words, words, 0, 0
    while (arrived := int(np.bitwise_count(frontier).sum())) > 0:
        total += hops * arrived
        hops += 1
        frontier = np.bitwise_or.reduceat(frontier[neighbours], starts, axis=0) & ~reached
        reached = reached | frontier
    return total


def _classes(data: NodeData) -> list[dict[str, Any]]:
    """For each class, its nodes: all that are labelled, and those of each split."""
    groups = {"all": (data.y >= 0).nonzero().squeeze(1)} | {split: data.split(split) for split in _SPLITS}
    counts = {}
    for group, nodes in groups.items():
        labels = data.y[nodes]
        counts[group] = torch.bincount(labels[labels >= 0], minlength=data.num_classes).tolist()
    return [
        {"class": data.class_name(label), **{group: counts[group][label] for group in groups}}
        for label in range(data.num_classes)
    ]


def _leakage(data: NodeData) -> dict[str, Any]:
    """Nodes in two splits, and held-out nodes whose features are, bit for bit, those of a training node."""
    pairs = [("train", "valid"), ("train", "test"), ("valid", "test")]
    shared = {f"{one}_{other}": int(torch.isin(data.split(one), data.split(other)).sum()) for one, other in pairs}
    twice = {split: data.split(split).numel() - torch.unique(data.split(split)).numel() for split in _SPLITS}
    report: dict[str, Any] = {"shared_nodes": shared, "listed_twice": twice}
    if data.x is not None:
        # Rows of zeros have no information to leak.
        empty = bytes(data.x.element_size() * data.x.size(1))
        training = {row.tobytes() for row in data.x[data.train].numpy()} - {empty}
        report["same_features_as_training"] = {
            split: sum(row.tobytes() in training for row in data.x[data.split(split)].numpy())
            for split in ("valid", "test")
        }
    return report


def _suggested_K(distance: float | None) -> int:
    """Enough hops to cross the average distance, which is where the paper's Cora stops gaining (5.27 there, K = 6)."""
    return 1 if distance is None else min(max(math.ceil(distance), 1), _LARGEST_K)


def _warnings(report: dict[str, Any]) -> list[str]:
    """Faults to look at before a number is trusted."""
    leakage, degree, homophily = report["leakage"], report["degree"], report["homophily"]
    counts = {f"nodes in both {pair.replace('_', ' and ')}": n for pair, n in leakage["shared_nodes"].items()}
    counts |= {f"nodes that {split} lists more than once": n for split, n in leakage["listed_twice"].items()}
    same = leakage.get("same_features_as_training", {})
    counts |= {f"{split} nodes with exactly the features of a training node": n for split, n in same.items()}
    warnings = [f"{fault}: {count:,}" for fault, count in counts.items() if count]
    untrained = [row["class"] for row in report["classes"] if row["all"] and not row["train"]]
    if untrained and report["splits"]["train"]:
        warnings.append(f"no training node in class {', '.join(untrained)}")
    if report["edges"]["duplicates"]:
        warnings.append(f"edges that are listed more than once: {report['edges']['duplicates']:,}")
    if degree["isolated"]:
        warnings.append(f"nodes without an edge, known by their own features alone: {degree['isolated']:,}")
    if homophily is not None and homophily < 0.3:
        warnings.append(f"edges seldom join nodes of one class (homophily {homophily:.2f}): try a model without them")
    return warnings
