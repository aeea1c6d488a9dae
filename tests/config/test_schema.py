"""Recipes and settings: what is accepted, what is refused, and that nothing is lost on the way to a file and back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from magna.config.schema import REPORT_SEEDS, SEARCH_SEEDS, Config, load_recipe, recipe_names
from magna.config.spaces import keys
from magna.config.toml import Range


def test_toml_round_trip(tmp_path: Path) -> None:
    config = load_recipe("digits").with_values(
        ["train.lr=1e-5", "model.top_k=5", 'source.settings="a \\"quoted\\" ü \\u007f"', "model.norm_eps=1e-6"]
    )
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    assert Config.from_toml(tmp_path / "config.toml") == config


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_tells_its_story(name: str) -> None:
    config = load_recipe(name)
    assert config.recipe == name
    assert config.source.settings
    assert 0 <= config.expected.paper < 1
    if config.expected.seeds:  # measured
        assert config.expected.measured and 0 < config.expected.test <= 1
    assert config.search, "every recipe says what was or can be searched"
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config


def test_a_search_space_is_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "wide.toml").write_text(
        """[search]
"model.K" = { low = 2, high = 10 }
"train.lr" = { low = 1e-4, high = 1, log = true }
"model.alpha" = { low = 0.05, high = 0.5, step = 0.05 }
"model.top_k" = [3, 5, "none"]
"model.feed_forward" = [true, false]
"""
    )
    config = load_recipe(str(tmp_path / "wide.toml"))
    assert config.search == {
        "model.K": Range(2, 10),
        "train.lr": Range(1e-4, 1.0, log=True),
        "model.alpha": Range(0.05, 0.5, step=0.05),
        "model.top_k": [3, 5, None],
        "model.feed_forward": [True, False],
    }
    hops, rate = config.search["model.K"], config.search["train.lr"]
    assert isinstance(hops.low, int) and isinstance(rate.high, float)
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config
    assert config.with_values(["train.epochs=3"]).search == config.search


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('"modle.K" = [1]', "did you mean 'search.model.K'"),
        ('"train.seed" = [1, 2]', "setting is 'search.train.seed'"),
        ('"data.name" = ["cora"]', "setting is 'search.data.name'"),
        ('"model.K" = 3', "a list of values, or a table"),
        ('"model.K" = []', "a list of values, or a table"),
        ('"model.K" = [1, "many"]', "search.model.K is 'many'; allowed: a whole number"),
        ('"model.K" = { low = 1 }', "both low and high"),
        ('"model.K" = { low = 1.5, high = 3 }', "search.model.K.low is 1.5; allowed: a whole number"),
        ('"model.K" = { low = 6, high = 3 }', "search.model.K.low is 6; allowed: at most search.model.K.high, 3"),
        ('"model.K" = { low = 1, high = 3, stpe = 1 }', "bound of search.model.K is 'stpe'; allowed: "),
        ('"model.K" = { low = 1, high = 3, step = 0 }', "above 0"),
        ('"model.norm" = { low = 1, high = 3 }', "is not a number"),
        ('"train.lr" = { low = 0, high = 1, log = true }', "low above 0"),
        ('"train.lr" = { low = -1, high = 1 }', "search.train.lr is -1.0; allowed: 0 or more"),
        ('"train.lr" = { low = 1e-3, high = 1, log = 1 }', "true or false"),
    ],
)
def test_a_wrong_search_space_is_one_clear_error(tmp_path: Path, entry: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(f"[search]\n{entry}\n")
    with pytest.raises(ValueError, match=r"bad\.toml") as caught:
        load_recipe(str(tmp_path / "bad.toml"))
    assert words in str(caught.value)


def test_settings_are_checked_together_and_the_values_of_a_space_one_by_one() -> None:
    with pytest.raises(ValueError, match=r"train.eval_every is 300; allowed: at most patience, 200"):
        Config().with_values(["train.eval_every=300"])
    # Whatever a search over both chooses, its recipe can be read again.
    space = {"train.eval_every": [1, 300], "train.patience": [100, 400]}
    for every, patience in ((1, 100), (1, 400), (300, 400)):
        config = Config.from_dict({"train": {"eval_every": every, "patience": patience}, "search": space})
        assert Config.from_dict(tomllib.loads(config.to_toml())) == config


def test_settings_of_what_goes_past_the_encoder_need_it() -> None:
    links = Config.from_dict({"task": {"name": "link_prediction"}})
    for change in ("train.skip_lr=0.01", "task.skip_n3=0.1", "task.skip_relation_prediction=1.0"):
        with pytest.raises(
            ValueError, match=rf"{change.split('=')[0]} is .*; allowed: only with model.skip_channels above 0"
        ):
            links.with_values([change])
        assert links.with_values(["model.skip_channels=8", change]).model.skip_channels == 8


def test_no_seed_both_chooses_and_reports() -> None:
    assert not set(SEARCH_SEEDS) & set(REPORT_SEEDS)


def test_no_recipe_is_the_default() -> None:
    assert load_recipe(None) == load_recipe("digits")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_recipe_from_a_file_is_named_after_it(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "mine.toml").write_text("[train]\nepochs = 7\n", encoding=encoding)
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
        ("model.aplha=0.2", ["model.aplha", "did you mean 'model.alpha'"]),
        ("trian.epochs=3", ["did you mean 'train.epochs'"]),
        ("lr=0.1", ["did you mean 'train.lr'"]),
        ("train.K=3", ["setting is 'train.K'", "'model.K'"]),
        ("model.hidden=8", ["did you mean 'model.hidden_channels'"]),
        ("zzz=3", ["zzz", "allowed: "]),
        ("train.epochs", ["key=value"]),
        ("=3", ["key=value"]),
        ("train.epochs=many", ["train.epochs is 'many'", "a whole number"]),
        ("train.epochs=true", ["train.epochs", "a whole number"]),
        ("train.epochs=0", ["train.epochs is 0", "1 to "]),
        ("train.lr=nan", ["train.lr", "finite"]),
        ("train.lr=" + 400 * "9", ["train.lr", "finite"]),
        ("train.lr=-1", ["train.lr", "0 or more"]),
        ("model.norm=group", ["model.norm is 'group'", "'unbiased'"]),
        ("model.feed_forward=1", ["model.feed_forward", "true or false"]),
        ("model.input_projection=wide", ["model.input_projection is 'wide'", "true or false or a whole number"]),
        ("model.top_k=None", ["model.top_k is 'None'", "a whole number or none"]),
        ("train.seed=99999999999999999999", ["train.seed is 99999999999999999999", "0 to 4,294,967,295"]),
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
        ("[modle]\nK = 3\n", "did you mean 'model'"),
        ("model = 3\n", "a table"),
        ("[model\n", "not TOML"),
        ('[search]\n"train.lrr" = [1]\n', "did you mean 'search.train.lr'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        load_recipe(str(tmp_path / "bad.toml"))
    assert "bad.toml" in str(caught.value)


def test_a_file_of_data_is_no_recipe(tmp_path: Path) -> None:
    for name in ("train.tsv", "nodes.csv", "train.txt.gz"):
        (tmp_path / name).write_text("a\tr\tb\n")
        with pytest.raises(ValueError, match=f"{name}'; allowed: the folder of your data, {tmp_path}, "):
            load_recipe(str(tmp_path / name))


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'digits'"):
        load_recipe("digit")
    with pytest.raises(ValueError, match=r"recipe is 'nowhere.toml'; allowed: a file, or one of"):
        load_recipe("nowhere.toml")
    with pytest.raises(ValueError, match="recipe is 'no/where'; allowed: a folder with your data"):
        load_recipe("no/where")


def test_a_run_folder_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(Config().to_toml())
    with pytest.raises(ValueError, match=r"this is a run folder; try resuming the run in"):
        load_recipe(str(tmp_path))
    (tmp_path / "nodes.csv").touch()
    assert load_recipe(str(tmp_path)).data.name == str(tmp_path)


def test_keys_cover_every_table() -> None:
    assert {"source.settings", "data.name", "model.K", "task.name", "train.lr", "expected.test"} <= set(keys(Config()))


@pytest.mark.parametrize("name", ["a/b", "../../x", "..", ".", "a\0b"])
def test_a_recipe_does_not_choose_the_place_of_its_folders(name: str) -> None:
    with pytest.raises(ValueError, match=r"recipe is '.*'; allowed: a name that a folder can have"):
        Config.from_dict({"recipe": name})


@pytest.mark.parametrize("keys", [["model.K, model.K"], ["model.K", "model.heads, model.K"]])
def test_a_setting_is_searched_once(keys: list[str]) -> None:
    with pytest.raises(ValueError, match=r"search is 'model\.K'; allowed: each setting once"):
        Config.from_dict({"search": {key: [1, 2] for key in keys}})


def test_a_point_without_a_digit_is_a_number_all_the_same() -> None:
    config = Config().with_values(["train.lr=.01", "model.alpha=1.", "model.negative_slope=.2e0"])
    assert (config.train.lr, config.model.alpha, config.model.negative_slope) == (0.01, 1.0, 0.2)
