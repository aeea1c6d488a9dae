"""An experiment as frozen dataclasses: the one place where its defaults are written. TOML in, TOML and JSON out."""

from __future__ import annotations

import difflib
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from magna.config.path_kind import kind_of
from magna.config.toml import Range, at_least, build, checked, hints, make_range, parse, toml, toml_key, unknown
from magna.typing import (
    Backend,
    Control,
    DecoderName,
    HeadForm,
    HopWeights,
    Init,
    Memory,
    Mode,
    Norm,
    Projection,
    RelationGuess,
    RelationSource,
)

DEFAULT_RECIPE = "digits"
TRIPLES_RECIPE = "families"  # settings for triples of your own
_OF_DATA = (".tsv", ".txt", ".csv", ".parquet", ".gz")  # names of files that are no recipe
# Settings are chosen with the first, results are reported with the second; no seed is in both.
SEARCH_SEEDS, REPORT_SEEDS = range(1000, 2000), range(100)


@dataclass(frozen=True)
class SourceConfig:
    """Where the settings come from: the recipe tells its own story."""

    settings: str = ""


@dataclass(frozen=True)
class DataConfig:
    name: str = "digits"  # of a public data set, or the path of your own: a folder, or a .pt file
    split: Literal["public", "random"] = "public"  # the data's own, or another of the same size
    split_seed: int = 0  # of a split that is drawn
    features: Literal["published", "stand-in"] = "published"  # ogbn-arxiv: OGB's, or made without OGB's files
    undirected: bool = True  # both directions of every edge; false: edges as the files have them
    standardise_features: bool = False  # each column with mean 0 and deviation 1
    normalise_features: bool = False  # each row divided by its sum
    self_loops: bool = True  # one loop for each node, in place of those that are there
    control: Control = "none"  # of a knowledge graph: "random-graph" shuffles who is told, "no-types" what an edge says

    def __post_init__(self) -> None:
        at_least("data.split_seed", self.split_seed, 0)
        if self.standardise_features and self.normalise_features:
            raise ValueError(
                "data.standardise_features and data.normalise_features are both true; allowed: one of them"
            )


@dataclass(frozen=True)
class ModelConfig:
    """The arguments of a model; the documentation of `magna.MAGNA`, its blocks and its layers, and that of
    `magna.LinkPredictor` says what each one does.

    A model that lacks a setting (`magna.baselines`) refuses another value than the default.
    """

    name: Literal["magna", "gat", "diff-gcn"] = "magna"  # of node classification; the others are baselines
    members: int = 1  # of node classification: models trained side by side, whose probabilities are averaged
    hidden_channels: int = 64
    num_layers: int = 2
    heads: int = 8
    out_heads: int = 1  # of GAT: heads of its last layer
    K: int = 6
    alpha: float = 0.1
    input_projection: bool | int = True
    final_norm: Norm = "none"
    norm: Norm = "layer"
    norm_eps: float | None = None
    residual: bool = True
    feed_forward: bool = True
    ffn_multiplier: int = 4
    diffusion: bool = True
    head_form: HeadForm = "split"
    projection: Projection = "separate"
    out_projection: bool = True
    bias: bool = False
    tanh: bool = True
    negative_slope: float = 0.2
    score_scale: float = 1.0
    hop_weights: HopWeights = "fixed"
    mode: Mode = "truncated"
    tolerance: float = 1e-6
    init: Init = "glorot"
    node_dropout: float = 0.0
    embed_dropout: float = 0.0
    input_dropout: float = 0.0
    dropout: float = 0.0
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
    relation_channels: int | None = None
    relation_norm: Norm = "none"
    # Of a link predictor.
    decoder: DecoderName = "distmult"
    entity_channels: int = 100
    relation_source: RelationSource = "relations"
    embedding_std: float = 0.1
    decoder_dropout: float = 0.0
    entity_bias: bool = False
    loop_bias: bool = False
    skip_channels: int = 0


