"""Node models of the tables `nodes` and `nodes-consistency`, and the search space that all of them share."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from magna.config.registry import model_settings
from magna.config.schema import Config, load_recipe, recipe_names
from magna.config.spaces import split_key
from magna.config.toml import Range, parse, toml
from magna.errors import ArgumentError

WITHOUT, WITH = "nodes", "nodes-consistency"
Knobs = dict[str, Range | tuple[Any, ...]]
Draw = dict[str, Any]


class Effort(NamedTuple):
    """The size of a search and of its report, equal for all rows of a data set."""

    trials: int
    seeds: int  # of the report
    confirmed: int = 5  # best trials that train again with further seeds
    widenings: int = 2  # searches after the first, each in a wider space


EFFORTS = {"cora": Effort(64, 20), "citeseer": Effort(32, 20), "pubmed": Effort(16, 10)}
QUICK_EFFORT = Effort(4, 2, 0, 0)


class System(NamedTuple):
    """A row: the system of its recipe `DATA-SYSTEM`, and the settings that all its trials share."""

    system: str  # "" is our own model
    fixed: tuple[str, ...] = ()
    tables: tuple[str, ...] = (WITHOUT, WITH)


NO_NORM = ("model.norm=none", "model.final_norm=none")
# Row → system. The first three differ in the hops alone.
SYSTEMS = {
    "MAGNA": System(""),
    "MAGNA, one hop": System("", ("model.K=1",)),
    "MAGNA, one hop without teleport": System("", ("model.K=1", "model.alpha=0.0")),
    "GCN": System("gcn"),
    "Cheby": System("cheby"),
    "DualGCN": System("dualgcn"),
    "JKNet": System("jknet"),
    "LGCN": System("lgcn"),
    "Diff-GCN": System("diff-gcn"),
    "Diff-GCN, heat": System("diff-gcn-heat"),
    "APPNP": System("appnp"),
    "g-U-Nets": System("g-u-nets"),
    "GAT": System("gat"),
    "GraphSAGE": System("graphsage"),
    "DAGNN": System("dagnn"),
    "GaAN": System("gaan"),
    "GCNII": System("gcnii"),
    "GAT with residuals": System("gat-residual"),
    "GAT, LayerNorm + FF": System("gat-ln-ff", ("model.norm=layer",)),
    "Diff-GCN, LayerNorm + FF": System("diff-gcn-ln-ff", ("model.norm=layer",)),
    "GRAND": System("grand", tables=(WITH,)),
    "GRAND+": System("grand-plus", tables=(WITH,)),
    "No LayerNorm": System("", NO_NORM, (WITH,)),
    "No Feed-Forward": System("", ("model.feed_forward=false",), (WITH,)),
    "No (LayerNorm + Feed-Forward)": System("", (*NO_NORM, "model.feed_forward=false"), (WITH,)),
}

# A model drops the knobs that it does not have. A key with a comma gives both settings the same value.
WIDTHS, DEPTHS = (16, 32, 64, 128, 256), (1, 2, 3)
NORMS = ("none", "batch", "layer")
SCALINGS = {
    "none": {"data.normalise_features": False, "data.standardise_features": False},
    "rows": {"data.normalise_features": True, "data.standardise_features": False},
    "columns": {"data.normalise_features": False, "data.standardise_features": True},
}
SCHEDULES = ("constant", "cosine")
DROPOUT = Range(0.0, 0.9)
NUMBERS: Knobs = {
    "train.lr": Range(1e-3, 1e-1, log=True),
    "train.weight_decay": Range(1e-5, 1e-1, log=True),
    "train.clip": (0.0, 1.0),
}
CONSISTENCY: Knobs = {
    "task.consistency": Range(0.5, 3.0),
    "task.temperature": Range(0.1, 0.6),
    "task.ramp": (1, 50, 250),
}
TRAINING = ("train.epochs=500", "train.patience=100", "train.eval_every=1", "train.precision=float32")
COMMON_DROPOUTS = ("embed_dropout", "input_dropout", "classifier_dropout", "dropout", "ffn_dropout")
# Published knobs in place of those of the [search] table of a recipe.
OWN: dict[str, Knobs] = {
    "magna": {"model.heads": (4, 8), "model.K": Range(2, 12), "model.alpha": Range(0.05, 0.6)},
    "appnp": {
        "model.K": (2, 5, 10, 15, 20),
        "model.alpha": (0.05, 0.1, 0.2, 0.3),
        "model.edge_dropout": (0.0, 0.2, 0.4, 0.6),
    },
}
_WIDEN_WITHIN = 0.05  # share of a range at its ends
_DOUBLES = 1.9  # least factor between neighbours of a list that grows by factors
_NEVER_WIDENED = ("train.clip", "task.ramp", "task.temperature", "model.norm")


@dataclass(frozen=True)
class Space:
    """Knobs of a model: those of one structure share a batch, the numbers may differ within it."""

    structure: Knobs
    numbers: Knobs

    @property
    def knobs(self) -> Knobs:
        return {**self.structure, **self.numbers}

    def text(self) -> str:
        """The space as text, equal for equal spaces."""
        return toml({key: vars(knob) if isinstance(knob, Range) else knob for key, knob in self.knobs.items()})

    def draws(self, seed: str, trials: int, per_structure: int) -> list[Draw]:
        """Trials by a seed: structures one after the other, with `per_structure` draws of the numbers each."""
        draws = []
        for start in range(0, trials, per_structure):
            structure = _drawn(self.structure, random.Random(f"{seed}/{start}"))
            for number in range(start, min(start + per_structure, trials)):
                draws.append({**structure, **_drawn(self.numbers, random.Random(f"{seed}/{start}/{number}"))})
        return draws

    def widened(self, best: Draw, config: Config) -> tuple[Space, list[str]]:
        """The space with the knobs widened at whose ends the best draw lies, and their keys.

        A knob stays as it is where the settings would refuse its wider end.
        """
        wider = {key: _widened(key, knob, best[key]) for key, knob in self.knobs.items() if key in best}
        changed = {key: knob for key, knob in wider.items() if knob is not None and _is_allowed(config, key, knob)}
        parts = ({key: changed.get(key, knob) for key, knob in part.items()} for part in (self.structure, self.numbers))
        return Space(*parts), list(changed)


def system_config(table: str, dataset: str, row: str) -> Config:
    """The settings that all trials of a row share: its recipe with the training of the common protocol."""
    system = SYSTEMS[row]
    name = f"{dataset}-{system.system}" if system.system else dataset
    if f"{name}-published" in recipe_names():
        name = f"{name}-published"
    config = load_recipe(name)
    if not system.system:  # earlier searches had more trials: their settings are no start
        config = replace(config, model=model_settings(heads=8))
    consistency = 0.0 if table == WITHOUT else getattr(config.task, "consistency", 0.0) or 1.0
    return config.with_values([*TRAINING, f"task.consistency={consistency}", *system.fixed], drop_idle=True)


def space_of(config: Config, table: str, fixed: Sequence[str]) -> Space:
    """The common space without what the model does not have, and with the model's own knobs."""
    model, held = config.model, {key.partition("=")[0] for key in fixed}
    fields = [name for name in model.in_recipes() if config._unmet("model", name) is None]
    structure: Knobs = {"scaling": tuple(SCALINGS)}
    widths, depths = _centred(WIDTHS, config, "hidden_channels"), _centred(DEPTHS, config, "num_layers")
    for name, choices in (("hidden_channels", widths), ("num_layers", depths), ("norm", NORMS)):
        if name in fields:
            structure[f"model.{name}"] = choices
    if {"norm", "final_norm"} <= set(fields) and "norm" in structure:
        structure["model.norm, model.final_norm"] = structure.pop("model.norm")
    numbers: Knobs = {**NUMBERS, "schedule": SCHEDULES, **(CONSISTENCY if table == WITH else {})}
    free = model.per_trial()
    numbers |= {f"model.{name}": DROPOUT for name in COMMON_DROPOUTS if name in fields and name in free}
    common = {name for key in (*structure, *numbers) for name in split_key(key)}
    for key, knob in (OWN.get(model.name) or _own_knobs(config, common)).items():
        of_structure = not all(name.partition(".")[2] in free for name in split_key(key))
        (structure if of_structure else numbers)[key] = knob
    return Space(*(_without(part, held) for part in (structure, numbers)))


