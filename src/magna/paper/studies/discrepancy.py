"""Fig. 5: discrepancy of attention from uniform weights, in the first head of the first layer of MAGNA and GAT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from magna.paper.render import TextTable
from magna.paper.study import Outcome, Rows, StudyJob, column
from magna.paper.style import BLUE, GREEN, ORANGE, new_figure
from magna.paper.trained import FirstLayer, first_layers, narrow_blocks, system_recipe
from magna.tasks.metrics import Spread, difference, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, QUICK_SEEDS = 10, 2
BINS = 60
_DECADES = -6, 0  # exponents of the smallest and the largest bar
_BLOCKS = "MAGNA, paper's blocks"
_SYSTEMS = {"MAGNA, tuned": "", _BLOCKS: "paper", "GAT": "gat"}
_COLOURS = dict(zip(_SYSTEMS, (BLUE, GREEN, ORANGE), strict=True))
_HEADER = ["model", "seed", "mean", "from", "to", "share of nodes, %"]


def measure_discrepancy(job: StudyJob) -> Outcome:
    """Train our recipe of the data set, the paper's blocks and GAT, and count the nodes by their discrepancy."""
    (dataset,) = job.datasets or ("cora",)
    count = job.count(SEEDS, QUICK_SEEDS)
    recipes = {model: system_recipe(dataset, system) for model, system in _SYSTEMS.items()}
    recipes[_BLOCKS] = narrow_blocks(recipes[_BLOCKS], quick=job.quick)
    values = {
        (model, layer.seed): discrepancy(layer)
        for model, recipe in recipes.items()
        for layer in first_layers(recipe, count, job)
    }
    edges = torch.logspace(*_DECADES, BINS + 1, dtype=torch.float64)
    rows = []
    for (model, seed), each in values.items():
        shares = 100 * torch.histogram(each.clamp(edges[0], edges[-1]), edges).hist / each.numel()
        for low, high, share in zip(edges[:-1].tolist(), edges[1:].tolist(), shares.tolist(), strict=True):
            rows.append([model, str(seed), f"{float(each.mean()):.6g}", f"{low:.4g}", f"{high:.4g}", f"{share:.6g}"])
    caption = (
        f"Discrepancy ‖A[i,:] − U[i]‖ / degree(i) of the attention of node i from uniform weights, first head of the "
        f"first layer, on {dataset.capitalize()}: our tuned MAGNA, the paper's blocks 64 wide, and our GAT; mean over "
        f"{count} trained seeds, and the range of the seeds. Dashed: mean discrepancy. The first bar holds everything "
        "below it."
    )
    return Outcome(TextTable(_HEADER, rows), caption, _summary(values))


def discrepancy(layer: FirstLayer) -> Tensor:
    """Δ_i = ‖A_i − U_i‖₂ / degree(i) of every node with an in-edge; U_i is uniform over the in-edges.

    Shapes: → [nodes with in-edges].
    """
    target, weights = layer.graph.target, layer.attention[:, 0]
    degree = torch.bincount(target, minlength=layer.graph.num_nodes).to(weights)
    squares = (weights - 1 / degree[target]).square()
    sums = torch.zeros_like(degree).index_add(0, target, squares)
    return (sums.sqrt() / degree)[degree > 0]


def _summary(values: Mapping[tuple[str, int], Tensor]) -> TextTable:
    """Mean and median discrepancy of the nodes, over the seeds, and the differences of the means to GAT."""
    means, rows = {}, []
    for model in _SYSTEMS:
        seeds = [each for (name, _), each in values.items() if name == model]
        means[model], median = (
            spread([float(each.mean()) for each in seeds]),
            spread([float(each.median()) for each in seeds]),
        )
        rows.append([model, _text(means[model]), _text(median)])
    for model in list(_SYSTEMS)[:-1]:
        by, error = difference(means[model], means["GAT"])
        rows.append([f"{model} − GAT, ± SE", f"{by:+.2e} ± {error:.1e}", ""])
    return TextTable(["model", "mean discrepancy", "median"], rows)


def _text(values: Spread) -> str:
    return f"{values.mean:.2e} ± {values.std:.1e}" if values.size > 1 else f"{values.mean:.2e}"


def draw_discrepancy(rows: Rows, caption: str) -> Figure:
    """Share of nodes by discrepancy: mean of the seeds, and their range."""
    figure, (panel,) = new_figure(1, 2.6, caption)
    for model, colour in _COLOURS.items():
        seeds = list(dict.fromkeys(row["seed"] for row in rows if row["model"] == model))
        shares = torch.tensor([column(rows, "share of nodes, %", model=model, seed=seed) for seed in seeds])
        low, high = (column(rows, name, model=model, seed=seeds[0]) for name in ("from", "to"))
        edges = [*low, high[-1]]
        panel.stairs(shares.mean(0).tolist(), edges, color=colour, linewidth=1.6, label=model)
        panel.stairs(
            shares.amax(0).tolist(), edges, baseline=shares.amin(0).tolist(), color=colour, alpha=0.25, fill=True
        )
        mean = sum(column(rows, "mean", model=model)) / len(column(rows, "mean", model=model))
        panel.axvline(mean, color=colour, linewidth=1, linestyle="--")
    panel.set(xlabel="discrepancy from uniform attention", ylabel="nodes, %", xscale="log", ylim=(0, None))
    panel.legend()
    return figure
