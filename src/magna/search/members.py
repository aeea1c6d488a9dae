"""Members of the portfolio: settings that lie in the package as data, with their origin."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from magna.config.layers import AttentionOptions
from magna.config.schema import Config
from magna.config.tables import NodeDataOptions
from magna.errors import ArgumentError
from magna.search.facts import FeatureKind

Scaling = Literal["none", "rows", "columns"]
# Feature kind → the two forms that members name.
_FORMS: dict[FeatureKind, tuple[Scaling, Scaling]] = {
    "none": ("none", "columns"),
    "one-hot": ("none", "rows"),
    "counts": ("none", "rows"),
    "dense": ("columns", "none"),
    "mixed": ("columns", "none"),
}


@dataclass(frozen=True)
class Member:
    """Settings that the portfolio tries; members stand in the order of their simplicity."""

    name: str
    scaling: Literal["first", "second", "raw"]
    tables: Mapping[str, Mapping[str, Any]]  # model, task and train of a recipe

    def scaling_for(self, kind: FeatureKind) -> Scaling:
        """The form of the features for data of a kind."""
        return "none" if self.scaling == "raw" else _FORMS[kind][self.scaling == "second"]

    def config(self, data: NodeDataOptions, kind: FeatureKind, recipe: str, seed: int) -> Config:
        """The member as settings for some data."""
        scaling = self.scaling_for(kind)
        config = Config.from_dict({"recipe": recipe, **self.tables}).with_seed(seed)
        form: dict[str, Any] = {"standardise_features": scaling == "columns", "normalise_features": scaling == "rows"}
        return replace(config, data=replace(data, edge_types=isinstance(config.model, AttentionOptions), **form))


def load_members(task: str = "nodes") -> list[Member]:
    """The members of the package for a task, simplest first."""
    content = tomllib.loads((resources.files("magna.config") / "portfolio" / f"{task}.toml").read_text("utf-8"))
    return parse_members(content["members"])


def parse_members(entries: list[dict[str, Any]]) -> list[Member]:
    """Members from the tables of a file; each is checked as a recipe is."""
    members = []
    for entry in entries:
        if entry.get("scaling") not in ("first", "second", "raw"):
            allowed = ["first", "second", "raw"]
            raise ArgumentError(f"scaling of member {entry.get('name')}", entry.get("scaling"), allowed)
        tables: dict[str, Any] = {table: entry[table] for table in ("model", "task", "train") if table in entry}
        Config.from_dict(tables)
        members.append(Member(entry["name"], entry["scaling"], tables))
    return members
