"""APPNP is a prediction and PyG's propagation of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn import APPNP as Propagation

from magna.baselines.nodes.appnp import APPNP
from magna.config.tables import NodeDataOptions
from magna.data import load_digits, prepare

DATA = prepare(load_digits(), NodeDataOptions())
assert DATA.x is not None
X: Tensor = DATA.x


def model(**options: float) -> APPNP:
    torch.manual_seed(0)
    return APPNP(X.size(1), 10, hidden_channels=16, K=4, alpha=0.2, **options)


def test_evaluation_is_the_propagation_of_pyg() -> None:
    ours = model().eval()
    hidden = ours.layers[0](X).relu()
    expected = Propagation(K=4, alpha=0.2)(ours.layers[1](hidden), DATA.edge_index)
    torch.testing.assert_close(ours(X, DATA.edge_index), expected, rtol=1e-4, atol=1e-5)


def test_edges_are_dropped_anew_at_each_hop() -> None:
    ours = model(edge_dropout=0.5)
    expected = ours.eval()(X, DATA.edge_index).detach()
    with torch.no_grad():
        mean = torch.stack([ours.train()(X, DATA.edge_index) for _ in range(200)]).mean(0)
    # The mean of independent draws is that of no draw; one draw for all hops would give another mean.
    assert float((mean - expected).norm() / expected.norm()) < 0.05
