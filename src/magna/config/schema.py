"""An experiment as frozen dataclasses. TOML in, TOML and JSON out."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from magna.config.options import Needs, Options
from magna.config.path_kind import kind_of
from magna.config.registry import NODE_TASK, ModelSettings, find_model, model_names
from magna.config.spaces import TABLES, keys, search_space, split_key, unknown_key
from magna.config.tables import (
    TASKS,
    ExpectedOptions,
    LinkDataOptions,
    LinkTask,
    NodeDataOptions,
    NodeTask,
    SourceOptions,
    TrainOptions,
)
from magna.config.toml import Range, parse, toml, toml_key
from magna.errors import ArgumentError, UnknownName, listed, nearest_path

DEFAULT_RECIPE = "digits"
TRIPLES_RECIPE = "families"  # settings for triples of your own
# Settings are chosen with the first, results are reported with the second; no seed is in both.
SEARCH_SEEDS, REPORT_SEEDS = range(1000, 2000), range(100)

_DATA_SUFFIXES = (".tsv", ".txt", ".csv", ".parquet", ".gz")  # names of files that are no recipe
_TRAINED = ("data", "model", "task", "train")
_OF_TASK: Any = None  # replaced by the default of the task


@dataclass(frozen=True)
class Config:
    """Everything needed to repeat a run.

    `model` holds the options of the model, `model.name` and for nodes `model.members`. Options that do nothing next to
    the others have their defaults.

    >>> Config.from_dict({"train": {"epochs": 40}}).train.epochs
    40
    """

    recipe: str = ""
    source: SourceOptions = field(default_factory=SourceOptions)
    data: NodeDataOptions | LinkDataOptions = _OF_TASK
    model: ModelSettings = _OF_TASK
    task: NodeTask | LinkTask = field(default_factory=NodeTask)
    train: TrainOptions = field(default_factory=TrainOptions)
    search: Mapping[str, Any] = field(default_factory=dict)  # key → a list of values or a `Range` that is tried
    expected: ExpectedOptions = field(default_factory=ExpectedOptions)

    def __post_init__(self) -> None:
        if not isinstance(self.recipe, str) or self.recipe in (".", "..") or set("/\0") & set(self.recipe):
            raise ArgumentError("recipe", self.recipe, "a name that a folder can have, without /")
        self._set("data", self.data or self.task.DATA())
        self._set("model", self.model or find_model(self.task.name, "magna").settings())
        if not isinstance(self.data, self.task.DATA) or getattr(self.model, "task", None) != self.task.name:
            raise ArgumentError("task", self.task.name, "the task of data and model")
        for table in _TRAINED:
            options = getattr(self, table)
            self._set(table, options.with_defaults([name for name in options.in_recipes() if self._unmet(table, name)]))

    @staticmethod
    def from_dict(tables: Mapping[str, Any]) -> Config:
        """A config from tables of values; unknown keys, and values that would do nothing, are refused."""
        changes = {name: table for name, table in tables.items() if name != "base"}
        explicit = [
            f"{name}.{key}" for name in _TRAINED if isinstance(tables.get(name), Mapping) for key in tables[name]
        ]
        if "base" not in tables:
            return _build(changes, explicit)
        if tables["base"] not in recipe_names():
            raise UnknownName("base", tables["base"], recipe_names())
        merged = {name: t for name, t in load_recipe(tables["base"])._tables().items() if name in (*_TRAINED, "search")}
        for name, table in changes.items():
            both = name in _TRAINED and isinstance(table, Mapping)
            merged[name] = {**merged[name], **table} if both else table
        return _build(merged, explicit)

    @staticmethod
    def from_toml(path: str | Path) -> Config:
        """A config from a file: a recipe, or the config.toml of a run."""
        try:
            return Config.from_dict(tomllib.loads(Path(path).read_text(encoding="utf-8-sig")))
        except FileNotFoundError:
            raise ArgumentError("recipe", str(path), f"a file, or one of {listed(recipe_names())}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}; allowed: a recipe, or the config.toml of a run") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def with_values(self, assignments: Sequence[str], *, drop_idle: bool = False) -> Config:
        """Apply assignments such as `train.epochs=40`; see :meth:`with_settings`."""
        settings = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or not key.strip():
                raise ArgumentError("setting", assignment, "key=value, such as train.epochs=40")
            settings[key.strip()] = parse(text.strip())
        return self.with_settings(settings, drop_idle=drop_idle)

    def with_settings(self, settings: Mapping[str, Any], *, drop_idle: bool = False) -> Config:
        """Replace values by their keys; a key may be several, with a comma between them, that share a value.

        A value that would do nothing is refused; with `drop_idle` it is left out, as are those of this config that
        do nothing any more.

        >>> Config().with_settings({"train.epochs, train.patience": 40}).train.patience
        40
        """
        tables, explicit = self._tables(), []
        for key, value in settings.items():
            for name in split_key(key):
                table, _, entry = name.partition(".")
                if table not in TABLES or not entry:
                    raise unknown_key(name, list(keys(self)))
                tables[table][entry] = value
                explicit.append(name)
        return _build(tables, [] if drop_idle else explicit)

    def with_seed(self, seed: int) -> Config:
        return replace(self, train=replace(self.train, seed=seed))

    def to_dict(self) -> dict[str, Any]:
        """Every setting that does something, by table."""
        return self._tables(defaults=True)

    def to_toml(self) -> str:
        """The content of a file that :meth:`from_toml` reads back."""
        tables = self.to_dict()
        lines = [f"recipe = {toml(tables.pop('recipe'))}"]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{toml_key(key)} = {toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    def _set(self, table: str, options: Any) -> None:
        object.__setattr__(self, table, options)

    def _unmet(self, table: str, name: str) -> str | None:
        """The condition that a setting would need to do something; None if it does."""
        options = getattr(self, table)
        need: Needs | None = options.options()[name].model_needs
        if need is not None and not need.holds(self.model):
            return need.words
        words: str | None = options.unmet(name)
        return words

    def _tables(self, defaults: bool = False) -> dict[str, Any]:
        """The settings by table: the changed ones, or all that do something."""
        tables: dict[str, Any] = {"recipe": self.recipe}
        for table in TABLES:
            options = getattr(self, table)
            values = {name: getattr(options, name) for name in options.in_recipes()}
            plain = {} if defaults else {name: getattr(type(options), name) for name in values}
            tables[table] = {"name": options.name} if table in ("model", "task") else {}
            for name, value in values.items():
                if self._unmet(table, name) is None and (defaults or value != plain[name]):
                    tables[table][name] = value
        tables["source"]["search"] = [run.changes() for run in self.source.search]
        spaces = self.search.items()
        tables["search"] = {key: asdict(space) if isinstance(space, Range) else space for key, space in spaces}
        return tables


def _build(tables: Mapping[str, Any], explicit: Collection[str]) -> Config:
    """A config from tables; of the `explicit` settings those that would do nothing are refused."""
    for name, table in tables.items():
        if name not in ("recipe", "search", *TABLES):
            raise UnknownName("table", name, ["recipe", "search", *TABLES])
        if name != "recipe" and not isinstance(table, Mapping):
            raise ArgumentError(name, table, f"a table, [{name}]")
    values = {name: dict(tables.get(name, {})) for name in TABLES}
    task, model = values["task"].pop("name", NODE_TASK), values["model"].pop("name", "magna")
    if task not in TASKS:
        raise ArgumentError("task.name", task, list(TASKS))
    kinds: dict[str, Any] = {"task": TASKS[task], "data": TASKS[task].DATA, "model": find_model(task, model).settings}
    kinds |= {"source": SourceOptions, "train": TrainOptions, "expected": ExpectedOptions}
    owners = {"model": f"model {model!r}", "task": task, "data": f"the data of {task}"}
    for table, entries in values.items():
        for entry, value in entries.items():
            if entry not in kinds[table].in_recipes() and (table, entry) != ("source", "search"):
                raise _refused(table, entry, value, kinds, owners.get(table))
    parts = {table: _renamed(table, kinds[table], values[table]) for table in kinds}
    config = Config(recipe=tables.get("recipe", ""), **parts)
    for key in explicit:
        table, entry = key.split(".")
        if entry != "name" or table == "data":
            if (words := config._unmet(table, entry)) is not None:
                raise ArgumentError(key, values[table][entry], f"only with {words}")
    space: Mapping[str, Any] = tables.get("search", {})
    searched = [name for key in space for name in split_key(key)]
    for name in searched:
        if searched.count(name) > 1:
            raise ArgumentError("search", name, "each setting once")
    return replace(config, search={key: search_space(config, key, tried) for key, tried in space.items()})


def _renamed(table: str, kind: type[Options], values: Mapping[str, Any]) -> Any:
    """Options whose refusals are named as settings."""
    try:
        return kind(**values)
    except ArgumentError as error:
        raise error.renamed(f"{table}.{error.name}") from None


def _refused(table: str, entry: str, value: Any, kinds: Mapping[str, Any], owner: str | None) -> ArgumentError:
    """The error of a setting that the chosen model or task does not have, or that nothing has."""
    key, names = f"{table}.{entry}", kinds[table].in_recipes()
    renamed = next((name for name in names if entry in kinds[table].options()[name].was), None)
    if renamed is not None:
        return UnknownName("setting", key, f"{table}.{renamed}, its new name")
    if any(entry in kind.in_recipes() for kind in _every_kind(table)):
        return ArgumentError(key, value, f"a setting of {owner}: {listed(f'{table}.{name}' for name in names)}")
    return unknown_key(key, [f"{part}.{name}" for part, kind in kinds.items() for name in kind.in_recipes()])


def _every_kind(table: str) -> list[type[Options]]:
    """The options of a table for all tasks and models."""
    if table == "model":
        return [find_model(task, name).settings for task in TASKS for name in model_names(task)]
    return [kind.DATA if table == "data" else kind for kind in TASKS.values() if table in ("data", "task")]


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
        return _of_user_data(path)
    if path.suffix.lower() in _DATA_SUFFIXES and path.is_file():
        raise ArgumentError("recipe", name, f"the folder of your data, {path.parent}, a TOML file, or a recipe's name")
    if name.endswith(".toml") or path.is_file():
        config = Config.from_toml(name)
        return replace(config, recipe=config.recipe or path.stem)
    if path.name != name:
        raise ArgumentError("recipe", name, "a folder with your data, a TOML file, a recipe", nearest_path(path) or "")
    raise UnknownName("recipe", name, recipe_names(), "a TOML file, or a folder with your data")


def make_config(
    what: Config | str | Path | None = None, recipe: str | None = None, settings: Mapping[str, Any] | None = None
) -> Config:
    """A config from a recipe's name, a TOML file, a config, or the path of your own data, with some settings changed.

    Args:
        what: the recipe, file, config or data; None: the default recipe.
        recipe: the recipe whose settings serve your data; None: that of the embedded data of its kind.
        settings: values by their keys, such as `{"train.epochs": 40}`.
    """
    if isinstance(what, Config):
        config = what
    elif recipe is None or what is None:
        config = load_recipe(str(what) if what is not None else recipe)
    else:
        config = _of_user_data(Path(what), recipe)
    return config.with_settings(settings or {})


def _of_user_data(path: Path, recipe: str | None = None) -> Config:
    """The settings of a recipe for data of the user: triples by their files, else a graph with features."""
    path = path.resolve()  # the run folder is read from anywhere
    kind = kind_of(path)
    if kind == "run":
        raise ArgumentError(
            "recipe",
            str(path),
            "a recipe, a TOML file or a folder with your data, and this is a run folder",
            f"resuming the run in {shlex.quote(str(path))}",
        )
    recipe = recipe or (TRIPLES_RECIPE if kind == "triples" else DEFAULT_RECIPE)
    settings = f"Model and training settings are those of the recipe {recipe}; none were searched for this data."
    # The columns of a graph with features may have any scale.
    data = LinkDataOptions(name=str(path)) if kind == "triples" else None
    return replace(
        load_recipe(recipe),
        recipe=path.name if path.is_dir() else path.stem,
        source=SourceOptions(settings=settings),
        data=data or NodeDataOptions(name=str(path), standardise_features=True),
        expected=ExpectedOptions(),
    )


def _recipes() -> Any:
    return resources.files("magna.config") / "recipes"
