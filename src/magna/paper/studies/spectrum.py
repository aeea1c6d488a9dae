"""Fig. 4a: Laplacian eigenvalues of a trained model's attention, before and after diffusion, against the formula."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion, attention_matrix
from magna.paper.render import TextTable, digits
from magna.paper.study import Outcome, Rows, StudyJob, column
from magna.paper.style import BLUE, GREY, ORANGE, new_figure
from magna.paper.trained import FirstLayer, first_layers, system_recipe
from magna.tasks.metrics import Spread, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, QUICK_SEEDS = 10, 2
_TOLERANCE = 1e-12
_ZERO = 1e-9  # below it, the ratio of two eigenvalues is rounding
_COLUMNS = ("real", "imaginary", "modulus", "diffused", "steps", "ratio", "ratio of the steps", "formula")
_HEADER = ["seed", "alpha", "K", *_COLUMNS]


class Spectrum(NamedTuple):
    """Laplacian eigenvalues 1 − λ of A, with those of the diffused attention along the same eigenvectors; complex."""

    one_hop: Tensor
    all_hops: Tensor  # of 𝒜
    steps: Tensor  # of the K steps that the model walks

    def formula(self, alpha: float) -> Tensor:
        """Their ratio by Proposition 2."""
        return 1 / (alpha / (1 - alpha) + self.one_hop)


def measure_spectrum(job: StudyJob) -> Outcome:
    """Train the recipe of the data set and decompose the attention of its first layer and head, seed by seed."""
    (dataset,) = job.datasets or ("cora",)
    rows, largest, deviations, complex_shares = [], list[float](), list[float](), list[float]()
    factors = 1.0
    for layer in first_layers(system_recipe(dataset), job.count(SEEDS, QUICK_SEEDS), job):
        job.say(f"seed {layer.seed}: eigenvalues of {layer.graph.num_nodes:,} nodes")
        spectrum = laplacian_spectrum(layer)
        factors = (1 - layer.alpha) / layer.alpha
        proper = spectrum.one_hop.abs() > _ZERO
        one_hop, all_hops, steps = (values[proper] for values in spectrum)
        formula = spectrum.formula(layer.alpha)[proper]
        rows += [
            _row(layer, *map(complex, line))
            for line in zip(*map(Tensor.tolist, (one_hop, all_hops, steps, formula)), strict=True)
        ]
        largest.append(float((all_hops / one_hop).abs().max()))
        deviations.append(float((all_hops / one_hop - formula).abs().max()))
        complex_shares.append(float((one_hop.imag.abs() > _ZERO).double().mean()))
    summary = TextTable(
        ["quantity", "value"],
        [
            ["largest ratio of eigenvalues, measured", _text(spread(largest))],
            ["the largest that alpha allows, (1 − alpha) / alpha", digits(factors)],
            ["largest deviation of the ratio from the formula", f"{max(deviations):.1e}"],
            ["share of complex eigenvalues, %", _text(spread([100 * share for share in complex_shares]))],
            ["eigenvalues that are amplified, %", _text(spread([100 * share for share in _amplified(rows)]))],
        ],
    )
    caption = (
        f"Attention of the first layer and head of our {dataset.capitalize()} recipe, {len(largest)} trained seeds. "
        "Left: ratio of the Laplacian eigenvalues after and before diffusion, by modulus; the line is the paper's "
        "formula for real eigenvalues, complex ones lie off it. Right: both spectra, sorted."
    )
    return Outcome(TextTable(_HEADER, rows), caption, summary)


def laplacian_spectrum(layer: FirstLayer) -> Spectrum:
    """Eigenvalues of the first head, one connected part of the graph after the other.

    The diffused eigenvalues are measured: the kernel is applied to each eigenvector of A.
    """
    parts = [_part_spectrum(graph, attention, layer) for graph, attention in _parts(layer)]
    return Spectrum(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _part_spectrum(graph: Graph, attention: Tensor, layer: FirstLayer) -> Spectrum:
    values, vectors = torch.linalg.eig(attention_matrix(attention, graph)[0])
    planes = torch.view_as_real(vectors).flatten(1)[:, None]  # [N, 1, 2N]
    alpha = layer.alpha
    diffused = (
        attention_diffusion(planes, attention, graph, alpha=alpha, mode="exact", tolerance=_TOLERANCE),
        attention_diffusion(planes, attention, graph, K=layer.K, alpha=alpha),
    )
    norms = vectors.abs().square().sum(0)
    images = (torch.view_as_complex(plane.view(*vectors.shape, 2)) for plane in diffused)
    return Spectrum(1 - values, *(1 - (vectors.conj() * image).sum(0) / norms for image in images))


def _parts(layer: FirstLayer) -> Iterator[tuple[Graph, Tensor]]:
    """Connected parts of the graph, with the attention of the first head."""
    graph, source, target = layer.graph, layer.graph.source, layer.graph.target
    label = torch.arange(graph.num_nodes)
    while True:  # the smallest label of each part spreads along its edges
        smaller = label.scatter_reduce(0, target, label[source], "amin").scatter_reduce(
            0, source, label[target], "amin"
        )
        if bool((smaller == label).all()):
            break
        label = smaller[smaller]
    for part in label.unique().tolist():
        nodes = (label == part).nonzero()[:, 0]
        place = torch.full_like(label, -1)
        place[nodes] = torch.arange(nodes.numel())
        edges = label[target] == part
        inside = Graph.from_edge_index(torch.stack([place[source[edges]], place[target[edges]]]), nodes.numel())
        yield inside, layer.attention[edges, :1]


def _row(layer: FirstLayer, one_hop: complex, all_hops: complex, steps: complex, formula: complex) -> list[str]:
    numbers = (
        one_hop.real,
        one_hop.imag,
        abs(one_hop),
        abs(all_hops),
        abs(steps),
        abs(all_hops / one_hop),
        abs(steps / one_hop),
        abs(formula),
    )
    return [str(layer.seed), str(layer.alpha), str(layer.K), *(f"{number:.5g}" for number in numbers)]


def _amplified(rows: list[list[str]]) -> list[float]:
    """Share of the ratios above 1, seed by seed."""
    at = _HEADER.index("ratio")
    seeds = dict.fromkeys(row[0] for row in rows)
    ratios = {seed: [float(row[at]) > 1 for row in rows if row[0] == seed] for seed in seeds}
    return [sum(above) / len(above) for above in ratios.values()]


def _text(values: Spread) -> str:
    return f"{values.mean:.2f} ± {values.std:.2f}" if values.size > 1 else f"{values.mean:.2f}"


def draw_spectrum(rows: Rows, caption: str) -> Figure:
    """Ratio against modulus, and the sorted spectra."""
    figure, (left, right) = new_figure(2, 2.5, caption)
    alpha, modulus, K = float(rows[0]["alpha"]), column(rows, "modulus"), rows[0]["K"]
    dots = {"s": 4, "linewidths": 0, "rasterized": True}
    left.scatter(modulus, column(rows, "ratio of the steps"), color=ORANGE, alpha=0.35, label=f"{K} steps", **dots)
    left.scatter(modulus, column(rows, "ratio"), color=BLUE, alpha=0.5, label="all hops", **dots)
    line = [max(modulus) * step / 200 for step in range(201)]
    left.plot(line, [1 / (alpha / (1 - alpha) + x) for x in line], color="black", linewidth=1, label="formula")
    left.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    left.set(
        xlabel="modulus of the eigenvalue before diffusion",
        ylabel="ratio after / before diffusion",
        ylim=(0, None),
        xlim=(0, None),
    )
    for handle in left.legend(markerscale=2.5).legend_handles:
        handle.set_alpha(1)
    for name, colour, style, label in (
        ("modulus", GREY, "-", "before diffusion"),
        ("steps", ORANGE, "-", f"{K} steps"),
        ("diffused", BLUE, "--", "all hops"),
    ):
        for number, seed in enumerate(dict.fromkeys(row["seed"] for row in rows)):
            values = sorted(column(rows, name, seed=seed))
            shares = [100 * (place + 1) / len(values) for place in range(len(values))]
            every = max(1, math.ceil(len(values) / 400))
            right.plot(
                shares[::every],
                values[::every],
                color=colour,
                alpha=0.7,
                linewidth=1.1,
                linestyle=style,
                label=None if number else label,
            )
    right.set(xlabel="eigenvalues, sorted, %", ylabel="modulus of the eigenvalue", xlim=(0, 100), ylim=(0, None))
    for handle in right.legend().legend_handles:
        handle.set(alpha=1, linewidth=1.5)
    return figure
