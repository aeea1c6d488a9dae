"""The fast walk: the bits of the plain forward, and left to the modules where one does more than its forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import magna
from magna import MAGNA, Graph, MAGNAConv, edge_softmax
from magna.config import registry
from magna.config.layers import MAGNAOptions
from magna.nn import fused
from magna.nn.block import MAGNABlock
from tests.support.graphs import integers, random_graph, uniform

EDGES, X = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]]), torch.arange(24.0).view(4, 6).sin()
DROPOUTS = dict.fromkeys(
    ["input_dropout", "output_dropout", "residual_dropout", "ffn_dropout", "ffn_output_dropout", "edge_dropout"], 0.3
)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The fast walk, which counts its calls; the CPU takes it, too."""
    walk = Mock(wraps=fused.walk)
    monkeypatch.setattr(fused, "walk", walk)
    monkeypatch.setattr(fused, "choose", lambda *_: "triton")
    return walk


FORMS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "every dropout": DROPOUTS | {"dropout": 0.2, "feature_dropout": 0.2, "edge_dropout_shared": True},
    "unbiased": {"norm": "unbiased", "final_norm": "layer", "output_dropout": 0.5, "projection": "shared"},
    "batch norm": {"norm": "batch", "final_norm": "batch", "output_dropout": 0.5, "head_form": "full"},
    "no norm, no residual": {"norm": "none", "residual": False, "output_dropout": 0.5, "bias": True},
    "no feed-forward": {"feed_forward": False, "output_dropout": 0.5, "head_form": "full", "projection": "shared"},
    "no diffusion": {"diffusion": False, "add_self_loops": True, "ffn_output_dropout": 0.2},
    "types": {"num_relations": 3, "hop_weights": "theta", "relation_norm": "layer", "out_projection": False},
    "exact": {"mode": "exact", "input_projection": False, "score_scale": 0.5, "ffn_output_dropout": 0.2},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS.keys())
def test_the_walk_gives_the_bits_of_the_plain_forward(
    walks: Mock, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    graph, x = random_graph(30, 90, fed=True), uniform(30, 6, seed=1).float()
    edges = [graph.edge_index] + ([integers(3, graph.num_edges, seed=2)] if "num_relations" in options else [])
    runs = []
    for fast in (False, True):
        monkeypatch.setattr(fused, "choose", lambda *_, fast=fast: "triton" if fast else "cpu")
        torch.manual_seed(0)
        model = MAGNA(6, 8, 3, 4, heads=2, **options)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        seen = []
        for _ in range(3):
            features = x.clone().requires_grad_()
            out = model(features, *edges)
            optimiser.zero_grad()
            out.square().mean().backward()
            optimiser.step()
            seen += [out, features.grad, torch.get_rng_state()]
        runs.append([*seen, *model.parameters(), model.eval()(x, *edges)])
        assert walks.called == fast
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


def test_on_the_cpu_the_plain_forward_runs() -> None:
    assert not fused.covers(_model(), X)


def _model() -> MAGNA:
    torch.manual_seed(0)
    return MAGNA(6, 8, 2, 3, heads=2, K=2, input_dropout=0.5, final_norm="layer").eval()


HALF = "blocks.1.feed_forward"
PARTS = ["blocks.1", "final_norm", HALF, f"{HALF}.norm", f"{HALF}.layers", f"{HALF}.layers.3", f"{HALF}.layers.0"]
PARTS += [f"blocks.1.{name}" for name in ("norm", "input_dropout", "output_dropout", "conv", "conv.value", "conv.out")]
PARTS += [f"blocks.1.conv.attention{name}" for name in ("", ".source", ".target")]


@pytest.mark.parametrize("name", PARTS)
def test_hooks_fire_and_change_nothing(walks: Mock, name: str) -> None:
    model, seen = _model(), list[str]()
    plain = model(X, EDGES)
    handle = model.get_submodule(name).register_forward_hook(lambda *_: seen.append(name))
    assert torch.equal(model(X, EDGES), plain) and seen == [name]
    handle.remove()
    assert torch.equal(model(X, EDGES), plain) and seen == [name]
    assert walks.call_count >= 2


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.register_forward_pre_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_hook(lambda *_: None),
        lambda layer: layer.compile(),
    ],
)
def test_a_module_that_does_more_than_its_forward_is_called(walks: Mock, change: Callable[[nn.Module], object]) -> None:
    model = _model()
    change(model.get_submodule("blocks.1.conv.value"))
    assert not fused.covers(model, X) and not walks.called


