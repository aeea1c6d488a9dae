"""The layer inside PyG programs: Sequential, Data, Batch, EdgeIndex, loaders."""

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader, RandomNodeLoader
from torch_geometric.nn import HeteroConv, Sequential
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_edge_index

from magna import MAGNA, Graph, MAGNAConv
from tests.support.graphs import integers, random_graph, uniform

N, E, C = 20, 70, 6


def data(seed: int = 0, num_nodes: int = N) -> Data:
    edges = random_graph(num_nodes, E, seed).edge_index
    return Data(uniform(num_nodes, C, seed=seed).float(), edges, edge_type=integers(3, edges.size(1), seed=seed))


def test_sequential():
    model = Sequential(
        "x, edge_index",
        [
            (MAGNAConv(C, 16, heads=4), "x, edge_index -> x"),
            torch.nn.ReLU(),
            (MAGNAConv(16, 8, heads=2), "x, edge_index -> x"),
        ],
    )
    d = data()
    assert model(d.x, d.edge_index).shape == (N, 8)
    model.reset_parameters()


def test_a_batch_is_its_graphs_one_by_one():
    graphs = [data(seed, 5 + seed) for seed in range(4)]
    conv = MAGNAConv(C, 8, heads=2, num_relations=3)
    batch = Batch.from_data_list(graphs)
    out = conv(batch.x, batch.edge_index, batch.edge_type)
    apart = torch.cat([conv(d.x, d.edge_index, d.edge_type) for d in graphs])
    torch.testing.assert_close(out, apart)


def test_edge_index_class():
    d, conv = data(), MAGNAConv(C, 8, heads=2)
    index = EdgeIndex(d.edge_index, sparse_size=(N, N))
    torch.testing.assert_close(conv(d.x, index), conv(d.x, d.edge_index))
    by_row, order = index.sort_by("row")
    _, (edge_index, attention) = conv(d.x, by_row, return_attention_weights=True)
    assert torch.equal(edge_index, d.edge_index[:, order])
    torch.testing.assert_close(attention, conv(d.x, d.edge_index, return_attention_weights=True)[1][1][order])


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_what_an_error_says_of_a_sparse_matrix_works(layout):
    d, conv = data(), MAGNAConv(C, 8, heads=2)
    adj_t = ToSparseTensor(layout=layout)(d.clone()).adj_t
    with pytest.raises(ValueError, match=r"try torch_geometric.utils.to_edge_index\(adj_t\)\[0\].flip\(0\)"):
        conv(d.x, adj_t)
    # Equal edges are one entry of a matrix.
    once = d.edge_index.unique(dim=1)
    torch.testing.assert_close(conv(d.x, to_edge_index(adj_t)[0].flip(0)), conv(d.x, once))


def test_several_kinds_of_nodes():
    """Between nodes of one kind as a layer of its own, between several as relations of one graph."""
    d, hetero = data(), HeteroData()
    hetero["user"].x, hetero["item"].x = d.x, d.x[:5]
    hetero["user", "knows", "user"].edge_index = d.edge_index
    hetero["user", "likes", "item"].edge_index = d.edge_index % 5
    own = MAGNAConv(C, 8, heads=2)
    out = HeteroConv({("user", "knows", "user"): own})(hetero.x_dict, hetero.edge_index_dict)["user"]
    assert torch.equal(out, own(d.x, d.edge_index))
    between = HeteroConv({("user", "likes", "item"): own, ("item", "of", "user"): own})
    with pytest.raises(ValueError, match=r"x is <class .tuple.>; .*data.to_homogeneous\(\)"):
        between(hetero.x_dict, hetero.edge_index_dict)
    one = hetero.to_homogeneous()
    assert MAGNAConv(C, 8, num_relations=2)(one.x, one.edge_index, one.edge_type).shape == (N + 5, 8)


def test_a_graph_goes_where_its_data_goes():
    d = data()
    d.graph = Graph.from_edge_index(d.edge_index, N, d.edge_type)
    moved = d.to("meta").graph
    assert moved.device.type == moved.by_relation.ptr.device.type == "meta"


def test_random_node_loader():
    model, d = MAGNA(C, 8, 2, 3, heads=2, num_relations=3), data()
    seen = 0
    for part in RandomNodeLoader(d, num_parts=3):
        out = model(part.x, part.edge_index, part.edge_type)
        out.sum().backward()
        seen += out.size(0)
    assert seen == N


def test_data_loader():
    model = MAGNA(C, 8, 2, heads=2)
    for batch in DataLoader([data(seed) for seed in range(4)], batch_size=2):
        assert model(batch.x, batch.edge_index).shape == (2 * N, 8)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    conv = MAGNAConv(C, 8, heads=2, edge_dropout=0.5)
    with mode():
        d = data()
        assert conv(d.x, d.edge_index).isfinite().all()


def test_an_edge_index_changed_in_place_is_seen():
    d, conv = data(), MAGNAConv(C, 8)
    before = conv(d.x, d.edge_index)
    d.edge_index[0] = d.edge_index[0].flip(0)
    after = conv(d.x, d.edge_index)
    torch.testing.assert_close(after, conv(d.x, d.edge_index.clone()))
    assert not torch.equal(before, after)