@dataclass(frozen=True)
class TaskConfig:
    name: Literal["node_classification", "link_prediction"] = "node_classification"  # the data must be of that kind
    # Of node classification.
    consistency: float = 0.0  # weight of the distance between stochastic passes (as in GRAND); 0: one pass, none
    passes: int = 2  # stochastic passes a step, where they are compared
    temperature: float = 0.5  # the mean of the passes is sharpened with it; 1: not at all
    confidence: float = 0.0  # only nodes whose mean gives a class at least this much are compared (as in GRAND+)
    ramp: int = 50  # epochs until the consistency has its full weight
    # Of link prediction.
    batch_size: int = 1024  # (head, relation) queries a step; with mask_answers a tenth of all of them at most
    query_weight: Literal["answers", "uniform"] = "answers"  # a query counts as often as it has answers, or once
    mask_answers: bool = True  # no edge in the graph gives away an answer of the batch
    label_smoothing: float = 0.1  # share of the target that goes to all entities alike
    relation_prediction: float = 0.0  # weight of guessing the relation from head and tail
    relation_guess: RelationGuess = "states"  # by the decoder's scores of the states, or e_h ∘ e_t of the embeddings
    n3: float = 0.0  # weight of the nuclear 3-norm of a score's factors
    skip_relation_prediction: float = 0.0  # `relation_prediction` of the embeddings past the encoder
    skip_n3: float = 0.0  # `n3` of the embeddings past the encoder

    def __post_init__(self) -> None:
        for name in _OTHER_TASK[self.name]:
            if getattr(self, name) != getattr(TaskConfig, name):
                raise ValueError(f"task.{name} is {getattr(self, name)!r}; {self.name} has no such setting")
        at_least("task.batch_size", self.batch_size, 1)
        for name in ("relation_prediction", "n3", "skip_relation_prediction", "skip_n3"):
            at_least(f"task.{name}", getattr(self, name), 0)
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"task.label_smoothing is {self.label_smoothing}; allowed: at least 0 and below 1")
        at_least("task.consistency", self.consistency, 0)
        at_least("task.passes", self.passes, 2)
        at_least("task.ramp", self.ramp, 1)
        if not 0 < self.temperature <= 1:
            raise ValueError(f"task.temperature is {self.temperature}; allowed: above 0 and at most 1")
        if not 0 <= self.confidence < 1:
            raise ValueError(f"task.confidence is {self.confidence}; allowed: 0 and above, below 1")


# Settings that a task does not have.
_OTHER_TASK = {
    "node_classification": (
        *("batch_size", "query_weight", "mask_answers", "label_smoothing", "relation_prediction", "relation_guess"),
        *("n3", "skip_relation_prediction", "skip_n3"),
    ),
    "link_prediction": ("consistency", "passes", "temperature", "confidence", "ramp"),
}


@dataclass(frozen=True)
class TrainConfig:
    epochs: int = 200  # the most that a run has
    lr: float = 0.005  # of Adam, where the cosine schedule starts
    skip_lr: float | None = None  # in its place for embeddings past the encoder; "none": `lr`
    weight_decay: float = 0.0005  # added to the gradient, as Adam does it
    beta1: float = 0.9  # of Adam's mean of the gradients
    beta2: float = 0.999  # of Adam's mean of their squares
    min_lr: float = 1e-8  # where the cosine schedule ends
    clip: float = 1.0  # largest norm of the gradient; 0: none
    patience: int = 200  # epochs without a better validation score before the run stops (the paper's window)
    eval_every: int = 1  # epochs from one validation to the next
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"  # of products: 23 bits; on a GPU 10, or 7 in training
    seed: int = 0  # of starting values, dropout and the order of batches; `--seeds N` counts on from it

    def __post_init__(self) -> None:
        at_least("train.epochs", self.epochs, 1)
        at_least("train.patience", self.patience, 1)
        at_least("train.eval_every", self.eval_every, 1)
        if not 0 <= self.seed < 2**32:  # so that a generator takes it, also multiplied
            raise ValueError(f"train.seed is {self.seed}; allowed: 0 to {2**32 - 1}")
        for name in ("lr", "skip_lr", "weight_decay", "min_lr", "clip"):
            if getattr(self, name) is not None:
                at_least(f"train.{name}", getattr(self, name), 0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"train.{name} is {getattr(self, name)}; allowed: at least 0 and below 1")


