"""What `magna reproduce` trains: the cells of each table, from the recipes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from magna.config.schema import Config, load_recipe, recipe_names
from magna.paper.published import DATASETS, GRAPHS

NUM_SPLITS = 10


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a recipe, changed or not, on one split of its data, trained with several seeds."""

    table: str  # the table it was first made for; others may show it too
    dataset: str
    row: str
    config: Config
    changes: tuple[str, ...] = ()
    point: str = ""  # of docs/switches.md
    split: int | None = None  # number of the random split, None for the public one

    @property
    def path(self) -> str:
        """Its file below the results folder."""
        name = re.sub(r"[^a-z0-9.]+", "-", self.row.lower()).strip("-")
        return f"{self.table}/{self.dataset}/{name}" + ("" if self.split is None else f"/split-{self.split}") + ".json"


# Row → the recipe of a data set, and what is changed of it.
TABLE_1 = {
    "MAGNA, tuned": "{}",
    "MAGNA, ensemble": "{}-ensemble",
    "MAGNA, paper": "{}-paper",
    "MAGNA, official": "{}-official",
    "GAT": "{}-gat",
    "Diff-GCN": "{}-diff-gcn",
    "GAT, ensemble": "{}-gat model.members=8",
    "Diff-GCN, ensemble": "{}-diff-gcn model.members=8",
}
# "DistMult" is the decoder alone, with settings of its own; what data has no recipe for is left out.
TABLE_3 = {
    "MAGNA, tuned": "{}",
    "MAGNA, paper": "{}-paper",
    "MAGNA, official": "{}-official",
    "DistMult": "{}-distmult",
}
RANDOM_SPLITS = {"MAGNA": "{}", "GAT": "{}-gat", "Diff-GCN": "{}-diff-gcn"}

# The four ablations of the paper's Table 1.
ABLATIONS = {
    "No LayerNorm": ("model.norm=none", "model.final_norm=none"),
    "No Diffusion": ("model.diffusion=false",),
    "No Feed-Forward": ("model.feed_forward=false",),
    "No (LayerNorm + Feed-Forward)": ("model.norm=none", "model.final_norm=none", "model.feed_forward=false"),
}

# What a gain of link prediction must not survive.
CONTROLS = {
    "No propagation": ("model.K=0",),
    "Random graph": ("data.control=random-graph",),
    "One hop of attention": ("model.diffusion=false",),
    "No relation types": ("data.control=no-types",),
}

# One step away from the tuned recipe along each difference between the paper and its authors' code, and along what this
# model adds; one that leads to where the recipe stands is left out. The points are those of docs/switches.md.
SWITCHES = (
    ("1", "model.projection=shared"),
    ("1", "model.projection=separate"),
    ("1", "model.tanh=true"),
    ("1", "model.tanh=false"),
    ("2", "model.head_form=full"),
    ("2", "model.head_form=split"),
    ("2", "model.out_projection=false"),
    ("2", "model.bias=true"),
    ("3", "model.top_k=none"),
    ("3", "model.top_k=5"),
    ("4", "model.edge_dropout=0.0"),
    ("4", "model.edge_dropout=0.2"),
    ("5", "model.dropout=0.0"),
    ("5", "model.dropout=0.3"),
    ("6", "model.feature_dropout=0.0"),
    ("6", "model.feature_dropout=0.3"),
    ("6", "model.input_dropout=0.0"),
    ("6", "model.output_dropout=0.0"),
    ("6", "model.output_dropout=0.3"),
    ("6", "model.ffn_output_dropout=0.0"),
    ("6", "model.ffn_output_dropout=0.3"),
    ("7", "model.input_projection=false"),
    ("7", "model.residual_dropout=0.0"),
    ("7", "model.final_norm=none"),
    ("7", "model.final_norm=layer"),
    ("7", "model.classifier_dropout=0.0"),
    ("7", "model.classifier_dropout=0.5"),
    ("8", "model.norm=layer"),
    ("8", "model.norm=unbiased"),
    ("8", "model.norm_eps=1e-12"),
    ("9", "model.feed_forward=true"),
    ("9", "model.ffn_dropout=0.0"),
    ("9", "model.ffn_dropout=0.1"),
    ("10", "model.init=official"),
    ("10", "model.init=glorot"),
    ("11", "data.normalise_features=true"),
    ("11", "data.normalise_features=false"),
    ("11", "model.embed_dropout=0.0"),
    ("12", "data.self_loops=false"),
    ("12", "data.self_loops=true"),
    ("13", "train.clip=0.0"),
    ("13", "train.clip=1.0"),
    ("15", "model.negative_slope=0.2"),
    ("15", "model.negative_slope=0.5"),
    ("15", "model.K=1"),
    ("15", "model.K=3"),
    ("15", "model.K=6"),
    ("15", "model.K=10"),
    ("15", "model.alpha=0.05"),
    ("15", "model.alpha=0.1"),
    ("15", "model.alpha=0.5"),
    ("30", "model.mode=exact model.dropout=0.0 model.feature_dropout=0.0"),
    ("Eq. 3", "model.hop_weights=alpha"),
    ("Eq. 3", "model.hop_weights=theta"),
    ("ours", "task.consistency=0.0"),
    ("ours", "task.consistency=1.0"),
    ("ours", "task.passes=4"),
    ("ours", "model.node_dropout=0.0"),
    ("ours", "model.node_dropout=0.3"),
)
# What has an effect, or is a model, only beside something else.
_IDLE: dict[str, Callable[[Config], bool]] = {
    "task.passes=4": lambda config: config.task.consistency == 0,
    "model.ffn_dropout=0.1": lambda config: not config.model.feed_forward,
    "model.ffn_output_dropout=0.3": lambda config: not config.model.feed_forward,
    "model.head_form=full": lambda config: not config.model.out_projection,
    "model.norm_eps=1e-12": lambda config: config.model.norm == "none",
}


