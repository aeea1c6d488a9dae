"""Fig. 4a: Laplacian eigenvalues of a trained model's attention, before and after diffusion, against the formula."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion, attention_matrix
from magna.paper.render import TextTable, digits
from magna.paper.study import Outcome, Rows, StudyJob, column
from magna.paper.style import BLUE, GREY, ORANGE, new_figure
from magna.paper.trained import FirstLayer, first_layers, narrow_blocks, system_recipe
from magna.tasks.metrics import Spread, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, QUICK_SEEDS = 10, 2
_TOLERANCE = 1e-12
_ZERO = 1e-9  # below it, the ratio of two eigenvalues is rounding
_COLUMNS = ("real", "imaginary", "modulus", "diffused", "steps", "ratio", "ratio of the steps", "formula")
_HEADER = ["model", "seed", "alpha", "K", *_COLUMNS]
_SYSTEMS = {"tuned": "", "paper's blocks": "paper"}


class Spectrum(NamedTuple):
    """Laplacian eigenvalues 1 − λ of A, with those of the diffused attention along the same eigenvectors; complex."""

    one_hop: Tensor
    all_hops: Tensor  # of 𝒜
    steps: Tensor  # of the K steps that the model walks

    def formula(self, alpha: float) -> Tensor:
        """Their ratio by Proposition 2."""
        return 1 / (alpha / (1 - alpha) + self.one_hop)


def measure_spectrum(job: StudyJob) -> Outcome:
    """Train our recipe of the data set and the paper's blocks, and decompose the attention of layer and head one."""
    (dataset,) = job.datasets or ("cora",)
    count = job.count(SEEDS, QUICK_SEEDS)
    recipes = {model: system_recipe(dataset, system) for model, system in _SYSTEMS.items()}
    recipes["paper's blocks"] = narrow_blocks(recipes["paper's blocks"], quick=job.quick)
    rows, summary = [], []
    for model, recipe in recipes.items():
        seeds = [_measure(model, layer, job) for layer in first_layers(recipe, count, job)]
        rows += [row for each in seeds for row in each.rows]
        summary += _summary(model, seeds)
    caption = (
        f"Attention of the first layer and head on {dataset.capitalize()}, {count} trained seeds: our tuned recipe, "
        "and the paper's blocks 64 wide. Left and middle: ratio of the Laplacian eigenvalues after and before "
        "diffusion, by modulus; the line is the paper's formula for real eigenvalues, complex ones lie off it. Right: "
        "the spectra of the tuned recipe, sorted."
    )
    return Outcome(TextTable(_HEADER, rows), caption, TextTable(["model", "quantity", "value"], summary))


class _Seed(NamedTuple):
    """Lines of the table and the figures of the summary, for one seed."""

    rows: list[list[str]]
    allowed: float  # the largest ratio that alpha allows
    largest: float
    deviation: float
    complex_share: float  # %
    amplified: float  # %


def _measure(model: str, layer: FirstLayer, job: StudyJob) -> _Seed:
    job.say(f"{model}, seed {layer.seed}: eigenvalues of {layer.graph.num_nodes:,} nodes")
    spectrum = laplacian_spectrum(layer)
    proper = spectrum.one_hop.abs() > _ZERO
    one_hop, all_hops, steps = (values[proper] for values in spectrum)
    formula = spectrum.formula(layer.alpha)[proper]
    lines = zip(*map(Tensor.tolist, (one_hop, all_hops, steps, formula)), strict=True)
    ratio = all_hops / one_hop
    return _Seed(
        rows=[[model, *_row(layer, *map(complex, line))] for line in lines],
        allowed=(1 - layer.alpha) / layer.alpha,
        largest=float(ratio.abs().max()),
        deviation=float((ratio - formula).abs().max()),
        complex_share=100 * float((one_hop.imag.abs() > _ZERO).double().mean()),
        amplified=100 * float((ratio.abs() > 1).double().mean()),
    )


def _summary(model: str, seeds: list[_Seed]) -> list[list[str]]:
    """Lines of a model: mean and deviation over its seeds."""
    quantities = {
        "largest ratio of eigenvalues, measured": _text(spread([each.largest for each in seeds])),
        "the largest that alpha allows, (1 − alpha) / alpha": digits(seeds[0].allowed),
        "largest deviation of the ratio from the formula": f"{max(each.deviation for each in seeds):.1e}",
        "share of complex eigenvalues, %": _text(spread([each.complex_share for each in seeds])),
        "eigenvalues that are amplified, %": _text(spread([each.amplified for each in seeds])),
    }
    return [[model, quantity, value] for quantity, value in quantities.items()]


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


def _text(values: Spread) -> str:
    return f"{values.mean:.2f} ± {values.std:.2f}" if values.size > 1 else f"{values.mean:.2f}"


def draw_spectrum(rows: Rows, caption: str) -> Figure:
    """Ratio against modulus for each model, and the sorted spectra of the tuned one."""
    figure, (*ratios, spectra) = new_figure(1 + len(_SYSTEMS), 2.5, caption)
    for panel, model in zip(ratios, _SYSTEMS, strict=True):
        _draw_ratios(panel, [row for row in rows if row["model"] == model])
        panel.set(title=model)
    _draw_spectra(spectra, [row for row in rows if row["model"] == "tuned"])
    ratios[0].set_ylabel("ratio after / before diffusion")
    return figure


def _draw_ratios(panel: Any, rows: Rows) -> None:
    alpha, modulus, K = float(rows[0]["alpha"]), column(rows, "modulus"), rows[0]["K"]
    dots = {"s": 4, "linewidths": 0, "rasterized": True}
    panel.scatter(modulus, column(rows, "ratio of the steps"), color=ORANGE, alpha=0.35, label=f"{K} steps", **dots)
    panel.scatter(modulus, column(rows, "ratio"), color=BLUE, alpha=0.5, label="all hops", **dots)
    line = [max(modulus) * step / 200 for step in range(201)]
    panel.plot(line, [1 / (alpha / (1 - alpha) + x) for x in line], color="black", linewidth=1, label="formula")
    panel.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    panel.set(xlabel="modulus before diffusion", ylim=(0, None), xlim=(0, None))
    for handle in panel.legend(markerscale=2.5).legend_handles:
        handle.set_alpha(1)


def _draw_spectra(panel: Any, rows: Rows) -> None:
    for name, colour, style, label in (
        ("modulus", GREY, "-", "before diffusion"),
        ("steps", ORANGE, "-", f"{rows[0]['K']} steps"),
        ("diffused", BLUE, "--", "all hops"),
    ):
        look: dict[str, Any] = {"color": colour, "alpha": 0.7, "linewidth": 1.1, "linestyle": style}
        for number, seed in enumerate(dict.fromkeys(row["seed"] for row in rows)):
            values = sorted(column(rows, name, seed=seed))
            shares = [100 * (place + 1) / len(values) for place in range(len(values))]
            every = max(1, math.ceil(len(values) / 400))
            panel.plot(shares[::every], values[::every], label=None if number else label, **look)
    panel.set(
        title="tuned, sorted",
        xlabel="eigenvalues, %",
        ylabel="modulus of the eigenvalue",
        xlim=(0, 100),
        ylim=(0, None),
    )
    for handle in panel.legend().legend_handles:
        handle.set(alpha=1, linewidth=1.5)
