"""The model: depth, files, seeds, symmetry, and the sizes that the authors' code has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from magna import MAGNA, Graph, MAGNAConv
from magna.config.layers import EncoderOptions, MAGNAOptions
from magna.typing import HeadForm, Init, Norm
from tests.nn.test_block import train
from tests.support.comparing import all_learn
from tests.support.graphs import integers, random_graph, uniform

N, E, C, CLASSES = 14, 50, 10, 3
GRAPH, X = random_graph(N, E, fed=True), uniform(N, C, seed=1).float()


def make(num_layers: int = 2, hidden: int = 16, **options: Any) -> Any:
    torch.manual_seed(0)
    return MAGNA(C, hidden, num_layers, **{"out_channels": CLASSES, "heads": 2} | options)


def losses(model: MAGNA, steps: int, lr: float = 1e-2) -> list[float]:
    return train(model, lambda: cross_entropy(model(X, GRAPH), integers(CLASSES, N, seed=3)), steps, lr)


@pytest.mark.parametrize("head_form", ["split", "full"])
@pytest.mark.parametrize("init", ["glorot", "official"])
def test_24_blocks_train_without_nan(head_form: HeadForm, init: Init) -> None:
    model = make(24, 8, head_form=head_form, init=init, K=6, alpha=0.1)
    values = losses(model, 6, lr=1e-3)
    assert torch.tensor(values).isfinite().all()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert values[-1] < values[0]


@pytest.mark.parametrize(
    "options",
    [
        {"hop_weights": "theta", "final_norm": "batch"},
        {"hop_weights": "alpha", "final_norm": "layer", "input_projection": 12, "head_form": "full"},
        {"input_projection": False, "bias": True},
    ],
)
def test_gradients_reach_every_parameter(options: dict[str, Any]) -> None:
    types = integers(3, GRAPH.num_edges, seed=2)
    model = make(num_relations=3, **options)
    cross_entropy(model(X, GRAPH.edge_index, types), integers(CLASSES, N, seed=3)).backward()
    all_learn(model)


@pytest.mark.parametrize("norm", ["layer", "none"])
def test_renaming_nodes_commutes_with_the_model(norm: Norm) -> None:
    model, new = make(norm=norm, top_k=3).double(), torch.randperm(N)
    renamed = torch.empty_like(X)
    renamed[new] = X
    torch.testing.assert_close(model(renamed.double(), new[GRAPH.edge_index])[new], model(X.double(), GRAPH))


DROPOUTS: dict[str, Any] = {name: 0.2 for name in EncoderOptions.options() if name.endswith("dropout")}


def test_same_seed_same_training() -> None:
    runs = []
    for _ in range(2):
        model = make(**DROPOUTS)
        torch.manual_seed(7)
        losses(model, 3)
        runs.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(*runs)


@pytest.mark.parametrize("rate", ["embed_dropout", "classifier_dropout"])
def test_the_dropouts_around_the_blocks(rate: str) -> None:
    options: dict[str, Any] = {rate: 0.5}
    model, seen = make(**options), list[Tensor]()
    layer = model.input_projection if rate == "embed_dropout" else model.classifier
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(X, GRAPH)
    assert 0.2 < (seen[0] == 0).float().mean() < 0.8


def test_shared_edge_dropout_leaves_out_the_same_edges_in_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MAGNAConv.softmax

    def dropped(shared: bool) -> list[Tensor]:
        masks = list[Tensor]()

        def softmax(*args: Any) -> Tensor:
            masks.append(attention := plain(*args))
            return attention

        monkeypatch.setattr(MAGNAConv, "softmax", softmax)
        make(3, edge_dropout=0.5, edge_dropout_shared=shared)(X, GRAPH)
        return [mask == 0 for mask in masks]

    first, *others = dropped(True)
    assert first.any() and all(torch.equal(first, other) for other in others)
    first, *others = dropped(False)
    assert not any(torch.equal(first, other) for other in others)


def test_masked_edges_are_absent_in_every_block() -> None:
    model, mask = make(), integers(2, GRAPH.num_edges, seed=4).bool()
    smaller = Graph.from_edge_index(GRAPH.edge_index[:, mask], N)
    torch.testing.assert_close(model(X, GRAPH, edge_mask=mask), model(X, smaller))


def test_one_relation_table_serves_all_blocks() -> None:
    types = integers(3, GRAPH.num_edges, seed=2)
    whole = make(num_relations=3, relation_channels=5, add_self_loops=True)
    assert [name for name, _ in whole.named_parameters() if "table" in name] == ["relation_table"]
    assert whole.relation_table.shape == (4, 5)
    without = make(num_relations=3, relation_channels=5, add_self_loops=True, relation_embedding=False)
    assert not any("table" in name for name, _ in without.named_parameters())
    without.load_state_dict({k: v for k, v in whole.state_dict().items() if k != "relation_table"})
    typed = Graph.from_edge_index(GRAPH.edge_index, N, types, 3)
    torch.testing.assert_close(without(X, typed, relation=whole.relation_table), whole(X, typed))


@pytest.mark.parametrize("changes", [{"norm": "unbiased"}, {"head_form": "full"}])
def test_autocast_to_bfloat16_stays_near_float32(changes: dict[str, Any]) -> None:
    model = make(**changes)
    with torch.autocast("cpu", torch.bfloat16):
        try:
            out = model(X, GRAPH)
        except RuntimeError as error:
            pytest.skip(f"no bfloat16 product on this processor: {error}")
    torch.testing.assert_close(out.float(), model(X, GRAPH), rtol=0.1, atol=0.1)


def test_without_a_head_the_hidden_states_come_out() -> None:
    assert make(out_channels=None)(X, GRAPH).shape == (N, 16)


OFFICIAL: dict[str, Any] = {"projection": "shared", "norm": "unbiased", "input_projection": False, "init": "official"}


@pytest.mark.parametrize(
    ("sizes", "options", "millions"),
    [
        ((1433, 512, 6, 7), {}, 16.97),
        ((3703, 512, 6, 6), {"input_projection": 2048}, 25.19),
        ((500, 512, 6, 3), {}, 16.01),
        ((128, 128, 2, 40), {}, 0.34),
    ],
    ids=["cora", "citeseer", "pubmed", "arxiv"],
)
def test_official_settings_have_the_size_of_the_authors_models(
    sizes: tuple[int, int, int, int], options: dict[str, Any], millions: float
) -> None:
    with torch.device("meta"):
        model = MAGNA(*sizes, **OFFICIAL | options)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.005)


EVERY_OPTION: dict[str, Any] = DROPOUTS | {"edge_pairs": False, "edge_dropout_shared": True}
EVERY_OPTION |= {"num_relations": 3, "relation_channels": 5, "relation_embedding": False, "relation_norm": "layer"}
EVERY_OPTION |= {"head_form": "full", "projection": "shared", "tanh": False, "negative_slope": 0.6, "score_scale": 0.5}
EVERY_OPTION |= {"K": 3, "alpha": 0.25, "hop_weights": "alpha", "memory": "recompute", "top_k": 4, "top_k_shared": True}
EVERY_OPTION |= {"add_self_loops": True, "bias": True, "init": "official", "backend": "reference", "ffn_multiplier": 2}
EVERY_OPTION |= {"norm": "unbiased", "norm_eps": 1e-7, "input_projection": 12, "final_norm": "layer"}


@pytest.mark.parametrize(
    "options", [{}, EVERY_OPTION, {"out_channels": None}], ids=["defaults", "every option", "no head"]
)
def test_files_give_the_same_model_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    model = make(**options).eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == model.config
    assert config.keys() >= {"in_channels", "hidden_channels", "num_layers", "out_channels", "K", "alpha"}
    assert all(config[name] == value for name, value in options.items())
    loaded = MAGNA.from_pretrained(tmp_path)
    assert capsys.readouterr().out == ""
    assert loaded.config == config and not loaded.training
    call = {}
    if "num_relations" in options:
        call = {"edge_type": integers(3, GRAPH.num_edges, seed=2), "relation": torch.ones(4, 5)}
    assert torch.equal(loaded(X, GRAPH, **call), model(X, GRAPH, **call))


def test_a_file_with_other_weights_is_refused(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"bias": True}))
    with pytest.raises(RuntimeError, match="bias"):
        MAGNA.from_pretrained(tmp_path)


def test_every_option_of_the_files_test_differs_from_its_default() -> None:
    unchanged = {name for name, value in EVERY_OPTION.items() if getattr(MAGNAOptions, name, None) == value}
    # The rest would change the model into one that cannot have the others.
    rest = {"mode", "tolerance", "diffusion", "feed_forward", "out_projection", "residual"}
    assert EncoderOptions.options().keys() - EVERY_OPTION.keys() == rest
    assert not unchanged


def test_bad_input() -> None:
    for model, x, message in (
        (make(), X[:, :4], r"x is torch.float32 \[14, 4\] on cpu; allowed: \[num_nodes, 10\]"),
        (make(num_relations=3), X, "edge_type is None; allowed: one of"),
    ):
        with pytest.raises(ValueError, match=message):
            model(x, GRAPH)