def base(dataset: str, table: str = "table1") -> Cell:
    """The tuned recipe: a row of Table 1 or 3, and what ablations, switches and controls are compared with."""
    return Cell(table, dataset, "MAGNA, tuned", load_recipe(dataset))


def table1(dataset: str) -> Iterator[Cell]:
    for row, text in TABLE_1.items():
        recipe, *changes = text.format(dataset).split()
        yield Cell("table1", dataset, row, load_recipe(recipe).with_values(changes), tuple(changes))


def ablations(dataset: str) -> Iterator[Cell]:
    start = base(dataset)
    yield start
    yield from without(start, "ablations", ABLATIONS)


def table3(dataset: str) -> Iterator[Cell]:
    """The recipes of a knowledge graph, and the tuned one under each control."""
    for row, recipe in TABLE_3.items():
        if recipe.format(dataset) in recipe_names():
            yield Cell("table3", dataset, row, load_recipe(recipe.format(dataset)))
    yield from without(base(dataset, "table3"), "table3", CONTROLS)


def switches(dataset: str) -> Iterator[Cell]:
    start = base(dataset)
    yield start
    for point, text in SWITCHES:
        cell = changed(start, "switches", text, tuple(text.split()))
        idle = text in _IDLE and _IDLE[text](start.config)
        if not idle and not same_training(cell.config, start.config):
            yield replace(cell, point=point)


def random_splits(dataset: str) -> Iterator[Cell]:
    for row, recipe in RANDOM_SPLITS.items():
        config = load_recipe(recipe.format(dataset))
        for split in range(NUM_SPLITS):
            on_split = config.with_values(["data.split=random", f"data.split_seed={split}"])
            yield Cell("random-splits", dataset, row, on_split, split=split)


def without(start: Cell, table: str, parts: Mapping[str, tuple[str, ...]]) -> Iterator[Cell]:
    """The cell less each part; one that the recipe lacks already cannot be taken away, alone or with others."""
    found = [start]
    for row, changes in parts.items():
        cell = changed(start, table, row, changes)
        if not any(same_training(cell.config, other.config) for other in found):
            found.append(cell)
            yield cell


def changed(cell: Cell, table: str, row: str, changes: tuple[str, ...]) -> Cell:
    """The cell with some settings replaced."""
    return replace(cell, table=table, row=row, config=cell.config.with_values(changes), changes=changes)


def same_training(one: Config, other: Config) -> bool:
    """Whether two configs train the same thing, whatever they tell about it."""
    return all(getattr(one, part) == getattr(other, part) for part in ("data", "model", "task", "train"))


class Experiment(NamedTuple):
    cells: Callable[[str], Iterator[Cell]]
    datasets: tuple[str, ...] = DATASETS
    also: tuple[str, ...] = ()  # data that the paper does not have: trained where it is asked for
    seeds: int = 20  # report seeds of a cell
    quick: tuple[str, ...] = ("train.epochs=3",)
    quick_skip: tuple[str, ...] = ()  # beside them, where a recipe has embeddings past the encoder


EXPERIMENTS = {
    "table1": Experiment(table1),
    "ablations": Experiment(ablations),
    "switches": Experiment(switches),
    "random-splits": Experiment(random_splits, seeds=10),
    "table3": Experiment(
        table3,
        tuple(GRAPHS),
        also=("families",),
        seeds=3,
        quick=("train.epochs=1", "model.hidden_channels=16", "model.entity_channels=16", "model.heads=2"),
        quick_skip=("model.skip_channels=16",),
    ),
}


def quick(name: str, config: Config) -> Config:
    """A config with which the form of a table shows in a short time."""
    experiment = EXPERIMENTS[name]
    return config.with_values(experiment.quick + (experiment.quick_skip if config.model.skip_channels else ()))


def cells(name: str, datasets: Sequence[str] | None = None, rows: Sequence[str] | None = None) -> list[Cell]:
    """Every cell of a table, on all of the paper's data sets or on some, in all rows or in some.

    >>> len(cells("random-splits", []))
    0
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"table is {name!r}; allowed: {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    allowed = (*experiment.datasets, *experiment.also)
    for dataset in datasets or ():
        if dataset not in allowed:
            raise ValueError(f"data set is {dataset!r}; allowed for {name}: {', '.join(allowed)}")
    chosen = experiment.datasets if datasets is None else datasets
    found = [cell for dataset in chosen for cell in experiment.cells(dataset)]
    known = list(dict.fromkeys(cell.row for cell in found))
    wanted = None if rows is None else [row.removesuffix(" (ours)") for row in rows]  # as the table has it
    for row in wanted or ():
        if row not in known:
            raise ValueError(f"row is {row!r}; allowed for {name} on {', '.join(chosen)}: {'; '.join(known)}")
    return [cell for cell in found if wanted is None or cell.row in wanted]
