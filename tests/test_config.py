"""Recipes and settings: what is accepted, what is refused, and that nothing is lost on the way to a file and back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from magna.config import Config, ModelConfig, keys, load_recipe, recipe_names


def test_toml_round_trip(tmp_path: Path) -> None:
    config = load_recipe("digits").with_values(
        ["train.lr=1e-5", "model.top_k=5", 'source.settings="a \\"quoted\\" ü"', "model.norm_eps=1e-6"]
    )
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    assert Config.from_toml(tmp_path / "config.toml") == config


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_tells_its_story(name: str) -> None:
    config = load_recipe(name)
    assert config.recipe == name
    assert config.source.settings
    assert config.expected.seeds >= 1 and config.expected.measured
    assert 0 < config.expected.test <= 1


def test_no_recipe_is_the_default() -> None:
    assert load_recipe(None) == load_recipe("digits")


def test_a_recipe_from_a_file_is_named_after_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[train]\nepochs = 7\n")
    config = load_recipe(str(tmp_path / "mine.toml"))
    assert (config.recipe, config.train.epochs) == ("mine", 7)


def test_set_overrides() -> None:
    config = Config().with_values(["train.epochs=40", "model.alpha=1", "data.name=cora", "model.feed_forward=false"])
    assert (config.train.epochs, config.model.alpha, config.data.name) == (40, 1.0, "cora")
    assert config.model.feed_forward is False
    assert config.with_values(["model.top_k=3"]).with_values(["model.top_k=none"]).model.top_k is None


def test_true_stays_true_where_a_number_is_allowed_too() -> None:
    assert Config().with_values(["model.input_projection=false"]).model.input_projection is False
    assert Config().with_values(["model.input_projection=2048"]).model.input_projection == 2048


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("model.aplha=0.2", ["model.aplha", "did you mean model.alpha"]),
        ("trian.epochs=3", ["did you mean train.epochs"]),
        ("zzz=3", ["zzz", "allowed: "]),
        ("train.epochs", ["key=value"]),
        ("train.epochs=many", ["train.epochs is 'many'", "a whole number"]),
        ("train.epochs=true", ["train.epochs", "a whole number"]),
        ("train.epochs=0", ["train.epochs is 0", "1 or more"]),
        ("train.lr=nan", ["train.lr", "finite"]),
        ("train.lr=-1", ["train.lr", "0 or more"]),
        ("model.norm=batch", ["model.norm is 'batch'", "'unbiased'"]),
        ("model.feed_forward=1", ["model.feed_forward", "true or false"]),
    ],
)
def test_a_wrong_setting_is_one_clear_error(assignment: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        Config().with_values([assignment])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[modle]\nK = 3\n", "did you mean model"),
        ("model = 3\n", "a table"),
        ("[model\n", "not TOML"),
        ('[search]\n"train.lrr" = [1]\n', "did you mean search.train.lr"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        load_recipe(str(tmp_path / "bad.toml"))
    assert "bad.toml" in str(caught.value)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'digits'"):
        load_recipe("digit")
    with pytest.raises(ValueError, match="not there"):
        load_recipe("nowhere.toml")


def test_model_settings_are_those_of_the_model() -> None:
    from magna import MAGNA

    defaults = MAGNA.defaults()
    settings = asdict(ModelConfig())
    for name in ("hidden_channels", "num_layers"):
        del settings[name]
    assert settings == {name: defaults[name] for name in settings}
    # The task decides about relations, and self-loops are a matter of the data.
    left_out = set(defaults) - set(settings)
    assert left_out == {
        "add_self_loops",
        "num_relations",
        "relation_channels",
        "relation_embedding",
        "relation_norm",
    }


def test_keys_cover_every_table() -> None:
    assert {"source.settings", "data.name", "model.K", "task.name", "train.lr", "expected.test"} <= set(keys(Config()))
