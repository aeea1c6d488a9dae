"""Accuracy of every node model against the distance of the answer, on generated graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from magna.config.schema import Config
from magna.data.far_answers import CLASSES, far_answers
from magna.errors import ArgumentError
from magna.paper.points import Measured, Point, measure_point, report_count
from magna.paper.render import TextTable, spread_text
from magna.paper.study import Missing, Outcome, Rows, StudyJob, column
from magna.paper.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, new_figure
from magna.tasks import NodeClassification
from magna.training.run_folder import pick_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCES, QUICK_DISTANCES = tuple(range(1, 11)), (1, 3)
RATES, QUICK_RATES = (0.003, 0.01), (0.01,)
SEEDS, QUICK_SEEDS = 5, 2
SEARCH_SEEDS = 1
_HEADER = ["model", "distance", "reach", "rate", "valid, %", "accuracy, %", "SD", "seeds", "device"]


class Reach(NamedTuple):
    """The setting that decides how far a model sees, and its value for a number of hops."""

    setting: str
    hops: int = 1  # that one more of it adds

    def values(self, distance: int) -> tuple[int, int]:
        """The least value that reaches the distance, and one more."""
        least = -(-distance // self.hops)
        return least, least + 1


_LAYERS, _HOPS = Reach("model.num_layers"), Reach("model.K")


class FarModel(NamedTuple):
    """A model of the registry: its panel, its reach, and settings besides the defaults."""

    model: str
    panel: str
    reach: Reach
    changes: tuple[str, ...] = ()
    offset: int = 0  # of the distance that it is to reach: a control sees too little


_NO_LOOPS = "data.self_loops=false"  # as in the recipes: the model has its own
_SMALL_GAAN = ("model.key_channels=8", "model.value_channels=8", "model.pool_channels=16")
SYSTEMS = {
    "MAGNA": FarModel("magna", "", _HOPS),
    "GAT": FarModel("gat", "attention", _LAYERS),
    "GaAN": FarModel("gaan", "attention", _LAYERS, _SMALL_GAAN),
    "LGCN": FarModel("lgcn", "attention", _LAYERS),
    "GCN": FarModel("gcn", "convolution", _LAYERS),
    "GraphSAGE": FarModel("graphsage", "convolution", _LAYERS, (_NO_LOOPS,)),
    "JKNet": FarModel("jknet", "convolution", _LAYERS),
    "GCNII": FarModel("gcnii", "convolution", _LAYERS),
    "APPNP": FarModel("appnp", "propagation", _HOPS),
    "DAGNN": FarModel("dagnn", "propagation", _HOPS),
    "GRAND": FarModel("grand", "propagation", _HOPS),
    "GRAND+": FarModel("grand-plus", "propagation", _HOPS),
    "Cheby": FarModel("cheby", "other graphs", _HOPS, (_NO_LOOPS,)),
    "DualGCN": FarModel("dualgcn", "other graphs", _LAYERS),
    # Its graph of PageRank joins all nodes of a path: one layer reaches every distance.
    "Diff-GCN": FarModel("diff-gcn", "other graphs", Reach("model.num_layers", 10)),
    # Each pooling adds a convolution on the way down and one on the way up. It keeps as many nodes as there are paths.
    "g-U-Nets": FarModel("g-u-nets", "other graphs", Reach("model.num_layers", 2), ("model.pool_nodes=288",)),
}
CONTROLS = {
    "control: one hop short": FarModel("appnp", "", _HOPS, offset=-1),
    "control: features alone": FarModel("mlp", "", _LAYERS),
}
_PANELS = ("attention", "convolution", "propagation", "other graphs")
# The same for all: no dropout, no decay, a constant rate.
_COMMON = ("model.hidden_channels=32", "train.weight_decay=0.0", "train.epochs=300", "train.patience=100")
_QUICK = ("train.patience=25", "train.epochs=100")

Results = Mapping[tuple[str, int], Measured]  # (model, distance) → its point


def measure_hops(job: StudyJob) -> Outcome:
    """Train every node model at every distance of the answer, a graph of its own for each distance.

    Each model is given a reach that suffices: its layers, or its hops K with two layers, equal the distance, or are one
    more. Validation chooses between these two, and between two learning rates. The other settings are the defaults of
    each model. The order is by distance, so that a stop leaves all models at the same distances.
    """
    if job.datasets is not None:
        raise ArgumentError("data set of hops", list(job.datasets), "none, as its graphs are generated")
    distances, rates = (QUICK_DISTANCES, QUICK_RATES) if job.quick else (DISTANCES, RATES)
    seeds, systems = report_count(job, SEEDS, QUICK_SEEDS), SYSTEMS | CONTROLS

    def measured(name: str, distance: int) -> Measured:
        point = hops_point(systems[name], distance, rates, quick=job.quick)

        @cache
        def task() -> NodeClassification:
            return NodeClassification(far_answers(distance), point.config, pick_device(job.device))

        return measure_point(point, task, job, search_seeds=SEARCH_SEEDS, seeds=seeds)

    results = {(name, distance): measured(name, distance) for distance in distances for name in systems}
    missing = [
        Missing(f"{name}, distance {distance}: its loss was not finite", "magna reproduce hops")
        for (name, distance), each in results.items()
        if each.accuracy is None
    ]
    caption = (
        "Test accuracy on generated paths, whose class is written on the node at the given distance: mean and standard "
        f"deviation over {seeds} seeds. Each model has as many layers or hops as the distance, or one more, as "
        "validation chooses with the learning rate. Dotted: chance. Grey: the control sees one hop too few."
    )
    return Outcome(TextTable(_HEADER, _rows(results, rates)), caption, _summary(results, distances), missing)


def hops_point(system: FarModel, distance: int, rates: Sequence[float], *, quick: bool = False) -> Point:
    """A model at one distance, with the values of its reach and the rates that validation chooses from."""
    first = (f"data.name=far-answers-{distance}", f"model.name={system.model}")
    config = Config().with_values((*first, *_COMMON, *system.changes, *(_QUICK if quick else ())), drop_idle=True)
    values = (max(distance + system.offset, 0),) if system.offset else system.reach.values(distance)
    choices = tuple(
        (f"{system.reach.setting}={value}", f"train.lr={rate}", f"train.min_lr={rate}")
        for value, rate in product(values, rates)
    )
    name = f"{system.model}-one-hop-short" if system.offset else system.model
    return Point(f"hops/{name}-distance-{distance}.json", config, choices)


def _rows(results: Results, rates: Sequence[float]) -> list[list[str]]:
    rows = []
    for (name, distance), each in sorted(results.items(), key=lambda item: [*SYSTEMS, *CONTROLS].index(item[0][0])):
        system = (SYSTEMS | CONTROLS)[name]
        changes = hops_point(system, distance, rates).choices[each.choice]
        values = dict(change.split("=") for change in changes)
        if (accuracy := each.accuracy) is not None:
            reach = f"{system.reach.setting.partition('.')[2]}={values[system.reach.setting]}"
            place = [name, str(distance), reach, values["train.lr"], f"{100 * max(each.valid):.2f}"]
            numbers = [f"{accuracy.mean:.2f}", f"{accuracy.std:.2f}", str(accuracy.size)]
            rows.append([*place, *numbers, each.device])
    return rows


def _summary(results: Results, distances: Sequence[int]) -> TextTable:
    rows = [
        [name, *(spread_text(results[name, distance].accuracy) for distance in distances)]
        for name in (*SYSTEMS, *CONTROLS)
    ]
    return TextTable(["accuracy, %", *(f"{distance} hops" for distance in distances)], rows)


def draw_hops(rows: Rows, caption: str) -> Figure:
    """Accuracy against distance, the models in panels of a kind; MAGNA and the control are in each."""
    figure, panels = new_figure(len(_PANELS), 3.2, caption)
    looks = [*zip((ORANGE, GREEN, PINK, RED), "s^Dv", strict=True)]
    for panel, title in zip(panels, _PANELS, strict=True):
        names = [name for name, system in SYSTEMS.items() if system.panel == title]
        lines = {"MAGNA": (BLUE, "o")} | dict(zip(names, looks, strict=False)) | dict.fromkeys(CONTROLS, (GREY, "x"))
        for name, (colour, marker) in lines.items():
            distances, means, deviations = (column(rows, key, model=name) for key in ("distance", "accuracy, %", "SD"))
            if distances:
                label = name.removeprefix("control: ")
                panel.errorbar(
                    distances, means, deviations, color=colour, marker=marker, capsize=1.5, elinewidth=0.8, label=label
                )
        panel.axhline(100 / CLASSES, color=GREY, linewidth=1, linestyle=":")
        panel.set(title=title, xlabel="distance, hops", ylim=(0, 105), xticks=sorted({*column(rows, "distance")}))
        panel.tick_params(axis="x", labelsize=7)
        panel.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.24))
    panels[0].set_ylabel("test accuracy, %")
    return figure
