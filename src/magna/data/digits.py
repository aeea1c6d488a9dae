"""`digits`: handwritten digits as a graph, a data set that comes with the package."""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from magna.data.node_data import NodeData, undirected

_NEIGHBOURS = 6
_TRAIN_PER_CLASS = 10
_NUM_VALID = 500
# The split is drawn once with this seed: every run, whatever its own seed, sees the same one.
_SPLIT_SEED = 20_260_101


def load_digits() -> NodeData:
    """1,797 handwritten digits (8 × 8 pixels) as a graph: each image is joined to the 6 nearest.

    10 labels a class for training, 500 nodes for validation, the other 1,197 for the test. `digits.txt` beside the
    images names their source and licence.
    """
    with resources.files("magna.data").joinpath("digits.npz").open("rb") as file, np.load(file) as images:
        pixels, y = images["pixels"].astype(np.float64), images["labels"].astype(np.int64)
    # Pixels are whole numbers, so the squared distances are exact and the neighbours the same on every machine.
    length = (pixels**2).sum(1)
    distance = length[:, None] + length - 2 * pixels @ pixels.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :_NEIGHBOURS]
    source = torch.arange(len(y)).repeat_interleave(_NEIGHBOURS)
    target = torch.from_numpy(nearest.reshape(-1).astype(np.int64))

    order = np.random.Generator(np.random.PCG64(_SPLIT_SEED)).permutation(len(y))
    chosen = np.concatenate([order[y[order] == digit][:_TRAIN_PER_CLASS] for digit in range(10)])
    rest = order[~np.isin(order, chosen)]
    parts = (chosen, rest[:_NUM_VALID], rest[_NUM_VALID:])
    train, valid, test = (torch.from_numpy(np.sort(part)) for part in parts)
    x = torch.from_numpy((pixels / 16).astype(np.float32))
    edge_index = undirected(source, target, len(y))
    return NodeData("digits", edge_index, torch.from_numpy(y), 10, train, valid, test, x)
