"""`magna.predict` and `magna.evaluate`: answers and metrics of a finished run of any task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from magna.config.tables import NodeTask
from magna.errors import ArgumentError
from magna.tasks import Task
from magna.tasks.calibration import note_on_reliability
from magna.tasks.trivial import gain_note, trivial_metrics
from magna.training.capture import matmul_precision
from magna.training.run_folder import RunFolder
from magna.use.links import LinkPredictions, open_links, predict_links
from magna.use.nodes import Predictions, open_nodes, predict_nodes


def predict(
    run_dir: str | Path, asked: Sequence[Any] | None = None, data: str | Path | None = None, **options: Any
) -> Predictions | LinkPredictions:
    """Labels of nodes, or the entities that complete queries, by a finished run.

    Args:
        run_dir: the run folder.
        asked: ids of nodes, None for all; for links queries by names, (head, relation, None) or (None, relation, tail).
        data: other data of the same form, or the present place of the run's data.
        options: further arguments of :func:`magna.use.nodes.predict_nodes` or :func:`magna.use.links.predict_links`.
    """
    run = RunFolder.open(run_dir)
    if isinstance(run.config.task, NodeTask):
        return predict_nodes(run, asked, data, **options)
    return predict_links(run, asked, data, **options)


def evaluate(
    run_dir: str | Path,
    split: str = "test",
    data: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    model: nn.Module | None = None,
    metrics: Sequence[str] = (),
) -> dict[str, Any]:
    """Metrics of a finished run, computed again from its files, beside those of trivial predictors.

    `metrics` come first among them.

    A new graph (`data`) has its own split; if it has none, all labelled nodes are its test split. A new knowledge graph
    has the entities and relations of the run. A run of your own module needs it again, as `model`.
    """
    if split not in ("valid", "test"):
        raise ArgumentError("split", split, ["valid", "test"])
    run = RunFolder.open(run_dir)
    task: Task
    if isinstance(run.config.task, NodeTask):
        task, network, notes = open_nodes(run, data, data_dir, device, (split,), model)
    elif model is not None:
        raise ArgumentError("model", type(model).__name__, "none for a run of link prediction, which holds its model")
    else:
        task, network, notes = open_links(run, data, data_dir, device, (split,))
    with matmul_precision(run.config.train.precision):
        report = task.report(network, split, run.calibration)
        report["trivial"] = trivial_metrics(task, split)
    report["metrics"] = _first(metrics, report["metrics"])
    head = {"task": run.config.task.name, "dataset": task.dataset, "split": split}
    return {**head, **report, "remarks": _remarks(task.metric, report), "notes": list(notes)}


def _remarks(metric: str, report: dict[str, Any]) -> list[str]:
    """Lines on probabilities that are poor, and on a model that is no better than a trivial predictor."""
    lines = [note_on_reliability(report["calibration"])] if "calibration" in report else []
    if metric in report["metrics"]:
        lines.append(gain_note(metric, report["metrics"][metric], report["trivial"]))
    return [line for line in lines if line is not None]


def _first(names: Sequence[str], metrics: dict[str, float]) -> dict[str, float]:
    """The metrics, those with these names first."""
    for name in names:
        if name not in metrics:
            raise ArgumentError("metric", name, f"{', '.join(metrics)} for this run and split")
    return {name: metrics[name] for name in names} | metrics
