"""Generated graphs whose answer lies a chosen number of hops away."""

from __future__ import annotations

import pytest
import torch

from magna.data.far_answers import CLASSES, SIZES, far_answers
from magna.data.node_data import NodeData


def within(data: NodeData, hops: int) -> torch.Tensor:
    """True where the second node is at most `hops` steps from the first."""
    step = torch.eye(data.num_nodes)
    step[data.edge_index[1], data.edge_index[0]] = 1
    reached = torch.eye(data.num_nodes)
    for _ in range(hops):
        reached = (step @ reached).clamp(max=1)
    return reached > 0


@pytest.mark.parametrize("distance", [1, 2, 4])
def test_the_answer_stands_at_the_distance_and_nowhere_nearer(distance: int) -> None:
    data = far_answers(distance)
    assert data.x is not None
    asked = torch.cat([data.train, data.valid, data.test])
    written = data.x[:, :CLASSES]
    nearer = within(data, distance - 1)[asked].float()
    assert float((nearer @ written.abs()).max()) == 0, "no answer is nearer"
    seen = within(data, distance)[asked].float() @ written
    torch.testing.assert_close(seen, torch.eye(CLASSES)[data.y[asked]])  # one answer, the right one
    assert torch.equal((data.y >= 0).nonzero().squeeze(1).sort().values, asked.sort().values)


def test_classes_are_equally_frequent_and_noise_does_not_know_them() -> None:
    data, other = far_answers(2, seed=3), far_answers(2, seed=3)
    assert data.x is not None and other.x is not None
    assert torch.equal(data.x, other.x) and torch.equal(data.y, other.y), "the same seed, the same graph"
    assert not torch.equal(data.y, far_answers(2, seed=4).y)
    for split, size in SIZES.items():
        assert torch.bincount(data.y[data.split(split)]).tolist() == [size // CLASSES] * CLASSES
    features = data.x.clone()
    features[:, :CLASSES] = 0
    by_path = features.view(-1, 3, features.size(1))[:, :, CLASSES:].flatten(1)  # all that is not the answer
    labels = torch.eye(CLASSES)[data.y[data.y >= 0]]
    fitted = torch.linalg.lstsq(by_path[:128], labels[:128]).solution
    right = ((by_path[128:] @ fitted).argmax(1) == labels[128:].argmax(1)).float().mean()
    assert abs(float(right) - 1 / CLASSES) < 0.1  # three standard errors
