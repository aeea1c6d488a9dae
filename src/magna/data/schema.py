"""`Schema`: the names of the columns and classes of a graph, and how a table became them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from magna.data.features import FeatureColumn

Target = Literal["classes", "labels", "number"]
_COLUMNS = ("columns", "edge_columns")


@dataclass(frozen=True)
class Schema:
    """Names and encodings that a graph shares with the one that a model was trained on; None: there are none.

    `relation_names` are the edge types as the data has them; inverse types and self-loops come after them. `columns`
    and `edge_columns` say how tables became features of nodes and edges. Standardised features are
    (raw - shift) · scale.

    >>> schema = Schema(feature_names=("age",), columns=(FeatureColumn("age", mean=41.0),))
    >>> Schema.from_dict(schema.to_dict()) == schema
    True
    """

    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    relation_names: tuple[str, ...] | None = None
    feature_shift: tuple[float, ...] | None = None
    feature_scale: tuple[float, ...] | None = None
    columns: tuple[FeatureColumn, ...] | None = None
    edge_columns: tuple[FeatureColumn, ...] | None = None
    edge_shift: tuple[float, ...] | None = None
    edge_scale: tuple[float, ...] | None = None
    target: Target = "classes"

    @property
    def names(self) -> tuple[tuple[str, ...] | None, ...]:
        """Names of the columns of a model."""
        return self.feature_names, self.class_names, self.relation_names

    @property
    def node_columns(self) -> tuple[FeatureColumn, ...] | None:
        """The columns of the table of nodes that training read; None if it read none."""
        if self.columns is None and self.feature_names is not None:  # a run of an earlier version
            return tuple(map(FeatureColumn, self.feature_names))
        return self.columns

    def to_dict(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values |= {name: [column.to_dict() for column in values[name]] for name in _COLUMNS if values[name] is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Schema:
        parts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        for name in _COLUMNS:
            if parts.get(name) is not None:
                parts[name] = tuple(map(FeatureColumn.from_dict, parts[name]))
        return Schema(**parts)
