"""Random splits, the same on every machine: drawn with numpy's PCG64 from a seed that is part of the settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from magna.data.node_data import NodeData

_TRAIN_SHARE = 0.6


def with_random_split(data: NodeData, seed: int) -> NodeData:
    """Another split of the same size, as in the paper's random-split table ("the same ratio in the standard splits").

    As many training nodes of every class as the data's own split has (20 in Cora, Citeseer and Pubmed), then as many
    validation and test nodes, all drawn from the labelled nodes. Data without a split: see `with_drawn_split`.
    """
    if data.train.numel() == 0:
        return with_drawn_split(data, seed)
    counts = torch.bincount(data.y[data.train], minlength=data.num_classes).tolist()
    train, rest = _draw(data, counts, seed)
    valid, test = rest[: data.valid.numel()], rest[data.valid.numel() :][: data.test.numel()]
    return _with_split(data, train, valid, test, f"random split, seed {seed}")


def with_drawn_split(data: NodeData, seed: int) -> NodeData:
    """A split for data without one: 60 % of each class for training, the rest in halves.

    With too few labels for that there is still none, and a note says so.
    """
    sizes = torch.bincount(data.y[data.y >= 0], minlength=data.num_classes)
    train, rest = _draw(data, torch.ceil(_TRAIN_SHARE * sizes).long().tolist(), seed)
    if len(rest) < 2:
        return replace(data, notes=(*data.notes, "no split given, and too few labels to draw one"))
    half = len(rest) // 2
    return _with_split(data, train, rest[:half], rest[half:], f"no split given: 60/20/20 drawn at random, seed {seed}")


def _draw(data: NodeData, counts: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The training nodes, `counts` of each class, and the other labelled nodes in random order."""
    y = data.y.numpy()
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(y))
    order = order[y[order] >= 0]
    of_class = [order[y[order] == label][:count] for label, count in enumerate(counts)]
    train = np.concatenate([*of_class, order[:0]])
    return train, order[~np.isin(order, train)]


def _with_split(data: NodeData, train: np.ndarray, valid: np.ndarray, test: np.ndarray, note: str) -> NodeData:
    parts = [torch.from_numpy(np.sort(nodes).astype(np.int64)) for nodes in (train, valid, test)]
    return replace(data, train=parts[0], valid=parts[1], test=parts[2], notes=(*data.notes, note))
