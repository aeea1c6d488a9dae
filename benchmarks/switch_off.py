"""The share of each GPU piece in a training step: steps with torch in place of one piece at a time."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import knowledge
import ledger
import torch
from torch import Tensor
from torch.nn import functional as F

from magna import ops
from magna.config.schema import load_recipe
from magna.nn import fused, link_model
from magna.ops.gpu import linear as dense
from magna.ops.gpu import norm

ROUNDS = 2  # over all pieces
_AUTHORS = [*knowledge.AUTHORS["wn18rr"], "model.feed_forward=true"]
# Recipe, settings and epochs of each shape.
SHAPES: dict[str, tuple[str, list[str], int]] = {
    "WN18RR, recipe": ("wn18rr", [], 10),
    "WN18RR, authors' shape with feed-forward": ("wn18rr", _AUTHORS, 10),
    "Cora, recipe": ("cora", [], 600),
}


def _feed_forward(x: Tensor, first: Tensor, bias: Tensor, second: Tensor, second_bias: Tensor, **_: Any) -> Tensor:
    return dense.linear(dense.linear(x, first, bias, relu=True), second, second_bias)


def _linears(x: Tensor, weights: list[list[Tensor]], **_: Any) -> list[Tensor]:
    return [dense.joined([dense.linear(x, weight) for weight in group], -1) for group in weights]


def _lookups(table: Tensor, *indices: Tensor) -> tuple[Tensor, ...]:
    return table, *torch.split(F.embedding(torch.cat(indices), table), [len(index) for index in indices])


_NORM = (norm, "choose", lambda *_: "reference")
_LINEAR = (dense, "choose", lambda *_: "reference")
_TABLE = [(link_model, "lookups", _lookups), (link_model, "lookup", lambda table, index: F.embedding(index, table))]
_WALK = (fused, "covers", lambda *_: False)
# Module, name and replacement of the functions of each piece.
PIECES: dict[str, list[tuple[Any, str, Any]]] = {
    "nothing": [],
    "norm": [_NORM],
    "linear": [_LINEAR],
    "feed_forward": [(ops, "feed_forward", _feed_forward)],
    "linears": [(ops, "linears", _linears)],
    "table": _TABLE,
    "walk": [_WALK],
    "all": [_NORM, _LINEAR, _WALK, *_TABLE],
}


def switch_off(device: torch.device, data_dir: str | None, out: Path, stamped: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a training step of each shape without each piece, in rounds over the pieces."""
    path = out / f"switch-off-{ledger.slug(device)}.json"
    record = stamped | {"rows": []}
    for shape, (recipe, settings, epochs) in SHAPES.items():
        ends = [f"train.{name}={epochs}" for name in ("epochs", "patience", "eval_every")]
        config = load_recipe(recipe).with_values([*settings, *ends])
        rows: list[dict[str, Any]] = [{"shape": shape, "without": piece, "ms": []} for piece in PIECES]
        record["rows"] += rows
        for row in rows * ROUNDS:
            with ExitStack() as replaced:
                for function in PIECES[row["without"]]:
                    replaced.enter_context(mock.patch.object(*function))
                row["ms"].append(knowledge.step_ms(config, device, data_dir))
            ledger.write_json(path, record)
            print(f"{row['ms'][-1]:9.3f} ms a step without {row['without']}: {shape}", flush=True)
    return record