@pytest.mark.parametrize("options", [{}, {"projection": "shared"}, {"head_form": "full"}, {"num_relations": 2}])
def test_a_hook_on_the_attention_sees_the_scores(options: dict[str, Any]) -> None:
    conv = MAGNAConv(6, 8, heads=2, K=2, add_self_loops=False, out_projection=True, **options)
    call = (X, EDGES, *([EDGES[0] % 2] if "num_relations" in options else []))
    out, (_, attention) = conv(*call, return_attention_weights=True)
    scores: list[Tensor] = []
    conv.attention.register_forward_hook(lambda module, inputs, output: scores.append(output))
    assert torch.equal(conv(*call), out)
    assert torch.equal(edge_softmax(scores[0], Graph.from_edge_index(EDGES, 4)), attention)


@pytest.mark.usefixtures("walks")
@pytest.mark.parametrize("name", [*PARTS[2:5], "blocks.1", "blocks.1.conv.value", "blocks.1.conv.attention"])
def test_a_subclass_in_the_place_of_a_module_is_called(name: str) -> None:
    model, calls = _model(), list[str]()
    part: Any = model.get_submodule(name)

    class Counted(type(part)):  # type: ignore[misc]
        def forward(self, *args: Any, **options: Any) -> Any:
            calls.append(name)
            return super().forward(*args, **options)

    part.__class__ = Counted
    model(X, EDGES)
    assert calls == [name]


class DotScore(nn.Module):
    """q_i · k_j / √D in place of Eq. 1."""

    def __init__(self, layer: MAGNAConv) -> None:
        super().__init__()
        self.heads, width = layer.heads, layer.out_channels
        self.query, self.key = (nn.Linear(layer.in_channels, width, bias=False) for _ in range(2))

    def reset_parameters(self) -> None:
        for layer in (self.query, self.key):
            layer.reset_parameters()

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key of each node, [N, H, D]."""
        return self.query(x).unflatten(-1, (self.heads, -1)), self.key(x).unflatten(-1, (self.heads, -1))

    def forward(self, source: Tensor, target: Tensor, graph: Graph, relation: Tensor | None = None) -> Tensor:
        assert relation is None
        scores: Tensor = (source[graph.source] * target[graph.target]).sum(-1) / source.size(-1) ** 0.5
        return scores


@pytest.mark.slow
def test_a_score_of_the_users_trains_and_is_loaded_again(
    walks: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_MODELS", {task: dict(models) for task, models in registry._MODELS.items()})

    @registry.node_model("dot", MAGNAOptions)
    class Dot(MAGNA):
        def __init__(self, *sizes: int, **options: Any) -> None:
            super().__init__(*sizes, **options)
            for block in self.blocks:
                assert isinstance(block, MAGNABlock)
                block.conv.attention = DotScore(block.conv)  # type: ignore[assignment]

    settings = {"model.name": "dot", "train.epochs": 2}
    result = magna.train("digits", settings=settings, run_dir=tmp_path, device="cpu")
    assert magna.evaluate(tmp_path, device="cpu")["metrics"] == result["runs"][0]["test"]
    assert "blocks.0.conv.attention.query.weight" in Dot.from_pretrained(tmp_path / "model").state_dict()
    assert not walks.called
