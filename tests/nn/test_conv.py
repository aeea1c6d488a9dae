"""The layer: against GAT, against Eq. 1 to 6, and its switches one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATConv

from magna import Graph, MAGNAConv
from magna.nn import add_self_loops
from magna.ops import attention_matrix, diffused_attention, geometric_weights
from magna.typing import HeadForm, HopWeights, Memory, Projection
from tests.support.graphs import integers, random_graph, uniform

N, E, C, H = 9, 30, 6, 3
GAT = {"K": 1, "alpha": 0.0, "tanh": False, "projection": "shared", "out_projection": False}


@pytest.fixture
def graph() -> Graph:
    return random_graph(N, E, fed=True)


@pytest.fixture
def x() -> Tensor:
    return uniform(N, C, seed=1)


def make(*sizes: int, **options: Any) -> Any:
    torch.manual_seed(0)
    return MAGNAConv(*sizes, **options).double()


def gat_like(conv: MAGNAConv, **options: Any) -> GATConv:
    """PyG's layer with the weights of ours."""
    gat = GATConv(conv.in_channels, conv.out_channels // conv.heads, conv.heads, **options).double()
    with torch.no_grad():
        gat.lin.weight.copy_(conv.attention.source.weight)
        gat.att_src.copy_(conv.attention.source_vector[None])
        gat.att_dst.copy_(conv.attention.target_vector[None])
        if conv.bias is not None:
            gat.bias.copy_(torch.nn.init.normal_(conv.bias))
    return gat


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_one_hop_without_teleport_is_gat(x: Tensor, loops: bool, bias: bool) -> None:
    edges = random_graph(N, E, fed=True).edge_index
    edges = edges[:, edges[0] != edges[1]]
    conv = make(C, 12, H, **GAT, add_self_loops=loops, bias=bias)
    gat = gat_like(conv, add_self_loops=loops, bias=bias)
    out, (index, attention) = conv(x, edges, return_attention_weights=True)
    expected, (gat_index, gat_attention) = gat(x, edges, return_attention_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(attention, gat_attention)
    assert torch.equal(index, gat_index)


def formula(conv: Any, x: Tensor, graph: Graph) -> Any:
    """Eq. 2 to 6 with dense matrices, from the scores of Eq. 1 (which have another test)."""
    scores = conv.attention(*conv.attention.project(x), graph)
    logits = scores.new_full((conv.heads, graph.num_nodes, graph.num_nodes), -torch.inf)
    logits[:, graph.target, graph.source] = scores.t()  # the graph below has no duplicate edges
    attention = logits.softmax(-1)
    theta = geometric_weights(torch.full((conv.heads,), float(conv.hops.alpha), dtype=x.dtype), conv.hops.K)
    if conv.options.head_form == "full":
        values = x.expand(conv.heads, -1, -1)
    else:
        weight = conv.attention.source.weight if conv.value is None else conv.value.weight
        values = (x @ weight.t()).unflatten(1, (conv.heads, -1)).transpose(0, 1)
    power, z = torch.eye(graph.num_nodes, dtype=x.dtype), torch.zeros_like(values)
    for k in range(conv.hops.K + 1):
        z = z + theta[:, k, None, None] * (power @ values)
        power = attention @ power
    z = z.transpose(0, 1).flatten(1)
    return z @ conv.out.weight.t()


@pytest.mark.parametrize("head_form", ["split", "full"])
@pytest.mark.parametrize("projection", ["separate", "shared"])
@pytest.mark.parametrize(("K", "alpha"), [(1, 0.0), (4, 0.2), (0, 0.5)])
def test_the_layer_is_the_paper(x: Tensor, head_form: HeadForm, projection: Projection, K: int, alpha: float) -> None:
    edges = random_graph(N, E, fed=True).edge_index.unique(dim=1)
    edges = edges[:, torch.randperm(edges.size(1))]
    conv = make(C, 12, H, K=K, alpha=alpha, head_form=head_form, projection=projection)
    graph = Graph.from_edge_index(edges, N)
    torch.testing.assert_close(conv(x, edges), formula(conv, x, graph))


def test_exact_mode_is_the_closed_form(x: Tensor, graph: Graph) -> None:
    conv = make(C, 12, H, alpha=0.2, mode="exact", tolerance=1e-12, out_projection=False)
    out, (_, attention) = conv(x, graph, return_attention_weights=True)
    values = conv.value(x).unflatten(1, (H, -1)).transpose(0, 1)
    expected = (diffused_attention(attention, graph, 0.2) @ values).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("hop_weights", ["alpha", "theta"])
def test_learnt_hop_weights_start_at_the_geometric_ones(x: Tensor, graph: Graph, hop_weights: HopWeights) -> None:
    fixed, learnt = (make(C, 12, H, K=4, alpha=0.3, hop_weights=name) for name in ("fixed", hop_weights))
    torch.testing.assert_close(learnt(x, graph), fixed(x, graph), rtol=1e-6, atol=1e-6)
    learnt(x, graph).square().sum().backward()
    logit = learnt.hops.alpha_logit if hop_weights == "alpha" else learnt.hops.theta_logit
    assert logit is not None and logit.grad is not None and (logit.grad != 0).all()


def test_exact_mode_learns_alpha(x: Tensor, graph: Graph) -> None:
    conv = make(C, 12, H, alpha=0.3, mode="exact", hop_weights="alpha")
    conv(x, graph).square().sum().backward()
    assert conv.hops.alpha_logit is not None and (conv.hops.alpha_logit.grad != 0).all()


def test_attention_is_in_the_callers_order_and_rows_sum_to_one(x: Tensor, graph: Graph) -> None:
    conv = make(C, 12, H)
    _, (edge_index, attention) = conv(x, graph.edge_index, return_attention_weights=True)
    assert torch.equal(edge_index, graph.edge_index)
    torch.testing.assert_close(attention_matrix(attention, graph).sum(-1), torch.ones(H, N, dtype=x.dtype))
    order = torch.randperm(graph.num_edges)
    _, (_, shuffled) = conv(x, graph.edge_index[:, order], return_attention_weights=True)
    torch.testing.assert_close(shuffled, attention[order])


def test_top_k_leaves_k_edges(x: Tensor, graph: Graph) -> None:
    graph = Graph.from_edge_index(graph.edge_index.unique(dim=1), N)  # parallel edges tie
    _, (_, attention) = make(C, 12, H, top_k=2)(x, graph, return_attention_weights=True)
    edges_left = torch.zeros(N, H).index_add(0, graph.target, (attention > 0).float())
    assert edges_left.max() == 2
    _, (_, shared) = make(C, 12, H, top_k=2, top_k_shared=True)(x, graph, return_attention_weights=True)
    assert ((shared > 0).all(1) | (shared == 0).all(1)).all()


def test_masked_edges_are_absent(x: Tensor, graph: Graph) -> None:
    conv, mask = make(C, 12, H), integers(2, graph.num_edges, seed=4).bool()
    smaller = Graph.from_edge_index(graph.edge_index[:, mask], N)
    torch.testing.assert_close(conv(x, graph, edge_mask=mask), conv(x, smaller))


@pytest.mark.parametrize("typed", [False, True])
def test_added_loops_are_the_last_edges_and_a_relation_of_their_own(x: Tensor, graph: Graph, typed: bool) -> None:
    types = integers(2, graph.num_edges, seed=5) if typed else None
    conv = make(C, 12, H, num_relations=2 if typed else None, add_self_loops=True)
    _, (edge_index, attention) = conv(x, graph.edge_index, types, return_attention_weights=True)
    assert torch.equal(edge_index[:, : graph.num_edges], graph.edge_index)
    added = edge_index[:, graph.num_edges :]
    assert torch.equal(added[0], added[1])
    assert torch.equal(added[0], (~graph.has_self_loop()).nonzero().squeeze(1))
    assert attention.size(0) == edge_index.size(1)
    if typed:
        assert conv.attention.relation_table is not None and conv.attention.relation_table.size(0) == 3
    mask = torch.zeros(graph.num_edges, dtype=torch.bool)
    _, (_, masked) = conv(x, graph.edge_index, types, edge_mask=mask, return_attention_weights=True)
    assert (masked[: graph.num_edges] == 0).all() and (masked[graph.num_edges :] == 1).all()


def test_loops_are_added_once_per_graph(graph: Graph) -> None:
    assert add_self_loops(graph) is add_self_loops(graph)


DROPOUTS = ["dropout", "feature_dropout", "edge_dropout"]


@pytest.mark.parametrize("rate", DROPOUTS)
def test_dropout_is_drawn_in_training_alone_and_from_the_seed(x: Tensor, graph: Graph, rate: str) -> None:
    conv = make(C, 12, H, K=3, **{rate: 0.5})
    torch.manual_seed(1)
    first, second = conv(x, graph), conv(x, graph)
    torch.manual_seed(1)
    assert torch.equal(conv(x, graph), first)
    assert not torch.equal(first, second)
    torch.testing.assert_close(conv.eval()(x, graph), make(C, 12, H, K=3)(x, graph))


def test_edge_dropout_follows_its_own_seed(x: Tensor, graph: Graph) -> None:
    conv = make(C, 12, H, edge_dropout=0.5)
    seed = torch.tensor([5])
    weights = [conv(x, graph, edge_seed=seed, return_attention_weights=True)[1][1] for _ in range(2)]
    assert torch.equal(*weights)
    assert (weights[0] == 0).any()


def test_edge_pairs_drops_both_directions(x: Tensor) -> None:
    pairs = torch.combinations(torch.arange(N)).t()
    edges = torch.cat([pairs, pairs.flip(0)], dim=1)
    half = pairs.size(1)

    def dropped(edge_pairs: bool) -> Any:
        torch.manual_seed(0)
        conv = make(C, 12, H, edge_dropout=0.5, edge_pairs=edge_pairs)
        return conv(x, edges, return_attention_weights=True)[1][1][:, 0] == 0

    together, apart = dropped(True), dropped(False)
    assert torch.equal(together[:half], together[half:])
    assert not torch.equal(apart[:half], apart[half:])


@pytest.mark.parametrize("head_form", ["split", "full"])
@pytest.mark.parametrize("hop_weights", ["fixed", "alpha", "theta"])
def test_gradients_reach_every_parameter(x: Tensor, graph: Graph, head_form: HeadForm, hop_weights: HopWeights) -> None:
    types = integers(3, graph.num_edges, seed=2)
    conv = make(C, 12, H, head_form=head_form, hop_weights=hop_weights, num_relations=3, bias=True)
    conv(x, graph.edge_index, types).square().sum().backward()
    for name, parameter in conv.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("memory", ["save", "recompute"])
def test_memory_does_not_change_the_result(x: Tensor, graph: Graph, memory: Memory) -> None:
    conv, auto = make(C, 12, H, memory=memory), make(C, 12, H)
    torch.testing.assert_close(conv(x, graph), auto(x, graph))


@pytest.mark.parametrize("edges", [torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[0], [0]])])
def test_small_and_empty_graphs(edges: Tensor) -> None:
    for nodes in (1, 3):
        assert make(C, 12, H)(uniform(nodes, C, seed=0), edges).isfinite().all()
    if not edges.numel():
        assert make(C, 12, H)(uniform(0, C, seed=0), edges).shape == (0, 12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "out_channels is 12; allowed: a multiple of heads, 5"),
        ({"heads": 0}, "heads is 0; allowed"),
        ({"K": -1}, "K is -1; allowed: 0 to 4,096"),
        ({"K": 1.5}, "K is 1.5; allowed"),
        ({"alpha": -0.1}, "alpha is -0.1; allowed: 0 to 1"),
        ({"alpha": 1.1}, "alpha is 1.1; allowed: 0 to 1"),
        ({"alpha": 0.0, "mode": "exact"}, "alpha is 0.0; allowed: above 0"),
        ({"alpha": 0.0, "hop_weights": "alpha"}, "alpha is 0.0; allowed: above 0 and below 1 with hop_weights 'alpha'"),
        (
            {"hop_weights": "theta", "mode": "exact"},
            "hop_weights is 'theta'; allowed: 'fixed', 'alpha'; try mode 'truncated'",
        ),
        ({"feature_dropout": 0.5, "mode": "exact"}, "feature_dropout is 0.5; allowed: 0 with mode 'exact'"),
        ({"edge_dropout": 1.0}, "edge_dropout is 1.0; allowed: 0 or more and below 1"),
        ({"top_k": 0}, "top_k is 0; allowed"),
        ({"tolerance": 0.0, "mode": "exact"}, "tolerance is 0.0; allowed"),
        ({"mode": "whole"}, "mode is 'whole'; allowed: 'truncated', 'exact'"),
        ({"memory": "none"}, "memory is 'none'; allowed"),
        ({"head_form": "wide"}, "head_form is 'wide'; allowed"),
        ({"head_form": "full", "out_projection": False, "heads": 3}, r"out_channels is 12; allowed: 18"),
        ({"num_relations": -1}, "num_relations is -1; allowed"),
        ({"alpha": float("nan")}, "alpha is nan; allowed: a finite number"),
        ({"mode": "exact", "K": 3}, "K is 3; allowed: only with mode 'truncated'"),
        ({"top_k_shared": True}, "top_k_shared is True; allowed: only with top_k"),
        ({"attention_dropout": 0.5}, "option is 'attention_dropout'; allowed: dropout, its new name"),
        ({"feature_droput": 0.5}, "option is 'feature_droput'; did you mean 'feature_dropout'"),
        ({"concat": False}, "concat is False; allowed: no such option: W_o joins the heads"),
        ({"heads": 10**9}, "heads is 1000000000; allowed: a whole number from 1 to 4096"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAGNAConv(C, 12, **options)


@pytest.mark.parametrize(
    ("features", "edges", "message"),
    [
        (torch.zeros(N, C + 1), None, r"x is torch.float32 \[9, 7\] on cpu; allowed: \[num_nodes, 6\]"),
        (torch.zeros(C), None, r"x is torch.float32 \[6\] on cpu; allowed"),
        (
            (torch.zeros(N, C), torch.zeros(N, C)),
            None,
            r"x is <class 'tuple'>; allowed: .*one set of nodes.*to_homogeneous\(\)",
        ),
        (torch.zeros(N, C, dtype=torch.float64), None, "x is torch.float64 .*; allowed: torch.float32, as the w"),
        (torch.zeros(N, C, dtype=torch.int64), None, "x is torch.int64 .*; allowed: a floating type"),
        (torch.zeros(N, C, device="meta"), None, "x is .* on meta; allowed: a tensor on cpu, as the edges"),
        (torch.zeros(3, C), None, "an entry of edge_index is 8; allowed: 0 to 2"),
        (torch.zeros(N, C), torch.zeros(2, 3), "edge_index is torch.float32 .*; allowed: torch.int64"),
        (torch.zeros(N, C), torch.zeros(3, 2, dtype=torch.int64), r"edge_index is torch.int64 \[3, 2\] .*; allowed"),
        (torch.zeros(N, C), [[0], [1]], r"edge_index is \[\[0\], \[1\]\]; allowed: a torch.Tensor"),
    ],
)
def test_bad_input(graph: Graph, features: Any, edges: Any, message: str) -> None:
    conv = MAGNAConv(C, 12, H)
    with pytest.raises(ValueError, match=message):
        conv(features, graph.edge_index if edges is None else edges)


def test_no_edges_given(graph: Graph) -> None:
    with pytest.raises(ValueError, match="edge_index is None; allowed"):
        MAGNAConv(C, 12, H)(torch.zeros(N, C), None)


def test_autocast_to_float16_says_what_to_try(graph: Graph) -> None:
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(ValueError, match=r"try .*dtype=torch.bfloat16"):
        MAGNAConv(C, 12, H)(torch.zeros(N, C), graph)


def test_a_graph_of_another_size_is_refused(graph: Graph) -> None:
    with pytest.raises(ValueError, match="the number of rows of x is 3; allowed: 9"):
        MAGNAConv(C, 12, H)(torch.zeros(3, C), graph)


@pytest.mark.parametrize("loops", [False, True])
def test_a_mask_of_another_kind_is_refused_in_the_callers_numbers(x: Tensor, graph: Graph, loops: bool) -> None:
    conv, E = make(C, 12, H, add_self_loops=loops), graph.num_edges
    allowed = rf" .*; allowed: torch\.bool \[{E}\] or \[{E}, {H}\]"
    with pytest.raises(ValueError, match=rf"edge_mask is torch\.bool \[3\]{allowed}"):
        conv(x, graph, edge_mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=rf"edge_mask is torch\.float32 \[{E}\]{allowed}"):
        conv(x, graph, edge_mask=torch.ones(E))
    with pytest.raises(ValueError, match=r"edge_mask is .*; allowed: torch\.bool"):
        conv(x, graph, edge_mask=[True] * E)


@pytest.mark.parametrize("loops", [False, True])
def test_inference_mode_leaves_nothing_behind_that_training_cannot_use(loops: bool) -> None:
    conv = MAGNAConv(4, 4, heads=2, K=3, num_relations=2, add_self_loops=loops)
    x, edge_index, edge_type = torch.randn(3, 4), torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 1, 1])
    with torch.inference_mode():
        conv(x, edge_index, edge_type)
    conv(x, edge_index, edge_type).sum().backward()
    assert conv.value is not None and conv.value.weight.grad is not None
