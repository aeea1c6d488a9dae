"""Facts of a graph that the portfolio reads: the kind of its features, sizes, and how alike neighbours are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from magna.config.path_kind import SPLITS
from magna.data import NodeData
from magna.data.node_data import UNLABELLED

FeatureKind = Literal["none", "one-hot", "counts", "dense", "mixed"]
_SPARSE = 0.5  # share of entries that are not zero, below which features count as sparse
FEW_LABELS = 30  # of validation, a class
FOLDS = 3  # of the training nodes, where validation has few labels


@dataclass(frozen=True)
class Facts:
    """Facts of a graph before training; no name, path or exact count decides anything."""

    nodes: int
    edges: int
    features: int
    feature_kind: FeatureKind
    classes: int
    smallest_class: int  # training nodes of the rarest class
    largest_share: float  # of the training nodes, in one class
    homophily: float | None  # share of edges inside a class, of edges between training nodes; None: too few
    degree: float
    splits: dict[str, int]

    @property
    def divides_training(self) -> bool:
        """True where validation has fewer than `FEW_LABELS` labels a class and each fold has one: both judge."""
        few = self.splits["valid"] < FEW_LABELS * max(2, self.classes)
        return few and self.smallest_class >= FOLDS

    def lines(self) -> list[str]:
        """Sentences on the data, and what follows from them."""
        kind = {
            "none": "no features: degrees and distances stand in for them",
            "one-hot": f"{self.features} features of zeros and ones, taken as they are and divided by their row sums",
            "counts": f"{self.features} features of counts, taken as they are and divided by their row sums",
            "dense": f"{self.features} dense features, scaled to mean 0 and deviation 1, and taken as they are",
            "mixed": f"{self.features} features of several kinds, scaled to mean 0 and deviation 1, and as they are",
        }[self.feature_kind]
        sizes = ", ".join(f"{count:,} {name}" for name, count in self.splits.items())
        classes = f", {self.classes} classes" if self.classes else ""
        lines = [f"{self.nodes:,} nodes with {self.degree:.1f} edges each{classes}; {sizes}", kind]
        if self.homophily is not None:
            alike = "mostly join" if self.homophily >= 0.5 else "seldom join"
            follows = "" if self.homophily >= 0.5 else ": members that keep a node's own features apart come early"
            lines.append(f"edges {alike} nodes of one class ({self.homophily:.0%} of those between labels){follows}")
        if self.divides_training:
            lines.append("few validation labels: the training nodes are divided again to rank the members")
        if self.largest_share > 0.6:
            lines.append(
                f"{self.largest_share:.0%} of the training labels are one class: look at balanced accuracy too"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_facts(data: NodeData) -> Facts:
    """Facts of a graph, from its training labels alone; of several labels and numbers only sizes are known."""
    of_classes = data.target == "classes"
    labels = data.y[data.train] if of_classes else torch.full((data.train.numel(),), UNLABELLED)
    counts = torch.bincount(labels, minlength=data.num_classes) if of_classes else torch.zeros(1)
    known = torch.full((data.num_nodes,), UNLABELLED)
    known[data.train] = labels
    source, target = data.edge_index
    both = (known[source] >= 0) & (known[target] >= 0) & (source != target)
    enough = int(both.sum()) >= 20
    alike = float((known[source] == known[target])[both].double().mean()) if enough else None
    return Facts(
        nodes=data.num_nodes,
        edges=data.edge_index.size(1),
        features=0 if data.x is None else data.x.size(1),
        feature_kind=feature_kind(data.x),
        classes=data.num_classes if of_classes else 0,
        smallest_class=int(counts.min()) if counts.numel() else 0,
        largest_share=float(counts.max() / counts.sum()) if counts.sum() else 0.0,
        homophily=alike,
        degree=data.edge_index.size(1) / max(1, data.num_nodes),
        splits={split: data.split(split).numel() for split in SPLITS},
    )


def feature_kind(x: Tensor | None) -> FeatureKind:
    """The kind of a feature matrix by its values.

    >>> feature_kind(torch.eye(4)), feature_kind(torch.randn(8, 3)), feature_kind(None)
    ('one-hot', 'dense', 'none')
    """
    if x is None or x.size(1) == 0:
        return "none"
    binary = ((x == 0) | (x == 1)).all(0)
    if binary.all():
        return "one-hot"
    if (x >= 0).all() and float((x[:, ~binary] != 0).double().mean()) < _SPARSE:
        return "counts"
    return "mixed" if binary.double().mean() > 0.2 else "dense"
