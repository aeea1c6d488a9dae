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
from magna.tasks import NodeClassification
from magna.training.run_folder import RunFolder
from magna.training.trials import train_trials
from tests.support.running import SUMMARY

SMALL = {
    "magna": model_settings(hidden_channels=8, heads=2, K=2),
    "gat": model_settings(name="gat", hidden_channels=8, heads=2, out_heads=2),
    "appnp": model_settings(name="appnp", hidden_channels=8, K=3),
    "diff-gcn": model_settings(name="diff-gcn", hidden_channels=8, top_k=3),
}


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", SMALL)
def test_a_model_has_the_settings_of_its_config(name: str, members: int, tmp_path: Path) -> None:
    config = replace(SMALL[name], members=members)
    model = make_model(config, in_channels=5, out_channels=3).eval()
    assert type(model) is (find_model(NODE_TASK, name).kind if members == 1 else Ensemble)
    x, edge_index = torch.randn(3, 5), torch.tensor([[0, 1, 2], [1, 2, 0]])
    out = model(x, edge_index)
    assert out.shape == (3, 3)
    run = RunFolder.create(tmp_path / "run", Config(model=config), torch.device("cpu"))
    run.finish(model, SUMMARY)
    assert torch.equal(run.load_model().eval()(x, edge_index), out)


@pytest.mark.parametrize("name", SMALL)
def test_the_probabilities_of_an_ensemble_are_the_mean_of_its_members(name: str) -> None:
    torch.manual_seed(4)
    ensemble = make_model(replace(SMALL[name], members=3), in_channels=5, out_channels=3)
    assert isinstance(ensemble, Ensemble)
    torch.manual_seed(4)
    alone = make_model(SMALL[name], in_channels=5, out_channels=3)
    x, edge_index = torch.randn(3, 5), torch.tensor([[0, 1, 2], [1, 2, 0]])
    each = ensemble(x, edge_index)  # without dropout, but in training mode
    assert torch.equal(each[0], alone(x, edge_index)) and not torch.equal(each[0], each[1])
    torch.testing.assert_close(ensemble.eval()(x, edge_index).softmax(-1), each.softmax(-1).mean(0))


def test_confident_members_that_disagree_give_finite_scores() -> None:
    ensemble = make_model(replace(SMALL["magna"], members=2), in_channels=5, out_channels=3)
    assert isinstance(ensemble, Ensemble)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.mul_(100)
    assert ensemble.eval()(torch.randn(3, 5), torch.tensor([[0, 1, 2], [1, 2, 0]])).isfinite().all()


@pytest.mark.parametrize("name", SMALL)
def test_stacked_models_give_what_each_gives(name: str) -> None:
    models = [make_model(SMALL[name], in_channels=5, out_channels=3).eval() for _ in range(3)]
    x, edge_index = torch.randn(4, 5), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    stacked, _ = torch.func.stack_module_state(models)

    def score(parameters: dict[str, torch.Tensor]) -> Any:
        return torch.func.functional_call(models[0], parameters, (x, edge_index))

    expected = torch.stack([model(x, edge_index) for model in models])
    torch.testing.assert_close(torch.vmap(score)(stacked), expected)


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
        ({"heads": 3}, "^model.heads is 3; allowed: divisors of hidden_channels, 64$"),
        ({"alpha": 2.0}, "^model.alpha is 2.0; allowed: 0 to 1$"),
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
