"""Fig. 4b: accuracy against depth, with the learning rate chosen anew for each depth and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from magna.config.schema import Config
from magna.paper.points import Measured, Point, measure_point, read_point, report_count
from magna.paper.render import TextTable, difference_text, spread_text
from magna.paper.study import Missing, Outcome, Rows, StudyJob, column
from magna.paper.style import BLUE, GREEN, GREY, ORANGE, new_figure
from magna.paper.trained import system_recipe
from magna.tasks import NodeClassification, make_task
from magna.training.run_folder import pick_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS, QUICK_DEPTHS = (3, 6, 12, 18, 24), (3, 6)
RATES, QUICK_RATES = (0.0005, 0.0015, 0.005, 0.015), (0.005, 0.015)
SEEDS, QUICK_SEEDS = 10, 2
SEARCH_SEEDS, QUICK_SEARCH_SEEDS = 2, 1
HOPS = 6  # of a MAGNA layer: 3 of them reach as far as 18 layers of one hop
WIDTH, QUICK_WIDTH = 64, 16
_REACH = 18  # hops
_HEADER = ["model", "layers", "hops a layer", "rate", "valid, %", "accuracy, %", "SD", "seeds", "device"]


class DeepModel(NamedTuple):
    """A line of the figure: a recipe of the data set, and changes of it."""

    recipe: str
    changes: tuple[str, ...]
    hops: str  # of a layer
    colour: str
    marker: str


SYSTEMS = {
    "MAGNA": DeepModel("paper", (f"model.K={HOPS}", "train.precision=float32"), str(HOPS), BLUE, "o"),
    "GAT with residuals": DeepModel("gat-residual", (), "1", ORANGE, "s"),
    "GCN": DeepModel("gcn", (), "1", GREEN, "^"),
    "Diff-GCN": DeepModel("diff-gcn", ("task.consistency=0.0",), "all", GREY, "D"),
}
# The same for all: no consistency loss, the paper's window of early stopping, and its number of epochs.
_COMMON = (f"model.hidden_channels={WIDTH}", "train.epochs=800", "train.patience=200")
_QUICK = (f"model.hidden_channels={QUICK_WIDTH}", "train.epochs=100", "train.patience=25")

Results = Mapping[tuple[str, int], Measured]  # (model, layers) → its point


def measure_depth(job: StudyJob) -> Outcome:
    """Train every model at every depth: four rates with two seeds on validation, then the best rate with ten seeds.

    The order is by depth, so that a stop leaves all models at the same depths.
    """
    (dataset,) = job.datasets or ("cora",)
    depths, seeds = QUICK_DEPTHS if job.quick else DEPTHS, report_count(job, SEEDS, QUICK_SEEDS)
    configs = {model: depth_config(dataset, model, quick=job.quick) for model in SYSTEMS}
    search_seeds, rates = (QUICK_SEARCH_SEEDS, QUICK_RATES) if job.quick else (SEARCH_SEEDS, RATES)

    @cache
    def task() -> NodeClassification:
        made = make_task(next(iter(configs.values())), job.data_dir, torch.device(pick_device(job.device)))
        return cast(NodeClassification, made)

    results = {
        (model, layers): measure_point(
            depth_point(dataset, model, layers, config, rates), task, job, search_seeds=search_seeds, seeds=seeds
        )
        for layers in depths
        for model, config in configs.items()
    }
    width = QUICK_WIDTH if job.quick else WIDTH
    return _outcome(dataset, results, (width, seeds, rates, search_seeds))


def committed_depth(results: Path, dataset: str = "cora") -> Outcome:
    """The figure from the committed points alone; nothing is trained."""
    points = {
        (model, layers): read_point(
            depth_point(dataset, model, layers, depth_config(dataset, model)), results, search_seeds=SEARCH_SEEDS
        )
        for layers in DEPTHS
        for model in SYSTEMS
    }
    return _outcome(dataset, points, (WIDTH, SEEDS, RATES, SEARCH_SEEDS))


def _outcome(dataset: str, results: Results, effort: tuple[int, int, Sequence[float], int]) -> Outcome:
    """Table, caption and missing points; `effort` is width, report seeds, rates and search seeds."""
    width, seeds, rates, search_seeds = effort
    empty = {
        f"{model}, {layers} layers": "its loss was not finite" if each.runs else "no report runs"
        for (model, layers), each in results.items()
        if each.accuracy is None
    }
    caption = (
        f"Test accuracy on {dataset.capitalize()} against the number of layers, all models {width} wide: mean and "
        f"standard deviation over {seeds} seeds. The learning rate is chosen for each point on validation, of "
        f"{len(rates)} values with {search_seeds} further seed{'s' * (search_seeds > 1)}. MAGNA: the paper's blocks "
        f"with {HOPS} hops a layer. No model has the consistency loss; other settings are those of the recipes."
    )
    caption += f" Missing points: {'; '.join(empty)}." if empty else ""
    depths = tuple(sorted({layers for _, layers in results}))
    missing = [Missing(f"{point}: {why}", "magna reproduce fig4b") for point, why in empty.items()]
    return Outcome(TextTable(_HEADER, _rows(results, rates)), caption, _summary(results, depths), missing)


def depth_config(dataset: str, model: str, *, quick: bool = False) -> Config:
    """The settings of a model at any depth."""
    system = SYSTEMS[model]
    changes = (*system.changes, *_COMMON, *(_QUICK if quick else ()))
    return system_recipe(dataset, system.recipe).with_values(changes, drop_idle=True)


def depth_point(dataset: str, model: str, layers: int, config: Config, rates: Sequence[float] = RATES) -> Point:
    """A model at one depth, with the rates that validation chooses from; a constant rate stays constant."""
    keys = ("train.lr", "train.min_lr") if config.train.min_lr == config.train.lr else ("train.lr",)
    choices = tuple(tuple(f"{key}={rate}" for key in keys) for rate in rates)
    name = model.lower().replace(" ", "-")
    path = f"fig4b/{dataset}/{name}-{layers}-layers.json"
    return Point(path, config.with_values([f"model.num_layers={layers}"]), choices)


def _rows(results: Results, rates: Sequence[float]) -> list[list[str]]:
    rows = []
    for model, system in SYSTEMS.items():
        for (name, layers), each in results.items():
            if name == model and (accuracy := each.accuracy) is not None:
                place = [model, str(layers), system.hops, str(rates[each.choice]), f"{100 * max(each.valid):.2f}"]
                numbers = [f"{accuracy.mean:.2f}", f"{accuracy.std:.2f}", str(accuracy.size)]
                rows.append([*place, *numbers, each.device])
    return rows


def _summary(results: Results, depths: tuple[int, ...]) -> TextTable:
    """A line for each model, then 3 layers of MAGNA against 18 of GAT, which reach equally far."""
    rows = []
    for model in SYSTEMS:
        accuracies = [results[model, layers].accuracy for layers in depths]
        rows.append([model, *map(spread_text, accuracies), difference_text(accuracies[-1], accuracies[0])])
    if _REACH in depths:
        wide, deep = results["MAGNA", _REACH // HOPS].accuracy, results["GAT with residuals", _REACH].accuracy
        name = f"MAGNA, {_REACH // HOPS} layers − GAT, {_REACH} layers"
        rows.append([name, *[""] * len(depths), difference_text(wide, deep)])
    header = ["accuracy, %", *(f"{layers} layers" for layers in depths), "last − first, ± SE"]
    return TextTable(header, rows)


def draw_depth(rows: Rows, caption: str) -> Figure:
    """Accuracy against depth; the dotted line is MAGNA with the fewest layers, across all depths."""
    figure, (panel,) = new_figure(1, 2.8, caption)
    for model, system in SYSTEMS.items():
        layers, means, deviations = (column(rows, name, model=model) for name in ("layers", "accuracy, %", "SD"))
        if layers:
            panel.errorbar(
                layers,
                means,
                deviations,
                color=system.colour,
                marker=system.marker,
                capsize=2,
                elinewidth=0.9,
                label=model,
            )
    if wide := column(rows, "accuracy, %", model="MAGNA", layers=_REACH // HOPS):
        label = f"MAGNA, {_REACH // HOPS} layers × {HOPS} hops"
        panel.axhline(wide[0], color=BLUE, linewidth=1, linestyle=":", label=label)
    panel.set(xlabel="layers", ylabel="test accuracy, %", xticks=sorted({*column(rows, "layers")}))
    panel.legend()
    return figure
