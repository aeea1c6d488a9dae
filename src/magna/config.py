"""An experiment as frozen dataclasses: the one place where its defaults are written. TOML in, TOML and JSON out."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from magna.typing import Backend, HeadForm, HopWeights, Init, Memory, Mode, Norm, Projection

DEFAULT_RECIPE = "digits"


@dataclass(frozen=True)
class SourceConfig:
    """Where the settings come from: the recipe tells its own story."""

    settings: str = ""


@dataclass(frozen=True)
class DataConfig:
    name: str = "digits"
    normalise_features: bool = False  # each row divided by its sum
    self_loops: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """The arguments of `magna.MAGNA`; its documentation, its blocks' and its layers' say what each one does."""

    hidden_channels: int = 64
    num_layers: int = 2
    heads: int = 8
    K: int = 6
    alpha: float = 0.1
    input_projection: bool | int = True
    final_norm: Norm = "none"
    norm: Norm = "layer"
    norm_eps: float | None = None
    feed_forward: bool = True
    ffn_multiplier: int = 4
    diffusion: bool = True
    head_form: HeadForm = "split"
    projection: Projection = "separate"
    out_projection: bool = True
    bias: bool = False
    tanh: bool = True
    negative_slope: float = 0.2
    hop_weights: HopWeights = "fixed"
    mode: Mode = "truncated"
    tolerance: float = 1e-6
    init: Init = "glorot"
    embed_dropout: float = 0.0
    input_dropout: float = 0.0
    attention_dropout: float = 0.0
    feature_dropout: float = 0.0
    output_dropout: float = 0.0
    residual_dropout: float = 0.0
    ffn_dropout: float = 0.0
    ffn_output_dropout: float = 0.0
    classifier_dropout: float = 0.0
    edge_dropout: float = 0.0
    edge_pairs: bool = True
    edge_dropout_shared: bool = False
    top_k: int | None = None
    top_k_shared: bool = False
    memory: Memory = "auto"
    backend: Backend = "auto"


@dataclass(frozen=True)
class TaskConfig:
    name: Literal["node_classification"] = "node_classification"


@dataclass(frozen=True)
class TrainConfig:
    epochs: int = 200
    lr: float = 0.005
    weight_decay: float = 0.0005  # added to the gradient, as Adam does it
    min_lr: float = 1e-8  # where the cosine schedule ends
    clip: float = 1.0  # largest norm of the gradient; 0: none
    patience: int = 200  # epochs without a better validation score before the run stops (the paper's window)
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least("train.epochs", self.epochs, 1)
        _at_least("train.patience", self.patience, 1)
        _at_least("train.seed", self.seed, 0)
        for name in ("lr", "weight_decay", "min_lr", "clip"):
            _at_least(f"train.{name}", getattr(self, name), 0)


@dataclass(frozen=True)
class ExpectedConfig:
    """What the recipe gave when it was measured: means and standard deviations over `seeds` seeds."""

    seeds: int = 0
    valid: float = 0.0
    test: float = 0.0
    test_std: float = 0.0
    measured: str = ""


@dataclass(frozen=True)
class Config:
    """Everything needed to repeat a run.

    >>> Config.from_dict({"train": {"epochs": 40}}).train.epochs
    40
    """

    recipe: str = ""
    source: SourceConfig = field(default_factory=SourceConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # key → the values that were tried
    expected: ExpectedConfig = field(default_factory=ExpectedConfig)

    @staticmethod
    def from_dict(tables: Mapping[str, Any]) -> Config:
        """Check every key and type; an unknown key is an error that names the nearest valid one."""
        config: Config = _build(Config, tables, "")
        for key in config.search:
            if key not in set(keys(config)):
                raise _unknown(f"search.{key}", [f"search.{known}" for known in keys(config)])
        return config

    @staticmethod
    def from_toml(path: str | Path) -> Config:
        try:
            return Config.from_dict(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise ValueError(f"{path} is not there; try the name of a recipe: {', '.join(recipe_names())}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def with_values(self, assignments: Sequence[str]) -> Config:
        """Apply `--set` assignments such as `train.epochs=40`."""
        tables = self.to_dict()
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise ValueError(f"--set got {assignment!r}; allowed: key=value, such as train.epochs=40")
            _replace_in(tables, key.strip(), _parse(text.strip()), list(keys(self)))
        return Config.from_dict(tables)

    def with_seed(self, seed: int) -> Config:
        return replace(self, train=replace(self.train, seed=seed))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_toml(self) -> str:
        tables = self.to_dict()
        lines = [f"recipe = {_toml(tables.pop('recipe'))}"]
        for name, table in tables.items():
            entries = [f"{_toml_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None]
            lines += ["", f"[{name}]", *entries]
        return "\n".join(lines) + "\n"


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _recipes().iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str | None = None) -> Config:
    """A recipe by its name, or from a TOML file; the default one where nothing is given."""
    name = name or DEFAULT_RECIPE
    if name in recipe_names():
        config = Config.from_dict(tomllib.loads((_recipes() / f"{name}.toml").read_text(encoding="utf-8")))
        return replace(config, recipe=name)
    if name.endswith(".toml") or Path(name).is_file():
        config = Config.from_toml(name)
        return replace(config, recipe=config.recipe or Path(name).stem)
    near = difflib.get_close_matches(name, recipe_names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"recipe is {name!r}; allowed: {', '.join(recipe_names())}, or a TOML file{hint}")


def keys(config: Config) -> Iterator[str]:
    """Every key that a recipe or `--set` may give, such as `train.epochs`."""
    for name in ("source", "data", "model", "task", "train", "expected"):
        yield from (f"{name}.{entry.name}" for entry in fields(getattr(config, name)))


def _recipes():
    return resources.files("magna") / "recipes"


def _build(kind: Any, values: Mapping[str, Any], prefix: str) -> Any:
    hints = get_type_hints(kind)
    arguments = {}
    for key, value in values.items():
        if key not in hints:
            raise _unknown(prefix + key, [prefix + name for name in hints])
        arguments[key] = _checked(prefix + key, value, hints[key])
    return kind(**arguments)


def _checked(key: str, value: Any, hint: Any) -> Any:
    """The value as the type that its field asks for."""
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} is {value!r}; allowed: a table, [{key}]")
        return _build(hint, value, f"{key}.")
    if get_origin(hint) in (Union, types.UnionType):
        kinds = get_args(hint)
        if type(None) in kinds and value in (None, "none"):
            return None
        # `bool | int`: the exact type first, so that true stays true.
        return _checked(key, value, next((kind for kind in kinds if type(value) is kind), kinds[0]))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{key} is {value!r}; allowed: {', '.join(map(repr, get_args(hint)))}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if get_origin(hint) is not None:
        hint = get_origin(hint)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ValueError(f"{key} is {value!r}; allowed: {_WORDS.get(hint, hint.__name__)}")
    if hint is float and not math.isfinite(value):
        raise ValueError(f"{key} is {value}; allowed: a finite number")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _unknown(key: str, allowed: list[str]) -> ValueError:
    near = difflib.get_close_matches(key, allowed, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(allowed)}"
    return ValueError(f"{key} is not a key of a recipe; {hint}")


def _replace_in(tables: dict[str, Any], key: str, value: Any, allowed: list[str]) -> None:
    if key not in allowed:
        raise _unknown(key, allowed)
    table, name = key.split(".")
    tables[table][name] = value


def _parse(text: str) -> Any:
    """A TOML value; what is none is taken as text, so that quotes are not needed on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _toml_key(key: str) -> str:
    return key if key.isidentifier() else json.dumps(key)


def _at_least(name: str, value: float, low: float) -> None:
    if value < low:
        raise ValueError(f"{name} is {value}; allowed: {low} or more")
