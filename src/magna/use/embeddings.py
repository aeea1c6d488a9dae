"""Embeddings: the last hidden states of nodes, or the states of entities, with their names, in memory and as files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magna.config.atomic_files import write_whole
from magna.errors import ArgumentError
from magna.nn.ensemble import members_of
from magna.nn.sparse import SparseRows

_AGAIN = "the same command"
_CONTAINERS = nn.ModuleList, nn.ModuleDict


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A vector for each name.

    Shapes: ids has n names, vectors is [n, C].
    """

    dataset: str
    ids: list[str]
    vectors: Tensor
    notes: tuple[str, ...] = ()

    def write(self, path: str | Path) -> list[Path]:
        """Write the vectors and, beside them, the names; return both files.

        `x.npy` has the names in `x.names.json`. `x.tsv` and its `x.metadata.tsv` have the form of embedding projectors:
        a line a vector, without a header.
        """
        path = Path(path)
        names = names_file(path)
        if path.suffix == ".npy":
            file = io.BytesIO()
            np.save(file, self.vectors.numpy())
            contents = file.getvalue(), json.dumps(self.ids, ensure_ascii=False) + "\n"
        else:
            rows = ("\t".join(f"{value:.8g}" for value in row) for row in self.vectors.tolist())
            contents = (
                "".join(f"{row}\n" for row in rows).encode(),
                "".join(f"{' '.join(name.split())}\n" for name in self.ids),
            )
        write_whole(names, contents[1].encode(), again=_AGAIN)
        write_whole(path, contents[0], again=_AGAIN)
        return [path, names]


def names_file(path: Path) -> Path:
    """The file of the names beside one of vectors.

    >>> str(names_file(Path("x.npy"))), str(names_file(Path("x.tsv")))
    ('x.names.json', 'x.metadata.tsv')
    """
    if path.suffix not in (".npy", ".tsv"):
        raise ArgumentError("embeddings", str(path), "a file that ends in .npy or .tsv")
    return path.with_suffix(".names.json" if path.suffix == ".npy" else ".metadata.tsv")


@torch.no_grad()
def last_states(model: nn.Module, score: Callable[[nn.Module], Any]) -> Tensor:
    """The input of the last layer with weights, [N, C], of each member of an ensemble side by side.

    Args:
        model: any model of nodes.
        score: computes the scores of a model.

    >>> model = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> last_states(model, lambda model: model(torch.ones(4, 2))).shape
    torch.Size([4, 5])
    """
    return torch.cat([_states(member, score) for member in members_of(model)], 1)


def _states(model: nn.Module, score: Callable[[nn.Module], Any]) -> Tensor:
    inputs: dict[nn.Module, Any] = {}  # in the order of the calls

    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.pop(module, None)
        inputs[module] = args[0] if args else None

    hooks = [module.register_forward_pre_hook(record) for module in model.modules()]
    try:
        score(model)
    finally:
        for hook in hooks:
            hook.remove()
    features, part = inputs[model], model
    rows = features.size(0)
    weighty = [each for each, x in inputs.items() if _has_rows(x, rows) and any(True for _ in each.parameters())]
    while called := [each for each in weighty if each in set(_parts(part))]:
        part = called[-1]
        states = inputs[part]
        if states is not features and isinstance(states, Tensor):
            return states
    raise ArgumentError("model", type(model).__name__, "a model whose last layer reads hidden states")


def _has_rows(x: Any, rows: int) -> bool:
    return isinstance(x, Tensor | SparseRows) and x.dim() == 2 and x.size(0) == rows


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The children of a module, of containers their entries."""
    for child in module.children():
        if isinstance(child, _CONTAINERS):
            yield from _parts(child)
        else:
            yield child