@dataclass(frozen=True)
class ExpectedConfig:
    """What the recipe gave when it was measured, accuracy or MRR: mean and standard deviation over `seeds` seeds."""

    seeds: int = 0
    valid: float = 0.0
    test: float = 0.0
    test_std: float = 0.0
    measured: str = ""
    paper: float = 0.0  # the paper's mean on the test split; 0: the paper has none


# Settings of embeddings past the encoder.
_SKIP = (("task", "skip_relation_prediction"), ("task", "skip_n3"), ("train", "skip_lr"))
_TABLES: dict[str, type] = {"task": TaskConfig, "train": TrainConfig}


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
    search: Mapping[str, Any] = field(default_factory=dict)  # key → a list of values or a `Range` that is tried
    expected: ExpectedConfig = field(default_factory=ExpectedConfig)

    def __post_init__(self) -> None:
        if self.recipe in (".", "..") or "/" in self.recipe or "\0" in self.recipe:
            raise ValueError(f"recipe is {self.recipe!r}; allowed: a name that a folder can have, without /")
        # Of two settings together; a table checks each of its own alone, as a search space does with its values.
        every, patience = self.train.eval_every, self.train.patience
        if every > patience:
            raise ValueError(f"train.eval_every is {every}; allowed: up to train.patience, {patience}")
        if self.model.skip_channels == 0:
            for table, name in _SKIP:
                value, default = getattr(getattr(self, table), name), getattr(_TABLES[table], name)
                if value != default:
                    raise ValueError(
                        f"{table}.{name} is {value} with model.skip_channels 0, no embeddings past the encoder; "
                        f"allowed: {toml(default)}, or more channels"
                    )

    @staticmethod
    def from_dict(tables: Mapping[str, Any]) -> Config:
        """Check every key and type; an unknown key is an error that names the nearest valid one."""
        config: Config = build(Config, tables, "")
        searched = [name for key in config.search for name in split_key(key)]
        for name in searched:
            if searched.count(name) > 1:
                raise ValueError(f"search.{name} is there {searched.count(name)} times; allowed: each setting once")
        return replace(config, search={key: _space(config, key, values) for key, values in config.search.items()})

    @staticmethod
    def from_toml(path: str | Path) -> Config:
        try:
            return Config.from_dict(tomllib.loads(Path(path).read_text(encoding="utf-8-sig")))
        except FileNotFoundError:
            raise ValueError(f"{path} is not there; try the name of a recipe: {', '.join(recipe_names())}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}; allowed: a recipe, or the config.toml of a run") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def with_values(self, assignments: Sequence[str]) -> Config:
        """Apply `--set` assignments such as `train.epochs=40`."""
        settings = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or not key.strip():
                raise ValueError(f"--set got {assignment!r}; allowed: key=value, such as train.epochs=40")
            settings[key.strip()] = parse(text.strip())
        return self.with_settings(settings)

    def with_settings(self, settings: Mapping[str, Any]) -> Config:
        """Replace values by their keys; a key may be several, with a comma between them, that share a value.

        >>> Config().with_settings({"train.epochs, train.patience": 40}).train.patience
        40
        """
        tables = self.to_dict()
        for key, value in settings.items():
            for name in split_key(key):
                _replace_in(tables, name, value, list(keys(self)))
        return Config.from_dict(tables)

    def with_seed(self, seed: int) -> Config:
        return replace(self, train=replace(self.train, seed=seed))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_toml(self) -> str:
        tables = self.to_dict()
        lines = [f"recipe = {toml(tables.pop('recipe'))}"]
        for name, table in tables.items():
            entries = [f"{toml_key(key)} = {toml(value)}" for key, value in table.items() if value is not None]
            lines += ["", f"[{name}]", *entries]
        return "\n".join(lines) + "\n"


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _recipes().iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str | None = None) -> Config:
    """A recipe by its name or from a TOML file, or the default one; the path of your own data stands for one too."""
    name = name or DEFAULT_RECIPE
    if name in recipe_names():
        config = Config.from_dict(tomllib.loads((_recipes() / f"{name}.toml").read_text(encoding="utf-8")))
        return replace(config, recipe=name)
    path = Path(name)
    if path.is_dir() or (path.suffix == ".pt" and path.is_file()):
        return _own_data(path)
    if path.suffix.lower() in _OF_DATA and path.is_file():
        raise ValueError(
            f"{name} is a file; allowed: the folder of your own data, {shlex.quote(str(path.parent))}, a TOML file, or "
            "the name of a recipe"
        )
    if name.endswith(".toml") or path.is_file():
        config = Config.from_toml(name)
        return replace(config, recipe=config.recipe or path.stem)
    if path.name != name:
        raise ValueError(f"{name} is not there; allowed: a folder with your own data, a TOML file, or a recipe's name")
    near = difflib.get_close_matches(name, recipe_names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"recipe is {name!r}; {hint}allowed: {', '.join(recipe_names())}, a TOML file, or a folder with your own data"
    )


