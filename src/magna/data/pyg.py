"""PyG's `Data` as `NodeData`, and back."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from magna.config.atomic_files import write_whole
from magna.config.path_kind import TENSORS_FILE
from magna.data.labels import LabelKind, labels_of_tensor
from magna.data.node_data import NodeData, Schema, check_finite
from magna.errors import DataError, MissingExtra

_MOST_KINDS = 1 << 20  # a larger number is neither a class nor a type of edges
_OF_EDGES = ("edge_type", "edge_weight", "edge_attr")
_MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}


def to_pyg(data: NodeData) -> Any:
    """A PyG `Data` with `train_mask`, `val_mask` and `test_mask`."""
    try:
        from torch_geometric.data import Data
    except ModuleNotFoundError:
        raise MissingExtra("to_pyg", "torch-geometric", "pyg") from None

    edges = {part: value for part in _OF_EDGES if (value := getattr(data, part)) is not None}
    return Data(x=data.x, edge_index=data.edge_index, y=data.y, num_nodes=data.num_nodes, **edges, **_masks(data))


def from_pyg(data: Any, name: str = "data", target: LabelKind = "auto", like: Schema | None = None) -> NodeData:
    """A PyG `Data` with `edge_index`, and with its `x`, `y`, `edge_type`, `edge_weight`, `edge_attr` and three masks.

    Whole numbers in `y` [N] are classes. Others are read as a table's are: classes, a number, or of y [N, L] several
    labels.
    """
    return _as_listed(data, name, target, like).without_absent_edges()


def _as_listed(data: Any, name: str, target: LabelKind = "auto", like: Schema | None = None) -> NodeData:
    """A PyG `Data` with all of its edges, also those of weight 0."""
    if data.edge_index is None:
        raise DataError(name, "it has no edge_index", allowed="a PyG Data with edge_index, x and y")
    num_nodes = _count_nodes(data)
    if num_nodes == 0:
        raise DataError(name, "it has no node", allowed="at least one")
    edge_index = _whole_numbers(name, "edge_index", data.edge_index, (2, -1))
    _check_range(name, "an edge to node", edge_index, num_nodes)
    labels = labels_of_tensor(name, getattr(data, "y", None), num_nodes, target, like)
    if labels.target == "classes":
        _check_range(name, "a label of", labels.y[labels.y >= 0], _MOST_KINDS)
    edge_type = getattr(data, "edge_type", None)
    if edge_type is not None:
        edge_type = _whole_numbers(name, "edge_type", edge_type, (edge_index.size(1),))
        _check_range(name, "an edge of type", edge_type, _MOST_KINDS)
    nothing = torch.zeros(0, dtype=torch.int64)
    graph = NodeData(
        *(name, edge_index, labels.y, labels.num_classes, nothing, nothing, nothing),
        x=_features(name, "x", getattr(data, "x", None), num_nodes, "nodes"),
        edge_type=edge_type,
        num_relations=None if edge_type is None else int(edge_type.max()) + 1 if edge_type.numel() else 1,
        edge_weight=_weights(name, getattr(data, "edge_weight", None), edge_index.size(1)),
        edge_attr=_features(name, "edge_attr", getattr(data, "edge_attr", None), edge_index.size(1), "edges"),
        target=labels.target,
        schema=Schema(class_names=labels.names, target=labels.target),
        notes=labels.notes,
    )
    return _with_masks(graph, data)


def save_pyg(data: Any, folder: Path) -> None:
    """Write a PyG `Data` as tensors into a folder that `load_user_graph` reads; other data there are not replaced."""
    graph = _as_listed(data, "data")
    # Labels and masks as they are, so that whoever reads them gets the same notes.
    labels = graph.y if getattr(data, "y", None) is None else data.y
    tensors = {"edge_index": graph.edge_index, "y": labels, "num_nodes": torch.tensor(graph.num_nodes)}
    tensors |= {name: part for name in ("x", *_OF_EDGES) if (part := getattr(graph, name)) is not None}
    tensors |= {mask: part for mask in _MASKS.values() if (part := getattr(data, mask, None)) is not None}
    path, content = folder / TENSORS_FILE, safetensors.torch.save({n: t.cpu().contiguous() for n, t in tensors.items()})
    if path.is_file() and path.read_bytes() != content:
        raise DataError(folder, "it holds other data", hint="another run_dir")
    write_whole(path, content)


class _Tensors(dict[str, Tensor]):
    """The tensors of a file, with the attributes of a PyG `Data`."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self.get(name)


def load_pyg(path: Path, name: str, like: Schema | None, target: LabelKind = "auto") -> NodeData:
    """Read a saved PyG `Data`, for a model of this schema."""
    stored = _Tensors(safetensors.torch.load_file(path)) if path.name == TENSORS_FILE else _stored_pyg(path)
    try:
        data = from_pyg(stored, name, target, like)
    except ValueError:
        raise
    except Exception as error:  # a damaged object fails in any way
        raise DataError(path, f"it has a damaged Data ({error})", allowed="one with edge_index, x and y") from None
    relations = None if data.num_relations is None else tuple(map(str, range(data.num_relations)))
    if like is None:
        if not data.train.numel() and any(mask in stored for mask in _MASKS.values()):
            raise DataError(path, "it has no node in train_mask", allowed="at least one, or no masks")
        return replace(data, schema=replace(data.schema, relation_names=relations))
    typed = like.relation_names is not None
    for part, count, known in (
        ("edge types", len(relations or ()), like.relation_names),
        ("classes", data.num_classes, like.class_names),
    ):
        if count > len(known or ()) or (part == "edge types" and (relations is not None) != typed):
            raise DataError(path, f"it has {count} {part}", allowed=f"{len(known or ())}, as in training")
    num_relations = len(like.relation_names or ()) if typed else None
    return replace(data, num_relations=num_relations, num_classes=len(like.class_names or ()), schema=like)


