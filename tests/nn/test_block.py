"""The block: Eq. 6 and 7, the four ablations of Table 1, and the places of dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import elu

from magna import MAGNABlock
from magna.nn import BatchNorm, UnbiasedLayerNorm
from magna.nn.block import Zero
from magna.typing import Backend, Norm
from tests.nn.test_conv import gat_like
from tests.support.comparing import all_learn
from tests.support.graphs import random_graph, uniform
from tests.support.running import device_of

N, E, C, H = 12, 40, 8, 2
GRAPH, X = random_graph(N, E, fed=True), uniform(N, C, seed=1)

ABLATIONS: dict[str, dict[str, Any]] = {
    "whole model": {},
    "no layer norm": {"norm": "none"},
    "no diffusion": {"diffusion": False},
    "no feed-forward": {"feed_forward": False},
    "no layer norm, no feed-forward": {"norm": "none", "feed_forward": False},
    "batch norm, no residual": {"norm": "batch", "residual": False},
}


def train(module: nn.Module, loss: Callable[[], Tensor], steps: int, lr: float = 1e-2) -> list[float]:
    """The losses of some steps."""
    optimiser, losses = torch.optim.Adam(module.parameters(), lr=lr), []
    for _ in range(steps):
        optimiser.zero_grad()
        losses.append(loss())
        losses[-1].backward()
        optimiser.step()
    return [loss.item() for loss in losses]


def make(*sizes: int, **options: Any) -> Any:
    torch.manual_seed(0)
    return MAGNABlock(*sizes, **options).double()


@pytest.mark.parametrize("width", [C, 2 * C])
@pytest.mark.parametrize("norm", ["layer", "unbiased"])
def test_the_block_is_eq_6_and_7(width: int, norm: Norm) -> None:
    block = make(C, width, H, norm=norm)
    assert isinstance(block.norm, nn.LayerNorm if norm == "layer" else UnbiasedLayerNorm)
    h = block.conv(block.norm(X), GRAPH) + (X if width == C else X @ block.residual.weight.t())
    first, second = block.feed_forward.layers[0], block.feed_forward.layers[2]
    inner = (block.feed_forward.norm(h) @ first.weight.t() + first.bias).relu()
    torch.testing.assert_close(block(X, GRAPH), inner @ second.weight.t() + second.bias + h)


@pytest.mark.parametrize("trials", [None, 2])
def test_every_backend_gives_the_same(fused: Backend, trials: int | None) -> None:
    """Alone, and as one of several trials whose parameters have an axis more."""
    device = device_of(fused)
    x, graph, results = uniform(3, 4, seed=1).to(device), random_graph(3, 2, fed=True).to(device), []
    for backend in ("reference", fused):
        block = make(4, 6, 1, K=1, backend=backend).to(device)
        weights = {
            name: (p if trials is None else torch.stack([p, p + 0.1])).detach().requires_grad_()
            for name, p in block.named_parameters()
        }

        def output(weights: dict[str, Tensor], block: nn.Module = block) -> Any:
            return functional_call(block, weights, (x, graph))

        out = output(weights) if trials is None else torch.vmap(output)(weights)
        results.append([out, *torch.autograd.grad(out.square().sum(), list(weights.values()))])
    torch.testing.assert_close(results[1], results[0])


def test_without_its_three_parts_the_block_is_gat() -> None:
    bare = {"norm": "none", "feed_forward": False, "diffusion": False}
    block = make(C, C, H, **bare, tanh=False, projection="shared", out_projection=False)
    gat = gat_like(block.conv, add_self_loops=False, bias=False)
    torch.testing.assert_close(block(X, GRAPH), elu(gat(X, GRAPH.edge_index) + X))


def test_without_residual_the_attention_is_alone() -> None:
    bare = make(C, 2 * C, H, norm="batch", residual=False, feed_forward=False)
    assert isinstance(bare.residual, Zero) and isinstance(bare.norm, BatchNorm)
    torch.testing.assert_close(bare(X, GRAPH), elu(bare.conv(bare.norm(X), GRAPH)))
    # The feed-forward network keeps its residual.
    block = make(C, 2 * C, H, residual=False)
    torch.testing.assert_close(block(X, GRAPH), block.feed_forward(block.conv(block.norm(X), GRAPH)))


def test_the_switches_remove_what_they_name() -> None:
    assert isinstance(make(C, C, H, norm="none").norm, nn.Identity)
    assert not any("feed_forward" in name for name, _ in make(C, C, H, feed_forward=False).named_parameters())
    conv = make(C, C, H, diffusion=False).conv
    assert (conv.hops.K, conv.hops.alpha) == (1, 0.0)
    assert make(C, C, H, ffn_multiplier=3).feed_forward.layers[0].out_features == 3 * C
    assert make(C, C, H, norm_eps=1e-12).norm.eps == 1e-12


@pytest.mark.parametrize("options", ABLATIONS.values(), ids=ABLATIONS.keys())
def test_each_ablation_trains(options: dict[str, Any]) -> None:
    block, goal = make(C, C, H, **options), uniform(N, C, seed=2)
    losses = train(block, lambda: (block(X, GRAPH) - goal).square().mean(), 30)
    assert losses[-1] < 0.8 * losses[0]
    all_learn(block)


@pytest.mark.parametrize(
    "place", ["input_dropout", "output_dropout", "residual_dropout", "ffn_dropout", "ffn_output_dropout"]
)
def test_each_dropout_is_in_its_place(place: str) -> None:
    """A hook sees what each part gets: only what lies behind the named place has zeros."""
    block, seen = make(C, 2 * C, H, **{place: 0.5}), dict[str, float]()

    def zeros(name: str) -> Callable[[Any, Any], None]:
        return lambda module, args: seen.__setitem__(name, float((args[0] == 0).double().mean()))

    block.conv.register_forward_pre_hook(zeros("input_dropout"))
    block.residual.register_forward_pre_hook(zeros("residual_dropout"))
    layers = block.feed_forward.layers
    layers[2].register_forward_pre_hook(zeros("ffn_dropout"))
    outputs = {"output_dropout": block.output_dropout, "ffn_output_dropout": layers[3], "relu": layers[0]}
    for name, module in outputs.items():
        module.register_forward_hook(lambda m, a, out, name=name: zeros(name)(m, (out,)))
    trained = block(X, GRAPH)
    seen["ffn_dropout"] -= seen.pop("relu")  # ReLU makes zeros, too
    assert seen[place] > 0.1
    assert all(rate == 0 for name, rate in seen.items() if name != place)
    assert not torch.equal(trained, block(X, GRAPH))
    torch.testing.assert_close(block.eval()(X, GRAPH), make(C, 2 * C, H)(X, GRAPH))


def test_without_residual_no_bit_changes_not_even_the_sign_of_zero() -> None:
    x = torch.tensor([0.0, -0.0, 1.5, -2.0])
    assert torch.equal((x + Zero()(x)).signbit(), x.signbit()) and torch.equal(x + Zero()(x), x)


def test_wrong_width_is_named_before_the_norm_sees_it() -> None:
    with pytest.raises(ValueError, match=r"x is torch.float32 \[12, 3\] on cpu; allowed: \[num_nodes, 8\]"):
        make(C, C, H)(torch.zeros(N, 3), GRAPH)
