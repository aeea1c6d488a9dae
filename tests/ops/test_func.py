"""The layer under the transforms of `torch.func`: gradients, per graph and per model, and what is kept after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap

from magna import Graph, MAGNAConv, attention_diffusion
from magna.typing import Backend
from tests.support.graphs import integers, random_graph, uniform
from tests.support.running import device_of

N, E, C = 7, 20, 4

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "typed": {"num_relations": 2, "hop_weights": "theta"},
    "dropout": {"dropout": 0.3, "feature_dropout": 0.2, "edge_dropout": 0.4, "top_k": 3},
    "exact": {"mode": "exact", "alpha": 0.5, "projection": "shared"},
    "recomputed": {"memory": "recompute"},
}


def layer(backend: Backend, **options: Any) -> MAGNAConv:
    torch.manual_seed(0)
    options = options if options.get("mode") == "exact" else {"K": 2} | options
    return MAGNAConv(C, 4, heads=2, backend=backend, **options).to(device_of(backend), torch.float64)


def energy(conv: MAGNAConv, edges: Tensor | Graph) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    def of(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        torch.manual_seed(3)
        out: Tensor = functional_call(conv, dict(parameters), (x, edges))
        return out.square().sum()

    return of


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_gradients_are_those_of_backward(fused: Backend, options: dict[str, Any]) -> None:
    conv, device = layer(fused, **options), device_of(fused)
    types = (integers(2, E, seed=2), 2) if "num_relations" in options else ()
    graph = Graph.from_edge_index(random_graph(N, E).edge_index, N, *types).to(device)
    x = uniform(N, C, seed=1).to(device)
    parameters = dict(conv.named_parameters())
    actual = grad(energy(conv, graph))({name: p.detach() for name, p in parameters.items()}, x)
    energy(conv, graph)(parameters, x).backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(actual[name], parameter.grad)


def test_gradients_of_each_input_and_of_each_model(fused: Backend) -> None:
    """The gradients of one model at several inputs, and of several models at one input."""
    device, edges = device_of(fused), random_graph(N, E).edge_index.to(device_of(fused))
    conv, plain = layer(fused), layer("reference").to(device)
    xs = uniform(3, N, C, seed=1).to(device)
    parameters_alone = {name: p.detach() for name, p in conv.named_parameters()}
    stacked = {name: torch.stack([p, 2 * p, -p]) for name, p in parameters_alone.items()}
    for axes, parameters, x in (((None, 0), parameters_alone, xs), ((0, None), stacked, xs[0])):
        results = [vmap(grad(energy(one, edges)), axes, randomness="same")(parameters, x) for one in (conv, plain)]
        torch.testing.assert_close(*results)
    together = [grad(lambda x: vmap(lambda x: one(x, edges))(x).square().sum())(xs) for one in (conv, plain)]  # noqa: B023
    torch.testing.assert_close(*together)
    rows = [jacrev(lambda x: one(x, edges).sum(0))(xs[0]) for one in (conv, plain)]  # noqa: B023
    torch.testing.assert_close(*rows)


@pytest.mark.parametrize("backend_of_the_transform", ["reference", "fused"])
def test_nothing_is_left_behind_that_later_calls_cannot_use(fused: Backend, backend_of_the_transform: str) -> None:
    options: dict[str, Any] = {"add_self_loops": True, "alpha": 0.123}
    conv, plain, device = layer(fused, **options), layer("reference", **options), device_of(fused)
    inside = layer(fused if backend_of_the_transform == "fused" else "reference", **options).to(device)
    edges, x = integers(N, 2, E, seed=4).to(device), uniform(N, C, seed=1).to(device)
    grad(lambda x: inside(x, edges).sum())(x)
    grad(lambda x, edges: inside(x, edges).sum())(x, edges)
    torch.testing.assert_close(conv(x, edges).cpu(), plain(x.cpu(), edges.cpu()))


def test_a_graph_for_each_entry_is_refused() -> None:
    conv, x = layer("reference"), uniform(N, C, seed=1)
    with pytest.raises(ValueError, match=r"edge_index is 'batched by torch.vmap, .*torch_geometric.data.Batch"):
        vmap(lambda edges: conv(x, edges))(integers(N, 3, 2, E, seed=1))


def test_a_derivative_of_a_gradient_is_refused(fused: Backend) -> None:
    conv, edges = layer(fused), random_graph(N, E).edge_index.to(device_of(fused))
    x = uniform(N, C, seed=1).to(edges.device).requires_grad_()
    first = grad(lambda x: conv(x, edges).square().sum())
    (eager,) = torch.autograd.grad(conv(x, edges).square().sum(), x, create_graph=True)
    calls = first(x).sum().backward, lambda: grad(lambda x: first(x).sum())(x.detach()), eager.sum().backward
    for call in calls:
        with pytest.raises(RuntimeError, match="has no derivative; try backend='reference'"):
            call()


def test_the_same_masks_for_all_are_refused_not_ignored(fused: Backend) -> None:
    graph = random_graph(N, E).to(device_of(fused))
    xs, attention = torch.ones(3, N, 1, 2, device=graph.device), torch.ones(E, 1, device=graph.device)

    def diffused(x: Tensor, rate: float = 0.0, backend: Backend = fused) -> Tensor:
        return attention_diffusion(x, attention, graph, K=1, alpha=0.1, feature_dropout=rate, seed=1, backend=backend)

    with pytest.raises(ValueError, match=r"randomness of torch.vmap is 'same'; allowed: 'different'"):
        vmap(lambda x: diffused(x, 0.5), randomness="same")(xs)
    assert vmap(diffused, randomness="same")(xs).shape == xs.shape
    alike = vmap(lambda x: diffused(x, 0.5, "reference"), randomness="same")(xs)
    assert torch.equal(alike[0], alike[1])
