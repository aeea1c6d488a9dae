"""Weights of a finished run in a fresh model: by their names and shapes, those of entities and relations by theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from magna.errors import DataError, listed
from magna.training.run_folder import RunFolder


def take_weights(network: nn.Module, schema: Mapping[str, Any], run: RunFolder, **parts: Any) -> str:
    """Put the weights of a run into a network; a sentence that says how many, and which ones not.

    Args:
        network: the fresh model.
        schema: names in its data, as in schema.json.
        run: the finished run.
        parts: arguments that the files of the run do not hold, as a user's `module`.
    """
    fresh = network.state_dict()
    taken = carried_over(run.load_model(**parts).state_dict(), fresh, run.schema, schema)
    if not taken:
        raise DataError(run.path, "no weight of it has the name and shape of one of this model", hint="the same recipe")
    network.load_state_dict(fresh | taken)
    rest = [name for name in fresh if name not in taken]
    words = f"; new: {listed(rest)}" if rest else ""
    for kind in ("feature_names", "class_names"):
        if run.schema.get(kind) != schema.get(kind):
            words += f"; its {kind.replace('_', ' ')} differ from those of this data"
    return f"{len(taken)} of {len(fresh)} weights start as those of {run.path}{words}"


def carried_over(
    stored: Mapping[str, Tensor], fresh: Mapping[str, Tensor], before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The stored weights in the form of the fresh ones, without those that do not fit.

    Rows of entities and relations are found by their names in the schemas `before` and `now`; a new one keeps its fresh
    row.
    """
    places = {}
    if "entities" in before and "entities" in now:
        places = {len(before["entities"]): _rows(before["entities"], now["entities"])}
        places[2 * len(before["relations"]) + 1] = _both_ways(before["relations"], now["relations"])
    taken = {}
    for name, value in fresh.items():
        if (old := stored.get(name)) is None or old.shape[1:] != value.shape[1:] or old.dim() != value.dim():
            continue
        if old.dim() and len(old) in places:
            source, target = places[len(old)]
            if target.numel() and int(target.max()) < len(value):
                taken[name] = value.clone().index_copy_(0, target.to(value.device), old[source].to(value))
        elif old.shape == value.shape:
            taken[name] = old
    return taken


def _rows(before: Sequence[str], now: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The places of the names that both have, before and now."""
    at = {name: place for place, name in enumerate(before)}
    pairs = [(at[name], place) for place, name in enumerate(now) if name in at]
    source, target = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    return source, target


def _both_ways(before: Sequence[str], now: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The same for relations, their inverses and the self-loop."""
    source, target = _rows(before, now)
    sizes = torch.tensor([2 * len(before)]), torch.tensor([2 * len(now)])
    return (
        torch.cat([source, source + len(before), sizes[0]]),
        torch.cat([target, target + len(now), sizes[1]]),
    )
