"""Features of few entries: the same numbers as the dense ones, in layers, models and batches of trials."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from magna import MAGNA
from magna.baselines import GAT, DiffGCN
from magna.baselines.nodes.dual_gcn import DualGCN
from magna.baselines.nodes.gaan import GaAN
from magna.baselines.nodes.grand import GRAND
from magna.baselines.nodes.grand_plus import GRANDPlus
from magna.baselines.nodes.graph_unet import GraphUNet
from magna.baselines.nodes.lgcn import LGCN
from magna.config.schema import Config
from magna.data import load_digits
from magna.nn.dropout import Dropout
from magna.nn.linear import Linear
from magna.nn.sparse import SparseRows, has_few_entries
from magna.tasks import NodeClassification
from magna.training.trials import train_trials
from magna.typing import Backend
from tests.support.running import device_of

SHAPES = [(9, 5), (5, 9), (1, 1), (6, 6)]


def _features(rows: int, columns: int, device: torch.device | str = "cpu") -> Tensor:
    x = torch.randn(rows, columns)
    x[torch.rand(rows, columns) < 0.7] = 0
    return x.to(device)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_linear_layer_gives_the_same(shape: tuple[int, int], backend: Backend) -> None:
    x = _features(*shape, device_of(backend))
    layer = Linear(shape[1], 4, relu=True, backend=backend).to(x.device)
    dense, sparse = layer(x), layer(SparseRows.of(x))
    torch.testing.assert_close(sparse, dense)
    up = torch.randn_like(dense)
    grads = [torch.autograd.grad(out, list(layer.parameters()), up) for out in (sparse, dense)]
    torch.testing.assert_close(*grads)


def test_zeros_alone_and_the_dense_matrix_again() -> None:
    for x in (_features(7, 5), torch.zeros(7, 5)):
        rows, layer = SparseRows.of(x), Linear(5, 2)
        assert torch.equal(rows.dense(), x) and rows.shape == x.shape and rows.dtype == x.dtype
        torch.testing.assert_close(layer(rows), layer(x))


@pytest.mark.parametrize("of_rows", [False, True])
def test_dropout_keeps_an_entry_whole_or_not_at_all(of_rows: bool) -> None:
    x = _features(200, 30)
    dropped = Dropout(0.5, rows=of_rows)(SparseRows.of(x)).dense()
    factor = (dropped / x)[x != 0]
    assert set(factor.unique().tolist()) == {0.0, 2.0} and 0.4 < float(factor.mean() / 2) < 0.6
    assert (dropped[x == 0] == 0).all()
    if of_rows:
        assert all(len(row[row.isfinite()].unique()) <= 1 for row in dropped / x)


def _models() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        MAGNA(5, 8, 2, 3, heads=2, K=2),
        MAGNA(5, 8, 1, 3, heads=2, K=2, input_projection=False),
        MAGNA(5, 8, 1, 3, heads=2, K=2, input_projection=False, head_form="full"),
        GAT(5, 8, 2, 3, heads=2),
        DiffGCN(5, 8, 2, 3, alpha=0.1, top_k=3),
        DualGCN(5, 3, hidden_channels=8, walks=5),
        GRAND(5, 3, hidden_channels=8, K=2),
        GRANDPlus(5, 3, hidden_channels=8, K=2, top_k=3),
        LGCN(5, 3, hidden_channels=8, layer_channels=4, top_k=2),
        GraphUNet(5, 3, hidden_channels=8, num_layers=2, pool_nodes=5),
        GaAN(5, 3, hidden_channels=8, heads=2),
    ]


@pytest.mark.parametrize("model", _models(), ids=lambda model: type(model).__name__)
def test_every_model_takes_them(model: nn.Module) -> None:
    model, x = model.double(), _features(9, 5).double()
    edges = torch.stack([torch.arange(9), torch.arange(9).roll(1)])
    edges = torch.cat([edges, edges.flip(0)], 1)
    dense, sparse = model(x, edges), model(SparseRows.of(x), edges)
    torch.testing.assert_close(sparse, dense)
    grads = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (sparse, dense)]
    torch.testing.assert_close(*grads)


def _task(few: bool) -> NodeClassification:
    data = load_digits()
    assert data.x is not None
    chosen = torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0)) < (0.04 if few else 0.5)
    data = type(data)(**vars(data) | {"x": data.x * chosen})
    return NodeClassification(data, Config.from_dict({"task": {"consistency": 1.0}}), torch.device("cpu"))


def test_a_task_takes_them_where_entries_are_few() -> None:
    assert isinstance(_task(few=True)._x, SparseRows) and isinstance(_task(few=False)._x, Tensor)
    assert has_few_entries(torch.eye(30)) and not has_few_entries(torch.eye(3))


def test_trials_side_by_side_as_one_by_one() -> None:
    task = _task(few=True)
    model = {"hidden_channels": 8, "num_layers": 1, "heads": 2, "K": 2}
    same = {"train": {"epochs": 3, "seed": 1}, "task": {"consistency": 1.0}}
    configs = [Config.from_dict(same | {"model": model | {"alpha": alpha}}) for alpha in (0.1, 0.3)]
    for config, result in zip(configs, train_trials(configs, task), strict=True):
        (alone,) = train_trials([config], task)
        losses = [[row["loss"] for row in one.history] for one in (result, alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
