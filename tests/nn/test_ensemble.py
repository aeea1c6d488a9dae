"""Models by their settings, alone and as ensembles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from magna.config.registry import NODE_TASK, find_model, model_settings
from magna.config.schema import Config
from magna.data import load_digits
from magna.errors import ArgumentError
from magna.nn.ensemble import Ensemble, make_model
from magna.nn.sparse import SparseRows
from magna.tasks import NodeClassification
from magna.training.run_folder import RunFolder
from magna.training.trials import train_trials
from tests.support.comparing import all_learn
from tests.support.graphs import random_graph, uniform
from tests.support.running import SUMMARY

BLOCK: dict[str, Any] = {"norm": "layer", "residual": True, "feed_forward": True}
SMALL = {
    "magna": model_settings(hidden_channels=8, heads=2, K=2),
    "gat": model_settings(name="gat", hidden_channels=8, heads=2, out_heads=2),
    "appnp": model_settings(name="appnp", hidden_channels=8, K=3),
    "diff-gcn": model_settings(name="diff-gcn", hidden_channels=8, top_k=3),
    "diff-gcn, heat": model_settings(name="diff-gcn", hidden_channels=8, kernel="heat", t=3.0),
    "diff-gcn, block": model_settings(name="diff-gcn", hidden_channels=8, top_k=3, **BLOCK),
    "gat, block": model_settings(name="gat", hidden_channels=8, heads=2, **BLOCK),
    "gcn": model_settings(name="gcn", hidden_channels=8),
    "gcn, batch norm": model_settings(name="gcn", hidden_channels=8, norm="batch"),
    "graphsage": model_settings(name="graphsage", hidden_channels=8),
    "cheby": model_settings(name="cheby", hidden_channels=8, K=3),
    "dagnn": model_settings(name="dagnn", hidden_channels=8, K=3, norm="batch"),
    "gcnii": model_settings(name="gcnii", hidden_channels=8, num_layers=4),
    "jknet": model_settings(name="jknet", hidden_channels=8, num_layers=3),
    "jknet, max": model_settings(name="jknet", hidden_channels=8, join="max"),
    "jknet, lstm": model_settings(name="jknet", hidden_channels=8, num_layers=3, join="lstm"),
    "grand": model_settings(name="grand", hidden_channels=8, K=2, norm="batch"),
    "dualgcn": model_settings(name="dualgcn", hidden_channels=8, walks=5),
    "grand-plus": model_settings(name="grand-plus", hidden_channels=8, K=2, top_k=3, row_norm=True, norm="batch"),
    "lgcn": model_settings(name="lgcn", hidden_channels=8, layer_channels=4, top_k=2),
    "g-u-nets": model_settings(name="g-u-nets", hidden_channels=8, num_layers=2, pool_nodes=8),
    "gaan": model_settings(name="gaan", hidden_channels=8, heads=2, key_channels=3, value_channels=4, pool_channels=5),
}
DROPOUTS = [
    (name, rate)
    for name, model in SMALL.items()
    for rate in model.options()
    if rate.endswith("dropout") and model.unmet(rate) is None
]
X, EDGES = uniform(12, 5, seed=1).float(), random_graph(12, 40, fed=True).edge_index


def make(name: str, **changes: Any) -> Any:
    torch.manual_seed(4)
    return make_model(replace(SMALL[name], **changes), in_channels=5, out_channels=3)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_reach_every_parameter(name: str) -> None:
    model = make(name, num_layers=3)
    model(X, EDGES).square().sum().backward()
    all_learn(model)


@pytest.mark.parametrize(("name", "rate"), DROPOUTS)
def test_each_dropout_is_drawn_in_training_alone(name: str, rate: str) -> None:
    model = make(name, **{rate: 0.5})
    assert not torch.equal(model(X, EDGES), model(X, EDGES))
    state = torch.get_rng_state()
    out = model.eval()(X, EDGES)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(out, make(name)(X, EDGES))


@pytest.mark.parametrize("name", SMALL)
def test_features_of_another_width_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=r"x is torch.float32 \[12, 4\] on cpu; allowed: \[num_nodes, 5\]"):
        make(name)(X[:, :4], EDGES)


@pytest.mark.parametrize("name", SMALL)
def test_sparse_features_give_the_same_scores(name: str) -> None:
    model, x = make(name), X * (X > 0.5)
    torch.testing.assert_close(model(SparseRows.of(x), EDGES), model(x, EDGES))


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", SMALL)
def test_a_model_has_the_settings_of_its_config(name: str, members: int, tmp_path: Path) -> None:
    model = make(name, members=members).eval()
    assert type(model) is (find_model(NODE_TASK, SMALL[name].name).kind if members == 1 else Ensemble)
    out = model(X, EDGES)
    assert out.shape == (12, 3)
    config = Config(model=replace(SMALL[name], members=members))
    run = RunFolder.create(tmp_path / "run", config, torch.device("cpu"))
    run.finish(model, SUMMARY)
    assert torch.equal(run.load_model().eval()(X, EDGES), out)


@pytest.mark.parametrize("name", SMALL)
def test_the_probabilities_of_an_ensemble_are_the_mean_of_its_members(name: str) -> None:
    ensemble = make(name, members=3)
    each = ensemble(X, EDGES)  # without dropout, but in training mode
    assert torch.equal(each[0], make(name)(X, EDGES)) and not torch.equal(each[0], each[1])
    torch.testing.assert_close(ensemble.eval()(X, EDGES).softmax(-1), each.softmax(-1).mean(0))


def test_confident_members_that_disagree_give_finite_scores() -> None:
    ensemble = make("magna", members=2)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.mul_(100)
    assert ensemble.eval()(X, EDGES).isfinite().all()


@pytest.mark.parametrize("name", SMALL)
def test_stacked_models_give_what_each_gives(name: str) -> None:
    models = list(make(name, members=3).eval().members)
    stacked, _ = torch.func.stack_module_state(models)

    def score(parameters: dict[str, torch.Tensor]) -> Any:
        return torch.func.functional_call(models[0], parameters, (X, EDGES))

    torch.testing.assert_close(torch.vmap(score)(stacked), torch.stack([model(X, EDGES) for model in models]))


@pytest.mark.parametrize("name", SMALL)
def test_trials_train_together(name: str) -> None:
    data = load_digits()
    config = Config(model=SMALL[name]).with_values(
        ["train.epochs=3", "task.consistency=1.0", "model.input_dropout=0.3"]
    )
    task = NodeClassification(data, config, torch.device("cpu"))
    configs = [
        config.with_values([f"model.input_dropout={rate}"]).with_seed(seed) for rate in (0, 0.6) for seed in (0, 1)
    ]
    results = train_trials(configs, task, read_test=True)
    assert [result.config for result in results] == configs
    losses = [result.history[-1]["loss"] for result in results]
    assert len(set(losses)) == 4 and all(loss == loss for loss in losses)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"members": 0}, r"^model.members is 0; allowed: 1 to 1,024$"),
        ({"name": "gat", "out_heads": 0}, "^model.out_heads is 0; allowed: 1 to 4,096$"),
        ({"name": "gat", "heads": 3}, "^model.heads is 3; allowed: divisors of hidden_channels, 64$"),
        ({"head_form": "full", "out_projection": False}, "^model.out_projection is False; allowed: true with"),
    ],
)
def test_settings_that_give_no_model_are_refused_before_it_is_built(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Config.from_dict({"model": settings})


@pytest.mark.parametrize("setting", ["members=2", "classifier_dropout=0.5"])
def test_a_link_predictor_lacks_the_settings_of_node_models(setting: str) -> None:
    links = Config.from_dict({"task": {"name": "link_prediction"}})
    with pytest.raises(
        ArgumentError, match=rf"model.{setting.replace('=', ' is ')}; allowed: a setting of model 'magna'"
    ):
        links.with_values([f"model.{setting}"])
