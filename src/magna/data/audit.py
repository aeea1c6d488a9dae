"""Audit of a graph before training: size, shape, labels, leakage, and a K that its distances suggest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magna.config.path_kind import SPLITS
from magna.data.node_data import NodeData, undirected

# Distances from every node of the largest component up to this size; from this many random nodes of a larger one.
EXACT_NODES, SAMPLED_NODES = 20_000, 512
_SAMPLE_SEED = 0
_SOURCES_AT_ONCE = 512
_LARGEST_K = 10  # of the paper's search space


def audit_nodes(data: NodeData) -> dict[str, Any]:
    """Report of numbers and texts, ready for JSON.

    >>> from magna.data.digits import load_digits
    >>> report = audit_nodes(load_digits())
    >>> report["components"]["count"], report["warnings"]
    (2, [])
    """
    components, distance = reach(data)
    report = {
        "dataset": data.name,
        "notes": list(data.notes),
        "target": data.target,
        "size": {
            "nodes": data.num_nodes,
            "edges": data.edge_index.size(1),
            "features": 0 if data.x is None else data.x.size(1),
            "classes": data.num_classes,
            "relations": data.num_relations,
            "labelled": int(data.labelled.sum()),
        },
        **_edges(data),
        "components": components,
        "distance": distance,
        "classes": _classes(data),
        "splits": {split: len(data.split(split)) for split in SPLITS},
        "leakage": _leakage(data),
        # Enough hops to cross the average distance, which is where the paper's Cora stops gaining (5.27, K = 6).
        "suggested_K": min(max(math.ceil(distance["mean"] or 0), 1), _LARGEST_K),
    }
    return report | {"warnings": _warnings(report)}


def _edges(data: NodeData) -> dict[str, Any]:
    """Counts of edges and of their ends; homophily is the share of edges in a class, among those of labelled nodes.

    Several labels and numbers have no homophily.
    """
    (source, target), size = data.edge_index, data.num_nodes
    one_way, back = (torch.unique(code) for code in (source * size + target, target * size + source))
    distinct = one_way
    if data.edge_type is not None and data.edge_type.numel():
        distinct = torch.unique((source * size + target) * (int(data.edge_type.max()) + 1) + data.edge_type)
    degree_out, degree = (torch.bincount(ends, minlength=size) for ends in (source, target))
    ends = data.edge_index[:, source != target]
    ends = ends[:, data.labelled[ends].all(0)] if data.target == "classes" else ends[:, :0]
    one, other = data.y[ends]
    return {
        "edges": {
            "self_loops": int((source == target).sum()),
            "duplicates": source.numel() - distinct.numel(),
            "undirected": torch.equal(one_way, back),
        },
        "degree": {
            "mean_in": float(degree.double().mean()),
            "median_in": float(degree.double().median()),
            "largest_in": int(degree.max()),
            "isolated": int((degree + degree_out == 0).sum()),
        },
        "homophily": float((one == other).double().mean()) if one.numel() else None,
    }


def reach(data: NodeData) -> tuple[dict[str, Any], dict[str, Any]]:
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
    """For each class or label, its nodes: all that have it, and those of each split; nothing for numbers."""
    if data.target == "number":
        return []
    labels = {"all": data.y} | {split: data.y[data.split(split)] for split in SPLITS}
    if data.target == "labels":
        counts = {group: (y == 1).sum(0).tolist() for group, y in labels.items()}
    else:
        counts = {group: torch.bincount(y[y >= 0], minlength=data.num_classes).tolist() for group, y in labels.items()}
    return [
        {"class": data.class_name(label), **{group: counts[group][label] for group in counts}}
        for label in range(data.num_classes)
    ]


def shared(splits: dict[str, Tensor]) -> dict[str, int]:
    """Nodes or triples, as numbers, that two splits have in common."""
    pairs = (("train", "valid"), ("train", "test"), ("valid", "test"))
    return {f"{one}_{other}": int(torch.isin(splits[one], splits[other]).sum()) for one, other in pairs}


def _leakage(data: NodeData) -> dict[str, Any]:
    """Nodes in two splits, and held-out nodes whose features are, bit for bit, those of a training node."""
    nodes = {split: data.split(split) for split in SPLITS}
    twice = {split: listed.numel() - torch.unique(listed).numel() for split, listed in nodes.items()}
    report: dict[str, Any] = {"shared_nodes": shared(nodes), "listed_twice": twice}
    if data.x is not None:
        rows = {split: [row.tobytes() for row in data.x[nodes[split]].numpy()] for split in SPLITS}
        # Rows of zeros have no information to leak.
        training = set(rows["train"]) - {bytes(data.x.element_size() * data.x.size(1))}
        same = {split: sum(row in training for row in rows[split]) for split in ("valid", "test")}
        report["same_features_as_training"] = same
    return report


def _warnings(report: dict[str, Any]) -> list[str]:
    """Faults to look at before a number is trusted."""
    leakage, homophily = report["leakage"], report["homophily"]
    counts = {f"nodes in both {pair.replace('_', ' and ')}": n for pair, n in leakage["shared_nodes"].items()}
    counts |= {f"nodes that {split} lists more than once": n for split, n in leakage["listed_twice"].items()}
    same = leakage.get("same_features_as_training", {})
    counts |= {f"{split} nodes with exactly the features of a training node": n for split, n in same.items()}
    counts["edges that are listed more than once"] = report["edges"]["duplicates"]
    counts["nodes without an edge, known by their own features alone"] = report["degree"]["isolated"]
    warnings = [f"{fault}: {count:,}" for fault, count in counts.items() if count]
    untrained = [row["class"] for row in report["classes"] if row["all"] and not row["train"]]
    if untrained and report["splits"]["train"]:
        warnings.append(f"no training node in class {', '.join(untrained)}")
    if homophily is not None and homophily < 0.3:
        warnings.append(f"edges seldom join nodes of one class (homophily {homophily:.2f}): try a model without them")
    return warnings
