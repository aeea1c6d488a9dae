"""Generated graphs whose answers lie a chosen number of hops away."""

from __future__ import annotations

import torch

from magna.data.node_data import UNLABELLED, NodeData

CLASSES = 4
NOISE_CHANNELS = 4
SIZES = {"train": 64, "valid": 64, "test": 160}  # paths


def far_answers(distance: int, seed: int = 0) -> NodeData:
    """Separate paths, one a question: the class of the first node is written on the last one, `distance` hops away.

    The last node of a path has its class as a one-hot vector in the first `CLASSES` columns, where all other nodes
    have zeros. The other columns are normal noise on every node. Only first nodes are labelled and in a split; the
    classes of a split are equally frequent. Classes and noise are drawn independently, and all paths are alike, so that
    nothing within fewer hops tells the answer: a model that sees less is no better than chance, 1 / `CLASSES`.

    >>> data = far_answers(distance=3)
    >>> data.num_nodes, int(data.y[0]) == int(data.x[3, :CLASSES].argmax()), data.y[1:4].tolist()
    (1152, True, [-1, -1, -1])
    """
    draw = torch.Generator().manual_seed(seed)
    answers = torch.cat(
        [(torch.arange(size) % CLASSES)[torch.randperm(size, generator=draw)] for size in SIZES.values()]
    )
    length, count = distance + 1, len(answers)
    nodes = torch.arange(count * length).view(count, length)
    first, last = nodes[:, 0], nodes[:, -1]
    x = torch.zeros(nodes.numel(), CLASSES + NOISE_CHANNELS)
    x[:, CLASSES:] = torch.randn(nodes.numel(), NOISE_CHANNELS, generator=draw)
    x[last, answers] = 1
    y = torch.full((nodes.numel(),), UNLABELLED)
    y[first] = answers
    steps = torch.stack([nodes[:, :-1].flatten(), nodes[:, 1:].flatten()])
    train, valid, test = first.split(list(SIZES.values()))
    return NodeData(
        name=f"far-answers-{distance}",
        edge_index=torch.cat([steps, steps.flip(0)], dim=1),
        y=y,
        num_classes=CLASSES,
        train=train,
        valid=valid,
        test=test,
        x=x,
    )
