"""`NodeData`: one graph with labels on its nodes and a split; `Schema`: the names of its columns and classes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from magna.data.scaling import column_moments, columns_scaled, rows_normalised
from magna.data.tables import nfc
from magna.errors import ArgumentError, DataError, listed, similar

UNLABELLED = -1


@dataclass(frozen=True)
class Schema:
    """Names that another graph shares with the one that a model was trained on; None: the data has no such names.

    `relation_names` are the edge types as the data has them; inverse types and self-loops come after them.
    Standardised features are (raw - shift) · scale.

    >>> Schema.from_dict(Schema(feature_names=("age",)).to_dict())
    Schema(feature_names=('age',), class_names=None, relation_names=None, feature_shift=None, feature_scale=None)
    """

    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    relation_names: tuple[str, ...] | None = None
    feature_shift: tuple[float, ...] | None = None
    feature_scale: tuple[float, ...] | None = None

    @property
    def names(self) -> tuple[tuple[str, ...] | None, ...]:
        """Names of the columns of a model."""
        return self.feature_names, self.class_names, self.relation_names

    def to_dict(self) -> dict[str, Any]:
        return {name: None if value is None else list(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Schema:
        return Schema(**{name: None if value is None else tuple(value) for name, value in values.items()})


@dataclass(frozen=True, eq=False)
class NodeData:
    """A graph for node classification.

    Shapes: edge_index [2, E], row 0 the source; x [N, C]; y [N], -1 for a node without a label; edge_type [E], None for
    edges without types; the three splits hold node indices. `notes` are sentences for the user.
    """

    name: str
    edge_index: Tensor
    y: Tensor
    num_classes: int
    train: Tensor
    valid: Tensor
    test: Tensor
    x: Tensor | None = None
    edge_type: Tensor | None = None
    num_relations: int | None = None
    node_ids: tuple[str, ...] | None = None
    schema: Schema = Schema()
    notes: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        return self.y.numel()

    def split(self, name: str) -> Tensor:
        """The node indices of `train`, `valid` or `test`."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    def fingerprint(self) -> str:
        """Hash of nodes, labels and edges, in their order; not of features and splits."""
        return _hash("\n".join(self.node_ids or ()), self.y, self.edge_index, self.edge_type)

    def split_fingerprint(self) -> str:
        """Hash of the splits."""
        parts = self.train, self.valid, self.test
        return _hash(" ".join(str(part.numel()) for part in parts), *parts)

    def feature_fingerprint(self) -> str | None:
        """Hash of the features; None for standardised ones, which the schema describes."""
        return None if self.schema.feature_shift is not None else _hash("", self.x)

    def id_of(self, node: int) -> str:
        """The user's id of a node, or its number."""
        return self.node_ids[node] if self.node_ids is not None else str(node)

    def class_name(self, label: int) -> str:
        """The user's name of a class, or its number."""
        names = self.schema.class_names
        return names[label] if names is not None else str(label)

    def index_of(self, ids: Sequence[str]) -> Tensor:
        """The nodes that have these ids."""
        known = self.node_ids or map(str, range(self.num_nodes))
        at = {name: position for position, name in enumerate(known)}
        for name in ids:
            if nfc(name) not in at:
                allowed = f"0 to {self.num_nodes - 1}"
                if self.node_ids:
                    allowed = f"an id of {self.name}, such as {listed(similar(name, at) or self.node_ids[:3])}"
                raise ArgumentError("node", name, allowed)
        return torch.tensor([at[nfc(name)] for name in ids], dtype=torch.int64)

    def with_row_normalised_features(self) -> NodeData:
        """Each feature row divided by its sum; rows of zeros stay."""
        assert self.x is not None
        return replace(self, x=rows_normalised(self.x))

    def with_standardised_features(self) -> NodeData:
        """Each feature with mean 0 and deviation 1 over all nodes, or as the schema says; constant ones become 0."""
        if self.x is None:
            return self
        schema = self.schema
        if schema.feature_shift is None or schema.feature_scale is None:
            mean, inverse = column_moments(self.x)
            schema = replace(schema, feature_shift=tuple(mean.tolist()), feature_scale=tuple(inverse.tolist()))
        shift, scale = (
            torch.tensor(part, dtype=torch.float64) for part in (schema.feature_shift, schema.feature_scale)
        )
        if self.x.size(1) != len(shift):
            raise DataError(self.name, f"it has {self.x.size(1)} features", allowed=f"{len(shift)}, as in training")
        return replace(self, x=columns_scaled(self.x, shift, scale), schema=schema)

    def with_self_loops(self) -> NodeData:
        """One loop for every node, which replaces its loops; among typed edges, loops are a relation of their own."""
        proper = self.edge_index[0] != self.edge_index[1]
        loop = torch.arange(self.num_nodes)
        edges = torch.cat([self.edge_index[:, proper], torch.stack([loop, loop])], dim=1)
        order = _by_target(edges)
        if self.edge_type is None:
            return replace(self, edge_index=edges[:, order])
        assert self.num_relations is not None
        types = torch.cat([self.edge_type[proper], torch.full_like(loop, self.num_relations)])
        return replace(self, edge_index=edges[:, order], edge_type=types[order], num_relations=self.num_relations + 1)

    def with_both_directions(self) -> NodeData:
        """Both directions of every edge, each once, without self-loops; the inverse of a type is another type."""
        source, target = self.edge_index
        if self.edge_type is None:
            return replace(self, edge_index=undirected(source, target, self.num_nodes))
        assert self.num_relations is not None
        proper = source != target
        source, target, kind = source[proper], target[proper], self.edge_type[proper]
        relations = 2 * self.num_relations
        forward = (target * self.num_nodes + source) * relations + kind
        backward = (source * self.num_nodes + target) * relations + kind + self.num_relations
        code = torch.unique(torch.cat([forward, backward]))
        ends, kind = code // relations, code % relations
        edge_index = torch.stack([ends % self.num_nodes, ends // self.num_nodes])
        return replace(self, edge_index=edge_index, edge_type=kind, num_relations=relations)


def _hash(text: str, *parts: Tensor | None) -> str:
    content = hashlib.sha256(text.encode())
    for part in parts:
        if part is not None:
            content.update(part.contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def undirected(source: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """Both directions of every edge, each once, without self-loops, sorted by target.

    >>> undirected(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0, 2, 1]), 3).tolist()
    [[1, 0, 2, 1], [0, 1, 1, 2]]
    """
    proper = source != target
    source, target = source[proper], target[proper]
    code = torch.unique(torch.cat([target * num_nodes + source, source * num_nodes + target]))
    return torch.stack([code % num_nodes, code // num_nodes])


def check_finite(name: str, x: Tensor) -> None:
    """Refuse features that are not finite."""
    bad = (~torch.isfinite(x)).nonzero()
    if bad.numel():
        row, column = bad[0].tolist()
        fault = f"row {row}, feature {column} is {float(x[row, column])}"
        raise DataError(name, fault, allowed="finite numbers")


def _by_target(edge_index: Tensor) -> Tensor:
    # Sorted by target, the edges need no permutation on their way into the operators.
    order = torch.argsort(edge_index[0], stable=True)
    return order[torch.argsort(edge_index[1][order], stable=True)]
