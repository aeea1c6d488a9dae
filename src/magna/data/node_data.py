"""`NodeData`: one graph with labels on its nodes and a split; `Schema`: the names of its columns and classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from magna.data.scaling import MOST_DEVIATIONS, column_moments, columns_scaled, rows_normalised
from magna.data.schema import Schema as Schema
from magna.data.schema import Target as Target
from magna.data.text import nfc
from magna.errors import ArgumentError, DataError, listed, similar

UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class NodeData:
    """A graph whose nodes have labels: a class, several labels, or a number.

    Under the target "classes", y is int64 [N], -1 for a node without a label; under "labels" float32 [N, L] of 0, 1 and
    NaN (unknown); under "number" float32 [N], NaN for a node without a label. `num_classes` is the number of outputs of
    a model.

    Shapes: edge_index [2, E], row 0 the source; x [N, C]; edge_type [E]; edge_weight [E], above 0; edge_attr [E, D];
    None for what the edges do not have. The three splits hold node indices. `notes` are sentences for the user.
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
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None
    target: Target = "classes"
    node_ids: tuple[str, ...] | None = None
    schema: Schema = field(default_factory=Schema)
    notes: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        return self.y.size(0)

    @property
    def labelled(self) -> Tensor:
        """[N]: true for a node with a label, of several labels for one that is known."""
        if self.target == "classes":
            return self.y >= 0
        return (~self.y.isnan()).view(self.num_nodes, -1).any(1)

    def split(self, name: str) -> Tensor:
        """The node indices of `train`, `valid` or `test`."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    def fingerprint(self) -> str:
        """Hash of nodes, labels and edges, in their order; not of features and splits."""
        edges = self.edge_index, self.edge_type, self.edge_weight, self.edge_attr
        return _hash("\n".join(self.node_ids or ()), self.y, *edges)

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

    def without_absent_edges(self) -> NodeData:
        """The edges of a weight above 0; a note says how many are left out."""
        if self.edge_weight is None or (present := self.edge_weight > 0).all():
            return self
        parts = {"edge_type": self.edge_type, "edge_weight": self.edge_weight, "edge_attr": self.edge_attr}
        chosen: dict[str, Any] = {name: part[present] for name, part in parts.items() if part is not None}
        note = f"{int((~present).sum()):,} edges of weight 0 are no edges and were left out"
        return replace(self, edge_index=self.edge_index[:, present], **chosen, notes=(*self.notes, note))

    def with_row_normalised_features(self) -> NodeData:
        """Each feature row divided by its sum; rows of zeros stay."""
        assert self.x is not None
        return replace(self, x=rows_normalised(self.x))

    def with_standardised_features(self) -> NodeData:
        """Each feature of nodes and edges with mean 0 and deviation 1 over all of them, or as the schema says.

        Constant features become 0, and values are cut at 20 deviations, which a note says.
        """
        data = self
        if data.x is not None:
            scale = _scale(self.name, data.x, data.schema.feature_shift, data.schema.feature_scale)
            schema = replace(data.schema, feature_shift=scale[0], feature_scale=scale[1])
            notes = (*data.notes, *_cut(columns_scaled(data.x, *_as_tensors(scale), cut=False), schema.feature_names))
            data = replace(data, x=columns_scaled(data.x, *_as_tensors(scale)), schema=schema, notes=notes)
        if data.edge_attr is not None:
            scale = _scale(self.name, data.edge_attr, data.schema.edge_shift, data.schema.edge_scale)
            schema = replace(data.schema, edge_shift=scale[0], edge_scale=scale[1])
            data = replace(data, edge_attr=columns_scaled(data.edge_attr, *_as_tensors(scale)), schema=schema)
        return data

    def with_self_loops(self) -> NodeData:
        """One loop for every node, which replaces its loops; among typed edges, loops are a relation of their own.

        A loop has weight 1 and attributes 0.
        """
        proper = self.edge_index[0] != self.edge_index[1]
        loop = torch.arange(self.num_nodes)
        edges = torch.cat([self.edge_index[:, proper], torch.stack([loop, loop])], dim=1)
        order = _by_target(edges)
        parts: dict[str, Any] = {"edge_index": edges[:, order]}
        if self.edge_weight is not None:
            parts["edge_weight"] = torch.cat([self.edge_weight[proper], torch.ones(len(loop))])[order]
        if self.edge_attr is not None:
            zeros = torch.zeros(len(loop), self.edge_attr.size(1))
            parts["edge_attr"] = torch.cat([self.edge_attr[proper], zeros])[order]
        if self.edge_type is not None:
            assert self.num_relations is not None
            types = torch.cat([self.edge_type[proper], torch.full_like(loop, self.num_relations)])
            parts |= {"edge_type": types[order], "num_relations": self.num_relations + 1}
        return replace(self, **parts)

    def without_types(self) -> NodeData:
        """The edges without types and attributes, each once; the weights of edges that become one add up."""
        if self.edge_type is None:
            return replace(self, edge_attr=None)
        edges, place = torch.unique(self.edge_index, dim=1, return_inverse=True)
        order = _by_target(edges)
        weight = None if self.edge_weight is None else _summed(self.edge_weight, place, edges.size(1)).float()[order]
        parts: dict[str, Any] = {"edge_type": None, "num_relations": None, "edge_attr": None, "edge_weight": weight}
        return replace(self, edge_index=edges[:, order], **parts)

    def with_both_directions(self) -> NodeData:
        """Both directions of every edge, each once, without self-loops; the inverse of a type is another type.

        A repeated edge has the sum of the weights and the mean of the attributes. Two opposite edges without types are
        one edge as well, whose weights add up, unless every edge is listed in both directions with the same weight.
        """
        source, target = self.edge_index
        proper = source != target
        source, target, relations = source[proper], target[proper], 1
        if self.edge_type is None:
            forward, backward = target * self.num_nodes + source, source * self.num_nodes + target
        else:
            assert self.num_relations is not None
            kind, relations = self.edge_type[proper], 2 * self.num_relations
            forward = (target * self.num_nodes + source) * relations + kind
            backward = (source * self.num_nodes + target) * relations + kind + self.num_relations
        code, place = torch.unique(torch.cat([forward, backward]), return_inverse=True)
        ends, kind = code // relations, code % relations
        parts: dict[str, Any] = {"edge_index": torch.stack([ends % self.num_nodes, ends // self.num_nodes])}
        if self.edge_type is not None:
            parts |= {"edge_type": kind, "num_relations": relations}
        if self.edge_weight is not None:
            halves = place[: len(source)], place[len(source) :]
            one_way, back = (_summed(self.edge_weight[proper], half, len(code)) for half in halves)
            symmetric = torch.allclose(one_way, back)
            parts["edge_weight"] = (one_way if symmetric else one_way + back).float()
        if self.edge_attr is not None:
            counts = torch.bincount(place, minlength=len(code)).double()
            total = _summed(self.edge_attr[proper].repeat(2, 1), place, len(code))
            parts["edge_attr"] = (total / counts[:, None]).float()
        return replace(self, **parts)


def _hash(text: str, *parts: Tensor | None) -> str:
    content = hashlib.sha256(text.encode())
    for part in parts:
        if part is not None:
            content.update(part.contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


_Numbers = tuple[float, ...]


def _as_tensors(scale: tuple[_Numbers, _Numbers]) -> tuple[Tensor, Tensor]:
    return torch.tensor(scale[0], dtype=torch.float64), torch.tensor(scale[1], dtype=torch.float64)


def _scale(name: str, x: Tensor, shift: _Numbers | None, scale: _Numbers | None) -> tuple[_Numbers, _Numbers]:
    """Shift and scale of a training, or those of these features."""
    if shift is None or scale is None:
        mean, inverse = column_moments(x)
        return tuple(mean.tolist()), tuple(inverse.tolist())
    if x.size(1) != len(shift):
        raise DataError(name, f"it has {x.size(1)} features", allowed=f"{len(shift)}, as in training")
    return shift, scale


def _cut(scaled: Tensor, names: Sequence[str] | None) -> tuple[str, ...]:
    """A note on standardised values that are cut."""
    far = scaled.abs() > MOST_DEVIATIONS
    if not (count := int(far.sum())):
        return ()
    columns = far.any(0).nonzero().squeeze(1).tolist()
    said = listed(names[column] if names else column for column in columns)
    return (f"{count:,} values are more than {MOST_DEVIATIONS} deviations from their mean and were cut there: {said}",)


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


def _summed(values: Tensor, place: Tensor, size: int) -> Tensor:
    """The sum of the values at each place, in double precision."""
    return values.new_zeros(size, *values.shape[1:], dtype=torch.float64).index_add_(0, place, values.double())


def _by_target(edge_index: Tensor) -> Tensor:
    # Sorted by target, the edges need no permutation on their way into the operators.
    order = torch.argsort(edge_index[0], stable=True)
    return order[torch.argsort(edge_index[1][order], stable=True)]
