"""GAT is PyG's, and behaves as the other models of this package do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv

from magna.baselines import GAT
from magna.nn import MAGNAConv


def graph() -> tuple[Tensor, Tensor]:
    """Features and edges, every node with its loop."""
    chance = torch.Generator().manual_seed(0)
    edges = torch.randint(12, (2, 40), generator=chance)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    return torch.randn(12, 5, generator=chance), torch.cat([edges, torch.arange(12).expand(2, -1)], dim=1)


@torch.no_grad()
def pyg_layer(ours: MAGNAConv, bias: Tensor, concat: bool) -> GATConv:
    """PyG's layer with the weights of ours."""
    attention = ours.attention
    width, heads = attention.head_channels, attention.heads
    slope = attention.negative_slope
    conv = GATConv(ours.in_channels, width, heads, concat=concat, negative_slope=slope, add_self_loops=False)
    conv.lin.weight.copy_(attention.source.weight)
    conv.att_src.copy_(attention.source_vector[None])
    conv.att_dst.copy_(attention.target_vector[None])
    conv.bias.copy_(bias)
    return conv


@pytest.mark.parametrize("out_heads", [1, 4])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_it_is_pygs_gat_with_the_same_weights(num_layers: int, out_heads: int) -> None:
    x, edge_index = graph()
    torch.manual_seed(0)
    model = GAT(5, 8, num_layers, 3, heads=2, out_heads=out_heads, negative_slope=0.1)
    for bias in model.biases:
        nn.init.normal_(bias)
    h = x
    for number, (layer, bias) in enumerate(zip(model.layers, model.biases, strict=True), start=1):
        assert isinstance(layer, MAGNAConv)
        hidden = number < num_layers
        h = pyg_layer(layer, bias, concat=hidden)(h, edge_index)
        if hidden:
            h = nn.functional.elu(h)
    torch.testing.assert_close(model(x, edge_index), h)


@pytest.mark.parametrize("place", ["embed_dropout", "input_dropout", "dropout"])
def test_each_dropout_is_drawn_in_training_alone(place: str) -> None:
    x, edge_index = graph()
    torch.manual_seed(0)
    model = GAT(5, 8, 2, 3, heads=2, **{place: 0.5})
    plain = GAT(5, 8, 2, 3, heads=2)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(x, edge_index), plain(x, edge_index))
    model.train()
    assert not torch.equal(model(x, edge_index), model(x, edge_index))


def test_gradients_reach_every_parameter() -> None:
    x, edge_index = graph()
    model = GAT(5, 8, 3, 3, heads=2, out_heads=2)
    model(x, edge_index).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_wrong_size_is_one_clear_error() -> None:
    with pytest.raises(ValueError, match="out_heads is 0; allowed"):
        GAT(5, 8, 2, 3, out_heads=0)
    with pytest.raises(ValueError, match=r"x is torch.float32 \[2, 4\] on cpu; allowed: \[num_nodes, 5\]"):
        GAT(5, 8, 2, 3)(torch.ones(2, 4), torch.tensor([[0], [1]]))