def settings_of_draw(draw: Draw) -> dict[str, Any]:
    """The settings of a draw, by their keys.

    >>> settings_of_draw({"schedule": "cosine", "train.lr": 0.01, "scaling": "none"})["train.min_lr"]
    1e-08
    """
    settings = dict(draw)
    settings.update(SCALINGS[settings.pop("scaling")] if "scaling" in draw else {})
    if (schedule := settings.pop("schedule", None)) is not None:
        settings["train.min_lr"] = settings["train.lr"] if schedule == "constant" else 1e-8
    return {name: value for key, value in settings.items() for name in split_key(key)}


def assignments(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings as `key=value`, which :meth:`Config.with_values` reads back.

    >>> assignments({"model.norm": "batch", "train.lr": 0.01})
    ('model.norm=batch', 'train.lr=0.01')
    """
    return tuple(
        f"{key}={value if isinstance(value, str) and parse(value) == value else toml(value)}"
        for key, value in settings.items()
    )


def _own_knobs(config: Config, common: set[str]) -> Knobs:
    """The published knobs of a model: those of its recipe that are not in the common space."""
    published: Knobs = {}
    for key, tried in config.search.items():
        names = [name for name in split_key(key) if name not in common and name.startswith("model.")]
        if names:
            published[", ".join(names)] = tried if isinstance(tried, Range) else tuple(tried)
    return published


def _centred(choices: tuple[int, ...], config: Config, name: str) -> tuple[int, ...]:
    """The depths of the recipe's own [search] where they lie elsewhere: deep models, and such with a least depth."""
    depths = config.search.get(f"model.{name}")
    return tuple(depths) if isinstance(depths, list) and set(depths) != set(choices) else choices


def _without(knobs: Knobs, held: set[str]) -> Knobs:
    return {key: knob for key, knob in knobs.items() if not held & set(split_key(key))}


def _drawn(knobs: Knobs, chance: random.Random) -> Draw:
    return {key: _value(knob, chance) for key, knob in knobs.items()}


def _value(knob: Range | tuple[Any, ...], chance: random.Random) -> Any:
    if not isinstance(knob, Range):
        return chance.choice(knob)
    if isinstance(knob.low, int):
        return chance.randint(knob.low, int(knob.high))
    if knob.log:
        return _rounded(math.exp(chance.uniform(math.log(knob.low), math.log(knob.high))))
    return _rounded(chance.uniform(knob.low, knob.high))


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def _widened(key: str, knob: Range | tuple[Any, ...], value: Any) -> Range | tuple[Any, ...] | None:
    """A knob with a further step at the end where a value lies; None if it lies inside or the end is a limit."""
    if key in _NEVER_WIDENED or "norm" in key:
        return None
    return _widened_range(knob, value) if isinstance(knob, Range) else _widened_choices(knob, value)


def _widened_choices(choices: tuple[Any, ...], value: Any) -> tuple[Any, ...] | None:
    """Three or more numbers with a further one, by the last factor where they double, else by the last difference."""
    numbers = sorted(each for each in choices if isinstance(each, int | float) and not isinstance(each, bool))
    if len(numbers) < max(3, len(choices)) or value not in (numbers[0], numbers[-1]):
        return None
    end, neighbour = (numbers[0], numbers[1]) if value == numbers[0] else (numbers[-1], numbers[-2])
    doubles = min(end, neighbour) > 0 and max(end, neighbour) / min(end, neighbour) >= _DOUBLES
    further = end * end / neighbour if doubles else 2 * end - neighbour
    further = int(further) if isinstance(end, int) else _rounded(further)
    return (*choices, further) if further > 0 else None


def _is_allowed(config: Config, key: str, knob: Range | tuple[Any, ...]) -> bool:
    """True if the settings take both ends of a knob."""
    try:
        for end in (knob.low, knob.high) if isinstance(knob, Range) else knob:
            config.with_settings({key: end}, drop_idle=True)
    except ArgumentError:
        return False
    return True


def _widened_range(knob: Range, value: float) -> Range | None:
    """A range that reaches further at the end where a value lies; None if it lies inside or the end is a limit."""
    if knob.low == knob.high:
        return None
    low, high = (math.log(end) if knob.log else end for end in (knob.low, knob.high))
    place = ((math.log(value) if knob.log else value) - low) / (high - low)
    if knob == DROPOUT:
        return Range(0.0, 0.97) if place > 1 - _WIDEN_WITHIN else None
    wider = {}
    if place < _WIDEN_WITHIN and knob.low > 0:
        wider["low"] = type(knob.low)(knob.low / (5 if knob.log else 2))
    if place > 1 - _WIDEN_WITHIN:
        wider["high"] = knob.high * 5 if knob.log else knob.high + (knob.high - knob.low) / 2
        if isinstance(knob.low, int):
            wider["high"] = int(wider["high"])
    return Range(**(vars(knob) | wider)) if wider.get("low", 1) > 0 and wider else None


def rows_of(table: str) -> Iterator[str]:
    """Rows that a table trains."""
    return (row for row, system in SYSTEMS.items() if table in system.tables)
