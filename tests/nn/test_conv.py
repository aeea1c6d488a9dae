"""The layer: against GAT, against Eq. 1 to 6, and its switches one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GATConv

from magna import Graph, MAGNAConv
from magna.data import load_digits
from magna.nn import add_self_loops
from magna.ops import attention_matrix, diffused_attention, geometric_weights
from magna.typing import HeadForm, Projection
from tests.support.graphs import integers, random_graph, uniform

N, E, C, H = 9, 30, 6, 3
GRAPH, X = random_graph(N, E, fed=True), uniform(N, C, seed=1)
GAT = {"K": 1, "alpha": 0.0, "tanh": False, "projection": "shared", "out_projection": False}
PAPER = {"out_projection": True, "add_self_loops": False, "bias": False}  # as in a block
BLOCK = PAPER | {"K": 6, "alpha": 0.1}


def make(*sizes: int, **options: Any) -> Any:
    torch.manual_seed(0)
    return MAGNAConv(*sizes, **PAPER | options).double()


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
def test_one_hop_without_teleport_is_gat(loops: bool, bias: bool) -> None:
    edges = random_graph(N, E, fed=True).edge_index
    edges = edges[:, edges[0] != edges[1]]
    conv = make(C, 12, H, **GAT, add_self_loops=loops, bias=bias)
    gat = gat_like(conv, add_self_loops=loops, bias=bias)
    out, (index, attention) = conv(X, edges, return_attention_weights=True)
    expected, (gat_index, gat_attention) = gat(X, edges, return_attention_weights=True)
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
def test_the_layer_is_the_paper(head_form: HeadForm, projection: Projection, K: int, alpha: float) -> None:
    edges = random_graph(N, E, fed=True).edge_index.unique(dim=1)
    edges = edges[:, torch.randperm(edges.size(1))]
    conv = make(C, 12, H, K=K, alpha=alpha, head_form=head_form, projection=projection)
    torch.testing.assert_close(conv(X, edges), formula(conv, X, Graph.from_edge_index(edges, N)))


def test_exact_mode_is_the_closed_form() -> None:
    conv = make(C, 12, H, alpha=0.2, mode="exact", tolerance=1e-12, out_projection=False)
    out, (_, attention) = conv(X, GRAPH, return_attention_weights=True)
    values = conv.value(X).unflatten(1, (H, -1)).transpose(0, 1)
    expected = (diffused_attention(attention, GRAPH, 0.2) @ values).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "options",
    [{"hop_weights": "alpha", "K": 4}, {"hop_weights": "theta", "K": 4}, {"hop_weights": "alpha", "mode": "exact"}],
)
def test_learnt_hop_weights_start_at_the_geometric_ones(options: dict[str, Any]) -> None:
    learnt, fixed = (make(C, 12, H, alpha=0.3, **options | change) for change in ({}, {"hop_weights": "fixed"}))
    torch.testing.assert_close(learnt(X, GRAPH), fixed(X, GRAPH), rtol=1e-6, atol=1e-6)
    learnt(X, GRAPH).square().sum().backward()
    logit = learnt.hops.alpha_logit if options["hop_weights"] == "alpha" else learnt.hops.theta_logit
    assert (logit.grad != 0).all()


def test_attention_is_in_the_callers_order_and_rows_sum_to_one() -> None:
    conv = make(C, 12, H)
    _, (edge_index, attention) = conv(X, GRAPH.edge_index, return_attention_weights=True)
    assert torch.equal(edge_index, GRAPH.edge_index)
    torch.testing.assert_close(attention_matrix(attention, GRAPH).sum(-1), torch.ones(H, N, dtype=X.dtype))
    order = torch.randperm(GRAPH.num_edges)
    _, (_, shuffled) = conv(X, GRAPH.edge_index[:, order], return_attention_weights=True)
    torch.testing.assert_close(shuffled, attention[order])


def test_top_k_leaves_k_edges() -> None:
    graph = Graph.from_edge_index(GRAPH.edge_index.unique(dim=1), N)  # parallel edges tie
    attention, shared = (
        make(C, 12, H, top_k=2, top_k_shared=shared)(X, graph, return_attention_weights=True)[1][1]
        for shared in (False, True)
    )
    assert torch.zeros(N, H).index_add(0, graph.target, (attention > 0).float()).max() == 2
    assert ((shared > 0).all(1) | (shared == 0).all(1)).all()


@pytest.mark.parametrize("typed", [False, True])
def test_added_loops_are_the_last_edges_and_a_relation_of_their_own(typed: bool) -> None:
    types = integers(2, GRAPH.num_edges, seed=5) if typed else None
    conv = make(C, 12, H, num_relations=2 if typed else None, add_self_loops=True)
    _, (edge_index, attention) = conv(X, GRAPH.edge_index, types, return_attention_weights=True)
    assert torch.equal(edge_index[:, : GRAPH.num_edges], GRAPH.edge_index)
    missing = (~GRAPH.has_self_loop()).nonzero().squeeze(1)
    assert torch.equal(edge_index[:, GRAPH.num_edges :], missing.expand(2, -1))
    assert attention.size(0) == edge_index.size(1)
    assert not typed or conv.attention.relation_table.size(0) == 3
    mask = torch.zeros(GRAPH.num_edges, dtype=torch.bool)
    _, (_, masked) = conv(X, GRAPH.edge_index, types, edge_mask=mask, return_attention_weights=True)
    assert (masked[: GRAPH.num_edges] == 0).all() and (masked[GRAPH.num_edges :] == 1).all()
    assert add_self_loops(GRAPH) is add_self_loops(GRAPH)


def test_edge_pairs_drops_both_directions() -> None:
    pairs = torch.combinations(torch.arange(N)).t()
    edges = torch.cat([pairs, pairs.flip(0)], dim=1)
    half = pairs.size(1)

    def dropped(edge_pairs: bool) -> Any:
        torch.manual_seed(0)
        conv = make(C, 12, H, edge_dropout=0.5, edge_pairs=edge_pairs)
        return conv(X, edges, return_attention_weights=True)[1][1][:, 0] == 0

    together, apart = dropped(True), dropped(False)
    assert torch.equal(together[:half], together[half:])
    assert not torch.equal(apart[:half], apart[half:])


@pytest.mark.parametrize("edges", [torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[0], [0]])])
def test_small_and_empty_graphs(edges: Tensor) -> None:
    for nodes in (1, 3) if edges.numel() else (0, 1, 3):
        out = make(C, 12, H)(uniform(nodes, C, seed=0), edges)
        assert out.shape == (nodes, 12) and out.isfinite().all()


@pytest.mark.parametrize(
    ("features", "edges", "message"),
    [
        (torch.zeros(N, C + 1), GRAPH, r"x is torch.float32 \[9, 7\] on cpu; allowed: \[num_nodes, 6\]"),
        (torch.zeros(C), GRAPH, r"x is torch.float32 \[6\] on cpu; allowed"),
        (2 * (torch.zeros(N, C),), GRAPH, r"x is <class 'tuple'>; allowed: .*one set of nodes.*to_homogeneous\(\)"),
        (torch.zeros(N, C, dtype=torch.float64), GRAPH, "x is torch.float64 .*; allowed: torch.float32, as the w"),
        (torch.zeros(N, C, dtype=torch.int64), GRAPH, "x is torch.int64 .*; allowed: a floating type"),
        (torch.zeros(N, C, device="meta"), GRAPH.edge_index, "x is .* on meta; allowed: a tensor on cpu, as the edges"),
        (torch.zeros(3, C), GRAPH, "the number of rows of x is 3; allowed: 9"),
        (torch.zeros(N, C), torch.zeros(2, 3), "edge_index is torch.float32 .*; allowed: torch.int64"),
        (torch.zeros(N, C), [[0], [1]], r"edge_index is \[\[0\], \[1\]\]; allowed: a torch.Tensor"),
        (torch.zeros(N, C), None, "edge_index is None; allowed"),
    ],
)
def test_bad_input(features: Any, edges: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAGNAConv(C, 12, H)(features, edges)


def test_autocast_to_float16_says_what_to_try() -> None:
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(ValueError, match=r"try .*dtype=torch.bfloat16"):
        MAGNAConv(C, 12, H)(torch.zeros(N, C), GRAPH)


@pytest.mark.parametrize("loops", [False, True])
def test_a_mask_of_another_kind_is_refused_in_the_callers_numbers(loops: bool) -> None:
    conv, E = make(C, 12, H, add_self_loops=loops), GRAPH.num_edges
    allowed = rf" .*; allowed: torch\.bool \[{E}\] or \[{E}, {H}\]"
    with pytest.raises(ValueError, match=rf"edge_mask is torch\.bool \[3\]{allowed}"):
        conv(X, GRAPH, edge_mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=rf"edge_mask is torch\.float32 \[{E}\]{allowed}"):
        conv(X, GRAPH, edge_mask=torch.ones(E))
    with pytest.raises(ValueError, match=r"edge_mask is .*; allowed: torch\.bool"):
        conv(X, GRAPH, edge_mask=[True] * E)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_left_that_training_cannot_use(mode: Any, loops: bool) -> None:
    conv = MAGNAConv(4, 4, heads=2, K=3, num_relations=2, edge_dropout=0.5, add_self_loops=loops)
    call = torch.randn(3, 4), torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 1, 1])
    with mode():
        assert conv(*call).isfinite().all()
    conv(*call).sum().backward()
    assert conv.value is not None and conv.value.weight.grad is not None


@pytest.mark.slow
def test_the_textbook_gat_learns_no_worse_with_this_layer() -> None:
    """Digits with two random edges beside each edge: dropout 0.6, and too few epochs for a layer that starts slowly."""
    digits = load_digits()
    drawn = torch.randint(
        digits.num_nodes, (2, 2 * digits.edge_index.size(1)), generator=torch.Generator().manual_seed(0)
    )
    data = replace(digits, edge_index=torch.cat([digits.edge_index, drawn], 1)).with_both_directions()
    graph = Graph.from_edge_index(data.edge_index, data.num_nodes)
    assert data.x is not None

    def accuracy(**options: Any) -> float:
        torch.manual_seed(0)
        first, second = (MAGNAConv(*sizes, dropout=0.6, **options) for sizes in ((64, 64, 8), (64, 10)))
        optimiser = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.02, weight_decay=5e-4)

        def logits(training: bool) -> Any:
            first.train(training), second.train(training)
            h = F.elu(first(F.dropout(data.x, 0.6, training), graph))  # type: ignore[arg-type]
            return second(F.dropout(h, 0.6, training), graph)

        for _ in range(60):
            loss = F.cross_entropy(logits(True)[data.train], data.y[data.train])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return float((logits(False).argmax(1) == data.y)[data.valid].float().mean())

    defaults, gat, paper = (accuracy(**form) for form in ({}, GAT, BLOCK))
    assert defaults > gat - 0.005
    assert defaults > paper + 0.1
