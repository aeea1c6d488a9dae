"""The layer inside PyG programs: Sequential, Data, Batch, EdgeIndex, explainers."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.loader import DataLoader, RandomNodeLoader
from torch_geometric.nn import GATConv, HeteroConv, Sequential
from torch_geometric.transforms import ToSparseTensor

from magna import MAGNA, Graph, MAGNAConv
from magna.graph import as_graph
from magna.ops.backend.graph_tensors import pack
from magna.training.trial_buffers import register_differences
from tests.support.graphs import integers, random_graph, uniform

N, E, C = 20, 70, 6


def data(seed: int = 0, num_nodes: int = N) -> Data:
    edges = random_graph(num_nodes, E, seed).edge_index
    return Data(uniform(num_nodes, C, seed=seed).float(), edges, edge_type=integers(3, edges.size(1), seed=seed))


def test_sequential() -> None:
    first, second, call = MAGNAConv(C, 16, heads=4), MAGNAConv(16, 8, heads=2), "x, edge_index -> x"
    model = Sequential("x, edge_index", [(first, call), nn.ReLU(), (second, call)])
    assert model(data().x, data().edge_index).shape == (N, 8)
    model.reset_parameters()


def test_a_batch_is_its_graphs_one_by_one() -> None:
    graphs = [data(seed, 5 + seed) for seed in range(4)]
    conv = MAGNAConv(C, 8, heads=2, num_relations=3)
    batch = Batch.from_data_list(graphs)
    out = conv(batch.x, batch.edge_index, batch.edge_type)
    apart = torch.cat([conv(d.x, d.edge_index, d.edge_type) for d in graphs])
    torch.testing.assert_close(out, apart)


def test_edge_index_class() -> None:
    d, conv = data(), MAGNAConv(C, 8, heads=2, add_self_loops=False)
    index = EdgeIndex(d.edge_index, sparse_size=(N, N))
    torch.testing.assert_close(conv(d.x, index), conv(d.x, d.edge_index))
    assert type(as_graph(index, N, None, None).edge_index) is Tensor
    by_row, order = index.sort_by("row")
    _, (edge_index, attention) = conv(d.x, by_row, return_attention_weights=True)
    assert torch.equal(edge_index, d.edge_index[:, order])
    torch.testing.assert_close(attention, conv(d.x, d.edge_index, return_attention_weights=True)[1][1][order])


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_matrix_takes_the_place_of_the_edge_index(layout: torch.layout) -> None:
    d, conv = data(), MAGNAConv(C, 8, heads=2, add_self_loops=False)
    once = d.edge_index.unique(dim=1)  # equal edges are one entry of a matrix
    adj_t = torch.sparse_coo_tensor(once.flip(0), torch.rand(once.size(1)), (N, N)).to_sparse(layout=layout)
    out, (edge_index, attention) = conv(d.x, adj_t, return_attention_weights=True)
    torch.testing.assert_close(out, conv(d.x, once))
    assert torch.equal(edge_index[1], edge_index[1].sort()[0]) and attention.size(0) == once.size(1)
    if layout != torch.sparse_csc:
        adj_t = ToSparseTensor(layout=layout)(d.clone()).adj_t
        torch.testing.assert_close(conv(d.x, adj_t), out)
    built = as_graph(adj_t, N, None, None)
    assert as_graph(adj_t, N, None, None) is built
    with pytest.raises(ValueError, match=r"adj_t .*; allowed: \[20, 20\]"):
        conv(d.x, torch.eye(5).to_sparse())


def test_several_kinds_of_nodes() -> None:
    """Between nodes of one kind as one layer, between several as relations of one graph."""
    d, hetero = data(), HeteroData()
    hetero["user"].x, hetero["item"].x = d.x, d.x[:5]
    hetero["user", "knows", "user"].edge_index = d.edge_index
    hetero["user", "likes", "item"].edge_index = d.edge_index % 5
    conv = MAGNAConv(C, 8, heads=2)
    out = HeteroConv({("user", "knows", "user"): conv})(hetero.x_dict, hetero.edge_index_dict)["user"]
    assert torch.equal(out, conv(d.x, d.edge_index))
    between = HeteroConv({("user", "likes", "item"): conv, ("item", "of", "user"): conv})
    with pytest.raises(ValueError, match=r"x is <class .tuple.>; .*data.to_homogeneous\(\)"):
        between(hetero.x_dict, hetero.edge_index_dict)
    one = hetero.to_homogeneous()
    assert MAGNAConv(C, 8, num_relations=2)(one.x, one.edge_index, one.edge_type).shape == (N + 5, 8)


def test_a_graph_goes_where_its_data_goes() -> None:
    d = data()
    d.graph = Graph.from_edge_index(d.edge_index, N, d.edge_type)
    assert len(tensors := pack(d.to("meta").graph)[0]) == 17 and all(tensor.is_meta for tensor in tensors)


@pytest.mark.parametrize(
    "loader", [RandomNodeLoader(data(), num_parts=3), DataLoader([data(seed) for seed in range(4)], batch_size=2)]
)
def test_loaders(loader: Any) -> None:
    model, nodes = MAGNA(C, 8, 2, 3, heads=2, num_relations=3), 0
    for part in loader:
        out = model(part.x, part.edge_index, part.edge_type)
        out.sum().backward()
        nodes += out.size(0)
    assert nodes in (N, 4 * N)


def test_the_layer_prints_as_pygs_layers_do() -> None:
    assert repr(MAGNAConv(16, 32, heads=4)) == repr(GATConv(16, 32, heads=4)).replace("GATConv", "MAGNAConv")


def test_size_is_that_of_one_set_of_nodes() -> None:
    d, conv = data(), MAGNAConv(C, 8)
    for size in (None, (N, N)):
        assert conv(d.x, d.edge_index, size=size).shape == (N, 8)
    with pytest.raises(ValueError, match=r"size is \(20, 5\); allowed: \(20, 20\), as every hop starts where"):
        conv(d.x, d.edge_index, size=(N, 5))
    with pytest.raises(ValueError, match=r"in_channels is \(6, 4\); allowed: one width, as every hop starts where"):
        MAGNAConv((C, 4), 8)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"projection": "shared"}, {"num_relations": 3, "relation_channels": 4}])
def test_a_lazy_layer_takes_the_width_of_its_first_features(options: dict[str, Any]) -> None:
    d = data()
    call = (d.x, d.edge_index) + ((d.edge_type,) if "num_relations" in options else ())
    torch.manual_seed(0)
    lazy = MAGNAConv(-1, 8, heads=2, **options)
    optimiser = torch.optim.Adam(lazy.parameters())
    twin = pickle.loads(pickle.dumps(copy.deepcopy(lazy)))
    assert lazy(*call).shape == (N, 8) and repr(lazy) == "MAGNAConv(6, 8, heads=2)"
    lazy(*call).sum().backward()
    before = lazy.attention.source.weight.clone()
    optimiser.step()
    assert not torch.equal(lazy.attention.source.weight, before)
    twin.load_state_dict(lazy.state_dict())
    assert torch.equal(twin(*call), lazy(*call))
    with pytest.raises(ValueError, match=r"allowed: \[num_nodes, 6\]"):
        lazy(d.x[:, :5], *call[1:])


@pytest.mark.parametrize(
    ("options", "allowed"), [({"head_form": "full"}, "a width"), ({"num_relations": 2}, "a width, unless")]
)
def test_a_lazy_layer_needs_a_form_that_one_width_decides(options: dict[str, Any], allowed: str) -> None:
    with pytest.raises(ValueError, match=f"in_channels is -1; allowed: {allowed}"):
        MAGNAConv(-1, 8, **options)


@pytest.mark.parametrize("loops", [False, True])
def test_copies_and_files_give_the_same(tmp_path: Path, loops: bool) -> None:
    d, conv = data(), MAGNAConv(C, 8, heads=2, hop_weights="alpha", add_self_loops=loops)
    out = conv(d.x, d.edge_index)
    list(conv.modules())  # with the holder of an explainer's mask, which is no part of the layer
    torch.save(conv.state_dict(), tmp_path / "weights.pt")
    fresh = MAGNAConv(C, 8, heads=2, hop_weights="alpha", add_self_loops=loops)
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt"))
    for twin in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv)), fresh):
        assert torch.equal(twin(d.x, d.edge_index), out)


class Classifier(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.second = MAGNAConv(C, 8, heads=2, K=2, **options), MAGNAConv(8, 3, K=2, **options)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("model", [Classifier(), Classifier(add_self_loops=True), MAGNA(C, 8, 2, 3, heads=2, K=2)])
def test_an_explainer_gets_a_gradient_of_every_edge(model: nn.Module) -> None:
    d, model = data(), model.eval()
    before = model(d.x, d.edge_index)
    mask = torch.nn.Parameter(torch.zeros(d.edge_index.size(1)))
    set_masks(model, mask, d.edge_index)
    assert not torch.equal(model(d.x, d.edge_index), before)
    model(d.x, d.edge_index).square().sum().backward()
    assert mask.grad is not None and bool((mask.grad != 0).all())
    clear_masks(model)
    assert torch.equal(model(d.x, d.edge_index), before)
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explainer = Explainer(
        model, GNNExplainer(epochs=3), explanation_type="phenomenon", edge_mask_type="object", model_config=config
    )
    explanation = explainer(d.x, d.edge_index, target=before.argmax(1))
    assert (explanation.edge_mask > 0).all()
    assert torch.equal(model(d.x, d.edge_index), before)
    assert explainer.algorithm._num_hops(model) == 4


def test_trials_of_other_hops_share_a_batch() -> None:
    models = [MAGNA(C, 8, 2, 3, heads=2, K=K) for K in (2, 3)]
    register_differences(models)
    assert [int(model.get_buffer("blocks.1.conv.hops.K")) for model in models] == [2, 3]
