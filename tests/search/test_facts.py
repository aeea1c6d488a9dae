"""Facts of a graph that the portfolio reads."""

from dataclasses import replace

import pytest
import torch

from magna.data import load_digits
from magna.search.facts import FeatureKind, feature_kind, read_facts


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), "one-hot"),
        (torch.eye(6) * 3, "counts"),
        (torch.randn(20, 5, generator=torch.Generator().manual_seed(0)), "dense"),
        (torch.cat([torch.eye(6), torch.arange(6.0)[:, None] - 2.5], dim=1), "mixed"),
        (torch.zeros(3, 0), "none"),
        (None, "none"),
    ],
)
def test_kind_of_features(x: torch.Tensor | None, kind: FeatureKind) -> None:
    assert feature_kind(x) == kind


def test_facts_of_the_digits() -> None:
    data = load_digits()
    facts = read_facts(data)
    assert (facts.nodes, facts.classes, facts.feature_kind) == (1797, 10, "dense")
    assert facts.splits == {"train": 100, "valid": 500, "test": 1197}
    assert facts.smallest_class == 10 and facts.largest_share == pytest.approx(0.1)
    assert not facts.divides_training
    rare = replace(
        data, y=torch.where((data.y == 3) & (torch.arange(1797) != data.train[data.y[data.train] == 3][0]), 4, data.y)
    )
    assert not read_facts(replace(rare, valid=data.valid[:100])).divides_training, "a class with one training node"
    few = read_facts(replace(data, valid=data.valid[:100]))
    assert few.divides_training and any("divided again" in line for line in few.lines())


def test_facts_read_no_label_of_validation_and_test() -> None:
    data = load_digits()
    hidden = data.y.clone()
    hidden[data.valid], hidden[data.test] = 0, 0
    assert read_facts(replace(data, y=hidden)) == read_facts(data)


def test_facts_do_not_depend_on_the_order_of_nodes() -> None:
    data = load_digits()
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    place = order.argsort()
    assert data.x is not None
    moved = replace(
        data,
        x=data.x[order],
        y=data.y[order],
        edge_index=place[data.edge_index],
        train=place[data.train],
        valid=place[data.valid],
        test=place[data.test],
    )
    assert read_facts(moved) == read_facts(data)
