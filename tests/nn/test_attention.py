"""Edge attention against Eq. 1, edge by edge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from magna import EdgeAttention, Graph
from magna.nn.attention import graph_at_door
from magna.typing import Norm, Projection
from tests.support.graphs import integers, random_graph, uniform
from tests.support.measuring import saved_tensors

N, E, R, C = 6, 15, 3, 5
EDGES, X, TYPES = random_graph(N, E).edge_index, uniform(N, C, seed=1), integers(R, E, seed=2)


def scores(module: EdgeAttention, x: Tensor, edges: Any, edge_type: Any = None, relation: Any = None) -> Any:
    graph = graph_at_door(x, edges, edge_type, module.source.in_features, module.num_relations)
    return module(*module.project(x), graph, relation)


def by_the_paper(
    module: EdgeAttention, x: Tensor, edge_index: Tensor, edge_type: Any = None, relation: Any = None
) -> Tensor:
    """Eq. 1 as it is written: a product with a concatenation for each edge and head."""
    target = module.source if module.target is None else module.target
    squash = torch.tanh if module.options.tanh else (lambda value: value)
    rows = []
    for e, (i, j) in enumerate(edge_index.t().tolist()):
        row = []
        for head in range(module.heads):
            part = slice(head * module.head_channels, (head + 1) * module.head_channels)
            pieces = [module.source.weight[part] @ x[i], target.weight[part] @ x[j]]
            vectors = [module.source_vector[head], module.target_vector[head]]
            if edge_type is not None:
                pieces.append(module.relation.weight[part] @ module.relation_norm(relation[edge_type[e]]))
                vectors.append(module.relation_vector[head])
            row.append(leaky_relu(torch.cat(vectors) @ squash(torch.cat(pieces)), float(module.negative_slope)))
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("projection", ["separate", "shared"])
@pytest.mark.parametrize("tanh", [True, False])
def test_scores_are_eq_1(projection: Projection, tanh: bool) -> None:
    module = EdgeAttention(C, 4, heads=2, projection=projection, tanh=tanh, negative_slope=0.3).double()
    torch.testing.assert_close(scores(module, X, EDGES), by_the_paper(module, X, EDGES))


@pytest.mark.parametrize("relation_norm", ["none", "layer", "unbiased"])
@pytest.mark.parametrize("external", [True, False])
def test_typed_scores_are_eq_1(relation_norm: Norm, external: bool) -> None:
    options: dict[str, Any] = {"relation_channels": 7, "relation_embedding": not external}
    module = EdgeAttention(C, 4, heads=2, num_relations=R, relation_norm=relation_norm, **options).double()
    relation = uniform(R, 7, seed=3) if external else None
    expected = by_the_paper(module, X, EDGES, TYPES, relation if external else module.relation_table)
    torch.testing.assert_close(scores(module, X, EDGES, TYPES, relation), expected)
    torch.testing.assert_close(scores(module, X, Graph.from_edge_index(EDGES, N, TYPES, R), None, relation), expected)


def test_the_scale_is_a_factor_on_the_scores() -> None:
    module, scaled = (EdgeAttention(C, 4, heads=2, num_relations=R, score_scale=scale).double() for scale in (1.0, 0.1))
    scaled.load_state_dict(module.state_dict())
    torch.testing.assert_close(scores(scaled, X, EDGES, TYPES), 0.1 * scores(module, X, EDGES, TYPES))


def test_no_matrix_per_edge_is_kept() -> None:
    edges = random_graph(10, 5000).edge_index
    module = EdgeAttention(16, 64, heads=2, num_relations=4)
    graph = Graph.from_edge_index(edges, 10, integers(4, 5000, seed=0), 4)
    saved = saved_tensors(lambda: scores(module, torch.randn(10, 16), graph))
    assert max(tensor.numel() for tensor in saved if tensor.is_floating_point()) <= 5000 * 2


TYPED, ONE_TYPE = {"num_relations": R}, {"edge_type": torch.zeros(E, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("options", "call", "message"),
    [
        ({}, ONE_TYPE, "edge_type is torch.int64 .*; allowed: only with num_relations"),
        ({}, {"relation": torch.zeros(R, C)}, "relation is torch.float32 .*; allowed: only with num_relations"),
        (TYPED, {}, "edge_type is None; allowed: one of 0 to 2"),
        (TYPED, ONE_TYPE | {"relation": torch.zeros(2, C)}, r"relation is .* \[2, 5\] on cpu; allowed: \[3, 5\]"),
        (
            TYPED,
            ONE_TYPE | {"relation": torch.zeros(R, C, device="meta")},
            "relation is .* on meta; allowed: .* on cpu",
        ),
        (TYPED | {"relation_embedding": False}, ONE_TYPE, "relation is None; allowed"),
    ],
)
def test_bad_types_at_the_door(options: dict[str, Any], call: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scores(EdgeAttention(C, 4, **options), torch.zeros(N, C), EDGES, **call)


def test_a_graph_of_other_relations_is_refused() -> None:
    graph = Graph.from_edge_index(torch.tensor([[0], [1]]), N, torch.tensor([0]), num_relations=1)
    with pytest.raises(ValueError, match="num_relations of the graph is 1; allowed: 3"):
        scores(EdgeAttention(C, 4, num_relations=R), torch.zeros(N, C), graph)