def _stored_pyg(path: Path) -> Any:
    """A saved PyG `Data`. Loading never executes code from the file: only tensors and PyG's own containers pass."""
    if not path.is_file():
        raise DataError(path, "it does not exist", allowed="a PyG Data saved with torch.save")
    try:
        from torch_geometric.data import Data
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import GlobalStorage
    except ModuleNotFoundError:
        raise MissingExtra(str(path), "torch-geometric", "pyg") from None
    containers = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(containers):
            warnings.simplefilter("ignore")  # the error below says it
            stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes fail in any way
        # Torch's message advises to load the file unsafely; only the name that it refused helps.
        refused = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it asks for {refused[1]}" if refused else "it is damaged or something else"
        fault = f"it is not a saved PyG Data that can be read safely: {reason}"
        raise DataError(path, fault, allowed="a torch_geometric.data.Data saved with torch.save") from None
    if not isinstance(stored, Data):
        raise DataError(path, f"it has {type(stored).__name__}", allowed="one torch_geometric.data.Data")
    return stored


def _count_nodes(data: Any) -> int:
    """Number of nodes as the data says, or of its features or labels; the edges alone may leave nodes out."""
    labels = getattr(data, "y", None)
    if data.x is None and isinstance(labels, Tensor) and labels.dim() and "num_nodes" not in data:
        return labels.size(0)
    return int(data.num_nodes or 0)


def _check_range(name: str, part: str, values: Tensor, end: int) -> None:
    outside = values[(values < 0) | (values >= end)]
    if outside.numel():
        raise DataError(name, f"it has {part} {int(outside[0])}", allowed=f"0 to {end - 1:,}")


def _whole_numbers(name: str, part: str, values: Any, shape: tuple[int, ...]) -> Tensor:
    words = f"a tensor of whole numbers with shape {list(shape)}".replace("-1", "E")
    if not isinstance(values, Tensor) or values.is_floating_point() or values.dtype == torch.bool:
        raise DataError(name, f"its {part} is of another kind", allowed=words)
    if values.dim() != len(shape) or any(want not in (-1, got) for got, want in zip(values.shape, shape, strict=True)):
        raise DataError(name, f"its {part} has shape {list(values.shape)}", allowed=words)
    return values.long().contiguous()


def _masks(data: NodeData) -> dict[str, Tensor]:
    nothing = torch.zeros(data.num_nodes, dtype=torch.bool)
    return {mask: nothing.index_fill(0, data.split(split), True) for split, mask in _MASKS.items()}


def _with_masks(graph: NodeData, data: Any) -> NodeData:
    """The graph with the splits of its masks; nodes without a label are in none of them, which a note says."""
    splits: dict[str, Any] = {}
    notes = []
    for split, name in _MASKS.items():
        mask = getattr(data, name, None)
        if mask is None:
            continue
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (graph.num_nodes,):
            words = f"true or false for each of its {graph.num_nodes} nodes"
            raise DataError(graph.name, f"its {name} is of another kind", allowed=words)
        splits[split] = (mask & graph.labelled).nonzero().squeeze(1)
        if (unlabelled := int((mask & ~graph.labelled).sum())) > 0:
            notes.append(f"{unlabelled:,} nodes of {name} have no label and are not in it")
    return replace(graph, **splits, notes=(*graph.notes, *notes))


def _weights(name: str, weight: Any, num_edges: int) -> Tensor | None:
    if weight is None:
        return None
    weight = weight.squeeze(-1) if isinstance(weight, Tensor) and weight.dim() == 2 else weight
    if not isinstance(weight, Tensor) or weight.shape != (num_edges,) or weight.is_complex():
        raise DataError(name, "its edge_weight is of another kind", allowed=f"a number for each of {num_edges} edges")
    numbers: Tensor = weight.detach().float().contiguous()
    wrong = ~(numbers.isfinite() & (numbers >= 0))
    if wrong.any():
        fault = f"its edge_weight has {float(numbers[wrong][0]):g}"
        raise DataError(name, fault, allowed="0, which is no edge, or more")
    return numbers


def _features(name: str, part: str, x: Any, size: int, rows: str) -> Tensor | None:
    if x is None:
        return None
    if part == "edge_attr" and isinstance(x, Tensor) and x.dim() == 1:
        x = x[:, None]
    if not isinstance(x, Tensor) or x.dim() != 2 or x.size(0) != size or x.is_complex():
        words = f"a matrix with a row for each of its {size} {rows}"
        raise DataError(name, f"its {part} is of another kind", allowed=words)
    x = x.detach()
    x = (x if x.layout == torch.strided else x.to_dense()).float()
    check_finite(name, x)
    return x if x.size(1) else None