def _own_data(path: Path) -> Config:
    """An embedded recipe's settings on data of your own: triples by their files, else a graph with features."""
    path = path.resolve()  # the run folder is read from anywhere
    kind = kind_of(path)
    if kind == "run":
        raise ValueError(
            f"{path} is a run folder; allowed: a recipe, a TOML file or a folder with your own data; to go on with the "
            f"run, try magna train --resume --run-dir {shlex.quote(str(path))}"
        )
    recipe = TRIPLES_RECIPE if kind == "triples" else DEFAULT_RECIPE
    return replace(
        load_recipe(recipe),
        recipe=path.name if path.is_dir() else path.stem,
        source=SourceConfig(f"Model and training: the recipe {recipe}; nothing was searched for this data."),
        # The columns of a graph with features may have any scale.
        data=DataConfig(name=str(path), standardise_features=kind != "triples"),
        expected=ExpectedConfig(),
    )


def split_key(key: str) -> list[str]:
    """The settings that a key names: mostly one.

    >>> split_key("model.input_dropout, model.output_dropout")
    ['model.input_dropout', 'model.output_dropout']
    """
    return [name.strip() for name in key.split(",")]


def keys(config: Config) -> Iterator[str]:
    """Every key that a recipe or `--set` may give, such as `train.epochs`."""
    for name in ("source", "data", "model", "task", "train", "expected"):
        yield from (f"{name}.{entry.name}" for entry in fields(getattr(config, name)))


def _recipes():
    return resources.files("magna.config") / "recipes"


def _space(config: Config, key: str, values: Any) -> list[Any] | Range:
    """What `[search]` says about a key: a list of values, or a table of bounds."""
    # All trials share the data, and the search gives out the seeds.
    searchable = [name for name in keys(config) if name.startswith(("model.", "task.", "train."))]
    searchable = [name for name in searchable if name not in ("task.name", "train.seed")]
    space: list[Any] | Range
    for name in split_key(key):
        if name not in searchable:
            raise unknown(f"search.{name}", [f"search.{known}" for known in searchable])
        table, entry = name.split(".")
        settings = getattr(config, table)
        hint = hints(type(settings))[entry]  # type: ignore[arg-type]
        if isinstance(values, list | tuple) and values:
            space = [checked(f"search.{name}", value, hint) for value in values]
        elif isinstance(values, Mapping):
            space = make_range(f"search.{name}", values, hint)
        else:
            raise ValueError(
                f"search.{name} is {values!r}; allowed: a list of values, or a table such as {{ low = 1, high = 8 }}"
            )
        for value in space if isinstance(space, list) else (space.low, space.high):
            replace(settings, **{entry: value})  # refuses what its own table would refuse
    return space


def _replace_in(tables: dict[str, Any], key: str, value: Any, allowed: list[str]) -> None:
    if key not in allowed:
        raise unknown(key, allowed)
    table, name = key.split(".")
    tables[table][name] = value
