"""A config names its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from tests.support.running import SUMMARY

from magna.config.schema import Config, ModelConfig
from magna.data import load_digits
from magna.tasks import NodeClassification
from magna.tasks.models import MODELS, Ensemble, make_link_predictor, make_model
from magna.training.run_folder import RunFolder
from magna.training.trials import train_trials

SMALL = {
    "magna": ModelConfig(hidden_channels=8, heads=2, K=2),
    "gat": ModelConfig(name="gat", hidden_channels=8, heads=2, out_heads=2),
    "diff-gcn": ModelConfig(name="diff-gcn", hidden_channels=8, top_k=3),
}


def test_every_name_has_a_model() -> None:
    assert set(get_args(get_type_hints(ModelConfig)["name"])) == set(MODELS) == set(SMALL)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_settings_of_its_config(name: str, members: int, tmp_path: Path) -> None:
    config = replace(SMALL[name], members=members)
    model = make_model(config, 5, 3).eval()
    assert type(model) is (MODELS[name] if members == 1 else Ensemble)
    x, edge_index = torch.randn(3, 5), torch.tensor([[0, 1, 2], [1, 2, 0]])
    out = model(x, edge_index)
    assert out.shape == (3, 3)
    run = RunFolder.create(tmp_path / "run", Config(model=config), torch.device("cpu"))
    run.finish(model, SUMMARY)
    assert torch.equal(run.load_model().eval()(x, edge_index), out)


@pytest.mark.parametrize("name", MODELS)
def test_the_probabilities_of_an_ensemble_are_the_mean_of_its_members(name: str) -> None:
    torch.manual_seed(4)
    ensemble = make_model(replace(SMALL[name], members=3), 5, 3)
    assert isinstance(ensemble, Ensemble)
    torch.manual_seed(4)
    alone = make_model(SMALL[name], 5, 3)
    x, edge_index = torch.randn(3, 5), torch.tensor([[0, 1, 2], [1, 2, 0]])
    each = ensemble(x, edge_index)  # without dropout, but in training mode
    assert torch.equal(each[0], alone(x, edge_index)) and not torch.equal(each[0], each[1])
    torch.testing.assert_close(ensemble.eval()(x, edge_index).softmax(-1), each.softmax(-1).mean(0))


def test_members_that_are_sure_of_other_classes_leave_no_infinite_loss() -> None:
    ensemble = make_model(replace(SMALL["magna"], members=2), 5, 3)
    assert isinstance(ensemble, Ensemble)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.mul_(100)
    assert ensemble.eval()(torch.randn(3, 5), torch.tensor([[0, 1, 2], [1, 2, 0]])).isfinite().all()


def test_members_are_one_or_more_and_classify_nodes() -> None:
    with pytest.raises(ValueError, match=r"^model.members is 0; allowed: a whole number from 1"):
        make_model(ModelConfig(members=0), 5, 3)
    with pytest.raises(ValueError, match=r"^model.members is 2, but a link predictor has no such setting; allowed: "):
        make_link_predictor(ModelConfig(members=2), 5, 3)


@pytest.mark.parametrize("name", MODELS)
def test_models_side_by_side_give_what_each_gives(name: str) -> None:
    models = [make_model(SMALL[name], 5, 3).eval() for _ in range(3)]
    x, edge_index = torch.randn(4, 5), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    stacked, _ = torch.func.stack_module_state(models)

    def score(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(models[0], parameters, (x, edge_index))

    expected = torch.stack([model(x, edge_index) for model in models])
    torch.testing.assert_close(torch.vmap(score)(stacked), expected)


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("name", MODELS)
def test_batched_settings_are_settings_of_the_model(name: str) -> None:
    assert set(MODELS[name].BATCHED) <= set(MODELS[name].defaults())


@pytest.mark.parametrize(
    ("name", "key", "value"), [("gat", "K", 3), ("diff-gcn", "tanh", False), ("magna", "out_heads", 2)]
)
def test_a_setting_that_a_model_lacks_is_refused(name: str, key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"model.{key} is {value}, but {name} has no such setting; allowed: hidden_"):
        make_model(ModelConfig(name=name, **{key: value}), 5, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": 3}, "^model.hidden_channels is 64, model.heads is 3; allowed: heads that divide the channels$"),
        ({"alpha": 2.0}, "^model.alpha is 2.0; allowed: 0 to 1"),
        ({"heads": 2, "head_form": "full", "out_projection": False}, "do not go together: out_channels is 64; allowed"),
    ],
)
def test_what_a_layer_refuses_is_named_as_in_a_recipe(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_model(ModelConfig(**settings), 5, 3)
    with pytest.raises(ValueError, match=words):
        make_link_predictor(ModelConfig(**settings), 5, 3)


def test_a_link_predictor_has_no_classifier_to_drop_from() -> None:
    with pytest.raises(ValueError, match=r"^model.classifier_dropout is 0.5; allowed: 0 without out_channels"):
        make_link_predictor(ModelConfig(classifier_dropout=0.5), 5, 3)


def test_heads_of_gat_are_named_as_in_a_recipe() -> None:
    with pytest.raises(ValueError, match=r"^model.hidden_channels is 64, model.heads is 3; allowed: heads that divide"):
        make_model(ModelConfig(name="gat", heads=3), 5, 3)
