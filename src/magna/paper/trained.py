"""Runs that a figure needs, trained without the test split, and the attention of their first layer."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from magna.config.schema import REPORT_SEEDS, Config, load_recipe, recipe_names
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn.conv import MAGNAConv
from magna.ops import edge_softmax
from magna.paper.rows import NARROW_BLOCKS
from magna.paper.study import StudyJob
from magna.training.loop import Epoch
from magna.training.progress import seldom
from magna.training.run_folder import RunFolder
from magna.training.train import train
from magna.use.nodes import open_nodes

_PROGRESS_SECONDS = 10.0
_QUICK_BLOCKS = ("model.num_layers=2", "train.epochs=100", "train.patience=25")


class FirstLayer(NamedTuple):
    """Attention of the first layer of a trained model, in float64."""

    seed: int
    graph: Graph
    attention: Tensor  # [E, H]
    K: int
    alpha: float


def system_recipe(dataset: str, system: str = "") -> Config:
    """The recipe of a system on a data set; without a system, that of our model."""
    name = f"{dataset}-{system}" if system else dataset
    if name not in recipe_names():
        raise ArgumentError("data set", dataset, [each for each in ("cora", "citeseer", "pubmed") if each != dataset])
    return load_recipe(name)


def narrow_blocks(recipe: Config, *, quick: bool) -> Config:
    """The paper's recipe in the width of the tuned ones; its quick form has two layers and a short patience."""
    return recipe.with_values([*NARROW_BLOCKS, *(_QUICK_BLOCKS if quick else ())])


def first_layers(config: Config, count: int, job: StudyJob) -> Iterator[FirstLayer]:
    """The first layer of a recipe after training, for each of `count` report seeds."""
    for seed in REPORT_SEEDS[:count]:
        run = trained_run(config.with_seed(seed), job)
        yield first_layer(run, job.data_dir)


def trained_run(config: Config, job: StudyJob) -> RunFolder:
    """The finished run of a config below the folder of the job; the test split is not read.

    A stopped run continues. A folder with other settings is replaced.
    """
    folder = job.run_dir / config.recipe / f"seed-{config.train.seed}"
    remove_other(folder, config)
    name, started = f"{config.recipe}, seed {config.train.seed}", time.perf_counter()
    say, was_done = seldom(job.say, _PROGRESS_SECONDS), RunFolder(folder).exists() and RunFolder.open(folder).is_done()

    def on_epoch(epoch: Epoch) -> None:
        say(f"  {name}: epoch {epoch.number} of {epoch.of}")

    options: dict[str, Any] = {"data_dir": job.data_dir, "device": job.device}
    train(config, run_dir=folder, resume=True, test=False, on_epoch=on_epoch, **options)
    if not was_done:
        job.say(f"{name}: trained ({time.perf_counter() - started:.0f} s)")
    return RunFolder.open(folder)


def remove_other(folder: Path, config: Config) -> None:
    """Remove a run of other settings, or one that was stopped before it began."""
    if folder.exists() and not (RunFolder(folder).exists() and RunFolder.open(folder).config == config):
        with RunFolder(folder).alone():
            shutil.rmtree(folder)


@torch.no_grad()
def first_layer(run: RunFolder, data_dir: str | Path | None) -> FirstLayer:
    """Attention of the first layer of a run, without dropout, from its scores in float64."""
    task, model, _ = open_nodes(run, None, data_dir, "cpu")
    layer = next(part for part in model.modules() if isinstance(part, MAGNAConv))
    calls: list[tuple[Graph, Tensor]] = []
    hook = layer.attention.register_forward_hook(lambda _, inputs, scores: calls.append((inputs[2], scores)))
    with hook:
        task.finite_scores(model)
    graph, scores = calls[0]
    options = layer.options
    attention = edge_softmax(scores.double(), graph, top_k=options.top_k, top_k_shared=options.top_k_shared)
    return FirstLayer(run.config.train.seed, graph, attention, options.K, float(options.alpha))
