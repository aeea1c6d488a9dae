"""Random splits, the same on every machine: drawn with numpy's PCG64 from a seed that is part of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from magna.data.node_data import NodeData

_HELD_OUT = 0.2  # share for validation, and for the test
# With fewer labels a class, a fifth for validation would be fewer than 30 of a class.
FEW_LABELS, _FEW_TRAIN, _FEW_VALID = 150, 20, 30


def with_random_split(data: NodeData, seed: int, valid_share: float | None = None) -> NodeData:
    """Another split of the same size, as in the paper's random-split table ("the same ratio in the standard splits").

    As many training nodes of every class as the data's own split has (20 in Cora, Citeseer and Pubmed), then as many
    validation and test nodes, all drawn from the labelled nodes. Data without a split: see `with_drawn_split`.
    """
    if data.train.numel() == 0:
        return with_drawn_split(data, seed, valid_share)
    train, rest = _draw(data, _counts(data, data.train), seed)
    valid, test = rest[: data.valid.numel()], rest[data.valid.numel() :][: data.test.numel()]
    return _with_split(data, train, valid, test, f"random split, seed {seed}")


def with_drawn_split(data: NodeData, seed: int, valid_share: float | None = None) -> NodeData:
    """A split for data without one: 60 % of each class for training, the rest in halves.

    With fewer than 150 labels a class on average, at most 20 of a class are for training and 30 for validation. A
    `valid_share` is that of validation and as much for the test, however many labels there are. Several labels and
    numbers are drawn without regard to their values. With too few labels there is still no split, and a note says so.
    """
    share = _HELD_OUT if valid_share is None else valid_share
    sizes = np.array(_counts(data, data.labelled.nonzero().squeeze(1)))
    counts = np.ceil((1 - 2 * share) * sizes).astype(np.int64)
    few = valid_share is None and data.target == "classes" and sizes.sum() < FEW_LABELS * (sizes > 0).sum()
    if few and (counts > _FEW_TRAIN).any():
        return _with_few_labels(data, counts.clip(max=_FEW_TRAIN), seed)
    train, rest = _draw(data, counts.tolist(), seed)
    if len(rest) < 2:
        return replace(data, notes=(*data.notes, "no split given, and too few labels to draw one"))
    half, percent = len(rest) // 2, f"{100 * share:g}"
    note = f"no split given: {100 - 2 * 100 * share:g}/{percent}/{percent} drawn at random, seed {seed}"
    return _with_split(data, train, rest[:half], rest[half:], note)


def with_drawn_validation(data: NodeData, seed: int, valid_share: float | None = None) -> NodeData:
    """A split without validation nodes, which get a fifth of each class of its training nodes, or another share."""
    share = _HELD_OUT if valid_share is None else valid_share
    counts = np.ceil((1 - share) * np.array(_counts(data, data.train))).astype(np.int64)
    train, valid = _draw(data, counts.tolist(), seed, data.train.numpy())
    if not len(valid):
        return data
    note = f"no validation node given: {len(valid):,} of the training nodes drawn at random, seed {seed}"
    return _with_split(data, train, valid, data.test.numpy(), note)


def _with_few_labels(data: NodeData, counts: np.ndarray, seed: int) -> NodeData:
    train, rest = _draw(data, counts.tolist(), seed)
    of_class = [rest[data.y.numpy()[rest] == label] for label in range(data.num_classes)]
    valid = np.concatenate([nodes[: min(_FEW_VALID, len(nodes) // 2)] for nodes in of_class])
    note = (
        f"no split given and fewer than {FEW_LABELS} labels a class: up to {_FEW_TRAIN} of each class for training and "
        f"{_FEW_VALID} for validation drawn at random, seed {seed}"
    )
    return _with_split(data, train, valid, rest[~np.isin(rest, valid)], note)


def _counts(data: NodeData, nodes: torch.Tensor) -> list[int]:
    """Number of some labelled nodes in each class; of several labels and numbers, of all."""
    if data.target != "classes":
        return [nodes.numel()]
    counts: list[int] = torch.bincount(data.y[nodes], minlength=data.num_classes).tolist()
    return counts


def _draw(
    data: NodeData, counts: Sequence[int], seed: int, among: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Training nodes, `counts` of each class, and the other labelled nodes in random order; both `among` some nodes."""
    y = data.y.numpy() if data.target == "classes" else np.zeros(data.num_nodes, dtype=np.int64)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(data.num_nodes)
    order = order[data.labelled.numpy()[order]]
    order = order if among is None else order[np.isin(order, among)]
    of_class = [order[y[order] == label][:count] for label, count in enumerate(counts)]
    train = np.concatenate([*of_class, order[:0]])
    return train, order[~np.isin(order, train)]


def _with_split(data: NodeData, train: np.ndarray, valid: np.ndarray, test: np.ndarray, note: str) -> NodeData:
    parts = [torch.from_numpy(np.sort(nodes).astype(np.int64)) for nodes in (train, valid, test)]
    return replace(data, train=parts[0], valid=parts[1], test=parts[2], notes=(*data.notes, note))
