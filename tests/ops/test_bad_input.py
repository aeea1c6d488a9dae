"""Bad input gives one ValueError that names the argument, its value, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph import Graph
from magna.ops import attention_diffusion, dropout, edge_scores, edge_softmax, head_scores
from magna.typing import Backend
from tests.support.operators import Options
from tests.support.running import device_of

Cases = list[tuple[Options, str]]
EDGES = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
GRAPH, TYPED = Graph.from_edge_index(EDGES, 3), Graph.from_edge_index(EDGES, 3, torch.tensor([0, 1, 1, 0]))
X, ATTENTION, NODES = torch.ones(3, 2, 5), torch.ones(4, 2), torch.ones(3, 2)

NO_ALPHA = {"K": None, "alpha": None}
PAIRS = {"edge_dropout": 0.5, "seed": 1}
EXACT = {"mode": "exact", "K": None}

# Changed arguments and what the message must say.
DIFFUSION: Cases = [
    ({"x": torch.ones(3, 5)}, r"x is \S+ \[3, 5\] on \S+; allowed: \[3, heads, width\]"),
    ({"x": torch.ones(4, 2, 5)}, r"x is \S+ \[4, 2, 5\] on \S+; allowed: \[3, heads, width\]"),
    ({"x": torch.ones(3, 2, 0)}, r"x is \S+ \[3, 2, 0\] on \S+; allowed: \[3, heads, width\], both 1 and above"),
    ({"x": X.half()}, "x is torch.float16 .*; allowed: torch.float64, torch.float32, torch.bfloat16"),
    ({"x": X.numpy()}, "x is .*; allowed: a torch.Tensor"),
    ({"attention": [[1.0, 1.0]] * 4}, "attention is .*; allowed: a torch.Tensor"),
    ({"graph": EDGES}, r"graph is .*; allowed: a Graph; try Graph.from_edge_index"),
    ({"x": X.to("meta")}, r"x is .* on meta; allowed: .* on "),
    ({"attention": torch.ones(5, 2)}, r"attention is \S+ \[5, 2\] on \S+; allowed: \[4, 2\]"),
    ({"attention": torch.ones(4, 3)}, r"attention is \S+ \[4, 3\] on \S+; allowed: \[4, 2\]"),
    ({"attention": ATTENTION.to("meta")}, "attention is .* on meta; allowed: .* on "),
    ({"attention": ATTENTION.long()}, "attention is torch.int64 .*; allowed: torch.float64"),
    ({"K": -1}, "K is -1; allowed: an int, 0 and above"),
    ({"K": 2.0}, "K is 2.0; allowed: an int, 0 and above"),
    ({"K": True}, "K is True; allowed: an int"),
    ({"K": None}, "K is None; allowed: an int"),
    ({"alpha": -0.1}, "alpha is -0.1; allowed: 0 to 1"),
    ({"alpha": 1.5}, "alpha is 1.5; allowed: 0 to 1"),
    ({"alpha": math.nan}, "alpha is nan; allowed: 0 to 1"),
    ({"alpha": None}, "alpha is None; allowed: 0 to 1, .*or theta"),
    ({"alpha": "0.1"}, r"alpha is '0.1'; allowed: 0 to 1, a number or a tensor \[2\]"),
    ({"alpha": torch.tensor([0.5, 1.5])}, "alpha is 1.5; allowed: 0 to 1"),
    ({"alpha": torch.tensor([-0.5, 0.5])}, "alpha is -0.5; allowed: 0 to 1"),
    ({"alpha": torch.ones(3)}, r"alpha is \S+ \[3\] on \S+; allowed: a number or \[2\]"),
    ({"alpha": torch.ones(2).to("meta")}, "alpha is .* on meta; allowed: .* on "),
    ({"theta": torch.ones(2, 3)}, "theta is .*; allowed: .*theta alone, or K and alpha"),
    (NO_ALPHA | {"theta": torch.ones(3, 4)}, r"theta is \S+ \[3, 4\] on \S+; allowed: \[2, K \+ 1\]"),
    (NO_ALPHA | {"theta": torch.ones(2, 0)}, r"theta is \S+ \[2, 0\] on \S+; allowed: \[2, K \+ 1\]"),
    (NO_ALPHA | {"theta": [0.5, 0.5]}, "theta is .*; allowed: a torch.Tensor"),
    (NO_ALPHA | {"theta": torch.ones(2, 3).to("meta")}, "theta is .* on meta; allowed: .* on "),
    ({"dropout": 1.0, "seed": 1}, "dropout is 1.0; allowed: 0 up to, but not including, 1"),
    ({"dropout": 1 - 1e-10, "seed": 1}, "dropout is 0.9999999999; allowed: 0 up to"),
    ({"dropout": "0.1", "seed": 1}, "dropout is '0.1'; allowed: 0 up to"),
    ({"dropout": -0.1, "seed": 1}, "dropout is -0.1; allowed: 0 up to"),
    ({"feature_dropout": math.nan, "seed": 1}, "feature_dropout is nan; allowed: 0 up to"),
    ({"feature_dropout": torch.zeros(3)}, r"feature_dropout is \S+ \[3\] on \S+; allowed: a number or \[2\]"),
    ({"feature_dropout": torch.tensor([0.5, 1.0]), "seed": 1}, "feature_dropout is 1.0; allowed: 0 up to"),
    ({"feature_dropout": torch.zeros(2, 3)}, r"\[2, 3\] on .*: a number or \[2\], .*or \[K, 2\], one per hop"),
    ({"feature_dropout": torch.zeros(9, 2), "seed": 1}, "feature_dropout is .*; allowed: 2 rows, one per hop"),
    ({"dropout": torch.zeros(2, 2)}, r"dropout is \S+ \[2, 2\] on \S+; allowed: a number or \[2\], one per head$"),
    ({"dropout": torch.tensor([-0.5, 0.0]), "seed": 1}, "dropout is -0.5; allowed: 0 up to"),
    ({"dropout": 0.5}, "seed is None; allowed: an int of 64 bits or an int64 tensor .* is above 0"),
    ({"dropout": 0.5, "seed": 1.5}, "seed is 1.5; allowed: an int"),
    ({"dropout": 0.5, "seed": 2**64}, "seed is 18446744073709551616; allowed: an int"),
    ({"dropout": 0.5, "seed": torch.tensor([1.0])}, "seed is torch.float32 .*allowed: an int of 64 bits or an int64"),
    ({"dropout": 0.5, "seed": torch.tensor([1, 2])}, r"seed is torch.int64 \[2\] .*allowed"),
    ({"mode": "implicit"}, "mode is 'implicit'; allowed: 'truncated', 'exact'"),
    ({"memory": "none"}, "memory is 'none'; allowed: 'save', 'recompute', 'auto'"),
    ({"backend": "gpu"}, "backend is 'gpu'; allowed: 'auto', 'reference', 'cpu', 'triton'"),
    ({"mode": "exact"}, "mode is 'exact'; allowed: .*takes alpha alone"),
    (EXACT | {"alpha": 0.0}, "alpha is 0.0; allowed: above 0 and at most 1"),
    (EXACT | {"tolerance": 0.0}, "tolerance is 0.0; allowed: above 0 and below 2"),
    (EXACT | {"tolerance": math.nan}, "tolerance is nan; allowed: above 0"),
    (EXACT | {"dropout": 0.5, "seed": 1}, "mode is 'exact'; allowed: .*takes alpha alone"),
]

SOFTMAX: Cases = [
    ({"scores": torch.zeros(5, 2)}, r"scores is \S+ \[5, 2\] on \S+; allowed: \[4, heads\], a row per edge"),
    ({"scores": torch.zeros(4)}, r"scores is \S+ \[4\] on \S+; allowed: \[4, heads\]"),
    ({"scores": torch.zeros(4, 2).bfloat16()}, r"scores is torch.bfloat16 .*; allowed: torch.float32, .*\.float\(\)"),
    ({"scores": torch.zeros(4, 2).to("meta")}, "scores is .* on meta; allowed: .* on "),
    ({"scores": torch.tensor([[0, 0], [0, math.nan], [0, 0], [0, 0]])}, r"scores\[1, 1\] is nan; allowed: finite"),
    ({"scores": torch.tensor([[0, 0], [0, 0], [math.inf, 0], [0, 0]])}, r"scores\[2, 0\] is inf; allowed: finite"),
    ({"mask": torch.ones(4)}, r"mask is torch.float32 \[4\] .*; allowed: torch.bool \[4\] or \[4, 2\]"),
    ({"mask": torch.ones(3, dtype=torch.bool)}, r"mask is torch.bool \[3\] .*; allowed: torch.bool \[4\] or \[4, 2\]"),
    ({"mask": [True] * 4}, "mask is .*; allowed: torch.bool"),
    ({"mask": torch.ones(4, dtype=torch.bool).to("meta")}, "mask is .* on meta; allowed: .* on "),
    ({"scores": [[0.0, 0.0]] * 4}, "scores is .*; allowed: a torch.Tensor"),
    ({"graph": EDGES}, "graph is .*; allowed: a Graph"),
    ({"edge_dropout": 1.0, "seed": 1}, "edge_dropout is 1.0; allowed: 0 up to, but not including, 1"),
    ({"edge_dropout": 0.5}, "seed is None; allowed: .*, as edge_dropout is above 0"),
    (PAIRS | {"edge_pairs": torch.zeros(3).long()}, r"edge_pairs .*\[3\] .*; allowed: .*\[4\]"),
    (PAIRS | {"edge_pairs": torch.zeros(4)}, "edge_pairs .*torch.float32.*; allowed: .*int64"),
    (PAIRS | {"edge_pairs": "yes"}, r"edge_pairs is 'yes'; .*\[4\] .*, or True or False"),
    (PAIRS | {"edge_pairs": torch.zeros(4).long().to("meta")}, "edge_pairs is .* on meta; allowed: .* on "),
    ({"top_k": 0}, "top_k is 0; allowed: an int, 1 and above, or None"),
    ({"top_k": 1.5}, "top_k is 1.5; allowed: an int"),
    ({"backend": "gpu"}, "backend is 'gpu'; allowed"),
]

SCORES: Cases = [
    ({"source": torch.ones(4, 2)}, r"source is \S+ \[4, 2\] on \S+; allowed: \[3, heads\]"),
    ({"target": torch.ones(3, 4)}, r"target is \S+ \[3, 4\] on \S+; allowed: .*\[3, 2\]"),
    ({"source": NODES.to("meta")}, "source is .* on meta; allowed: .* on "),
    ({"target": NODES.double()}, "target is torch.float64 .*; allowed: torch.float32"),
    ({"source": NODES.bfloat16()}, "source is torch.bfloat16 .*; allowed: torch.float32, torch.float64"),
    ({"relation": torch.ones(5, 2)}, "edge_type is None; allowed: a type on each edge"),
    ({"relation": torch.ones(5, 3), "graph": TYPED}, r"relation is \S+ \[5, 3\] on \S+; allowed: .*\[2, 2\]"),
    ({"relation": torch.ones(2, 2).to("meta"), "graph": TYPED}, "relation is .* on meta; allowed: .* on "),
    ({"negative_slope": -0.1}, "negative_slope is -0.1; allowed: 0 and above"),
    ({"negative_slope": math.nan}, "negative_slope is nan; allowed: 0 and above"),
    ({"negative_slope": "0.2"}, "negative_slope is '0.2'; allowed: 0 and above"),
    ({"negative_slope": torch.ones(2)}, r"negative_slope is \S+ \[2\] on \S+; allowed: a number, or a tensor of one"),
    ({"source": [[1.0, 1.0]] * 3}, "source is .*; allowed: a torch.Tensor"),
    ({"graph": EDGES}, "graph is .*; allowed: a Graph"),
]

# The vector has [heads, width] of x.
VECTOR: Cases = [
    ({"x": torch.ones(3, 5)}, r"x is \S+ \[3, 5\] on \S+; allowed: \[num_nodes, heads, width\]"),
    ({"x": X.half()}, "x is torch.float16 .*; allowed: torch.float64"),
    ({"x": X.numpy()}, "x is .*; allowed: a torch.Tensor"),
    ({"vector": torch.ones(2, 4)}, r"vector is \S+ \[2, 4\] on \S+; allowed: \[2, 5\]"),
    ({"vector": torch.ones(2, 5).to("meta")}, "vector is .* on meta; allowed: .* on "),
]

DROPOUT: Cases = [({"p": p}, f"p is {p}; allowed: 0 up to") for p in (1.0, -0.5, math.nan)]

GOOD: dict[Callable[..., Tensor], Options] = {
    attention_diffusion: {"graph": GRAPH, "x": X, "attention": ATTENTION, "K": 2, "alpha": 0.1},
    edge_softmax: {"graph": GRAPH, "scores": torch.zeros(4, 2)},
    edge_scores: {"graph": GRAPH, "source": NODES, "target": NODES},
    head_scores: {"x": X, "vector": torch.ones(2, 5)},
    dropout: {"x": X, "seed": 1},
}
BAD = {
    attention_diffusion: DIFFUSION,
    edge_softmax: SOFTMAX,
    edge_scores: SCORES,
    head_scores: VECTOR,
    dropout: DROPOUT,
}


@pytest.mark.parametrize(
    ("function", "changed", "message"),
    [pytest.param(f, *case, id=f"{f.__name__}-{i}") for f, cases in BAD.items() for i, case in enumerate(cases)],
)
def test_refused(backend: Backend, function: Callable[..., Tensor], changed: Options, message: str) -> None:
    device = device_of(backend)
    arguments = {
        name: value.to(device) if isinstance(value, Tensor | Graph) and value.device.type == "cpu" else value
        for name, value in ({"backend": backend} | GOOD[function] | changed).items()
    }
    with pytest.raises(ValueError, match=message):
        function(**arguments)


def test_a_refusal_is_one_short_line_of_its_parts() -> None:
    with pytest.raises(ArgumentError) as refused:
        edge_softmax([["\x1b[2J" * 1000] * 1000], GRAPH)  # type: ignore[arg-type]
    assert refused.value.name == "scores" and refused.value.allowed == "a torch.Tensor"
    assert len(str(refused.value)) < 600 and str(refused.value).isprintable()


def test_unchecked_values_cost_nothing_and_stay_the_callers() -> None:
    # validate=False looks at no value: NaN goes in and NaN comes out.
    scores = torch.zeros(4, 2)
    scores[0, 0] = math.nan
    assert edge_softmax(scores, GRAPH, validate=False, backend="reference")[0, 0].isnan()
    alpha = torch.tensor([1.5, 0.5])
    assert attention_diffusion(X, ATTENTION, GRAPH, 2, alpha, validate=False, backend="reference").isfinite().all()


def test_minus_infinity_means_no_edge() -> None:
    scores = torch.zeros(4, 2)
    scores[1] = -math.inf
    assert edge_softmax(scores, GRAPH, backend="reference").tolist() == [[1, 1], [0, 0], [1, 1], [1, 1]]
