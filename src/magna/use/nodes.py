"""Predictions of a finished run on nodes: labels with probabilities; on the run's graph or a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magna.config.path_kind import SPLITS
from magna.config.registry import NODE_TASK
from magna.config.tables import NodeDataOptions
from magna.data import NodeData, Schema, from_anywhere, load_new_graph, load_node_data
from magna.data.node_data import Target
from magna.errors import ArgumentError, DataError
from magna.tasks import NodeClassification
from magna.tasks.calibration import Threshold, calibrated, threshold_for
from magna.training.capture import matmul_precision
from magna.training.run_folder import RunFolder, pick_device
from magna.use.embeddings import Embeddings, last_states
from magna.use.files import write_answers
from magna.use.node_labels import columns_of, labels_of, names_of, truth_of
from magna.use.portfolio import FixedScores, averaged_log


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row for each node of the query.

    Shapes: ids, labels, truth and split have an entry a row, probabilities is [rows, classes]; truth is None for a node
    without a label, split for one that is in none.
    """

    dataset: str
    classes: list[str]
    ids: list[str]
    labels: list[str]
    probabilities: Tensor
    truth: list[str | None]
    split: list[str | None]
    notes: tuple[str, ...] = ()  # on the data, for the user
    target: Target = "classes"  # under "number" the probabilities are values, [rows, 1]
    threshold: Threshold | None = None  # of the probability, for a wanted precision

    def columns(self) -> dict[str, list[Any]]:
        """All values by column, as a table file and `pandas.DataFrame` take them."""
        if self.target != "classes":
            return self._other_columns()
        best = self.probabilities.amax(1).tolist() if self.ids else []
        columns: dict[str, list[Any]] = {"id": self.ids, "label": self.labels, "probability": best}
        for index, name in enumerate(self.classes):
            columns[f"probability_{name}"] = self.probabilities[:, index].tolist()
        if any(label is not None for label in self.truth):
            columns["true_label"] = self.truth
        if any(split is not None for split in self.split):
            columns["split"] = self.split
        if self.threshold is not None:
            columns["sure"] = [value >= self.threshold.confidence for value in best]
        return columns

    def _other_columns(self) -> dict[str, list[Any]]:
        return columns_of(self.target, self.classes, self.ids, self.labels, self.probabilities, self.truth)

    def to_dict(self) -> dict[str, Any]:
        """All values by node, ready for JSON."""
        head = {"task": NODE_TASK, "dataset": self.dataset, "classes": self.classes}
        if self.target != "classes":
            columns = self._other_columns()
            nodes = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            return head | {"target": self.target, "nodes": nodes, "notes": list(self.notes)}
        shares = [dict(zip(self.classes, row, strict=True)) for row in self.probabilities.tolist()]
        rows = zip(self.ids, self.labels, shares, self.truth, self.split, strict=True)
        return {
            **head,
            "nodes": [
                {"id": id, "label": label, "probability": max(p.values()), "probabilities": p}
                | {"true_label": truth, "split": split}
                for id, label, p, truth, split in rows
            ],
            **({} if self.threshold is None else {"threshold": self.threshold._asdict()}),
            "notes": list(self.notes),
        }

    def write(self, path: str | Path, form: str | None = None) -> None:
        """Write CSV, TSV, JSON or Parquet: the format `form`, or that of the name's ending."""
        write_answers(path, form, self.columns(), self.to_dict())


def predict_nodes(
    run_dir: str | Path | RunFolder,
    nodes: Sequence[str | int] | None = None,
    data: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    model: nn.Module | None = None,
    precision: float | None = None,
) -> Predictions:
    """Labels of nodes by a finished run, with the probability of each class.

    Args:
        run_dir: the run folder.
        nodes: ids of nodes, in the order of the result; None: all.
        data: the present place of the run's graph, or a new graph with the same features, as for training.
        data_dir: the data folder, for the run's graph.
        device: "auto", "cpu" or "cuda".
        model: your own module, if it was trained; it gets the weights of the run.
        precision: share of right labels that is wanted; the result has the probability from which on validation nodes
            had it.
    """
    run = RunFolder.open(run_dir)
    return NodeScores(run, data, data_dir=data_dir, device=device, model=model).predictions(nodes, precision)


class NodeScores:
    """A run on its graph or a new one: probabilities and hidden states of all nodes, computed once.

    The arguments are those of :func:`predict_nodes`.
    """

    def __init__(
        self,
        run: RunFolder,
        data: str | Path | None = None,
        *,
        data_dir: str | Path | None = None,
        device: str = "auto",
        model: nn.Module | None = None,
    ) -> None:
        self.run, self.data, self.data_dir, self.device, self.model = run, data, data_dir, device, model

    def predictions(self, nodes: Sequence[str | int] | None = None, precision: float | None = None) -> Predictions:
        """Labels of some nodes by their ids, None for all; with a precision its threshold."""
        (graph, every, notes), chosen = self._all, self._chosen(nodes)
        probabilities = every[chosen]
        split = {node: name for name in SPLITS for node in graph.split(name).tolist()}
        threshold = None
        if precision is not None:
            threshold = threshold_of(self.run, precision, data_dir=self.data_dir, device=self.device, model=self.model)
        return Predictions(
            dataset=graph.name,
            classes=names_of(graph),
            ids=[graph.id_of(node) for node in chosen.tolist()],
            labels=labels_of(graph, probabilities),
            probabilities=probabilities,
            truth=truth_of(graph, chosen),
            split=[split.get(node) for node in chosen.tolist()],
            notes=notes if threshold is None else (*notes, threshold.text),
            target=graph.target,
            threshold=threshold,
        )

    def embeddings(self, nodes: Sequence[str | int] | None = None) -> Embeddings:
        """The last hidden states of some nodes by their ids, None for all."""
        (graph, _, notes), chosen = self._all, self._chosen(nodes)
        return Embeddings(graph.name, [graph.id_of(node) for node in chosen.tolist()], self._states[chosen], notes)

    def unlabelled(self) -> list[str]:
        """The ids of the nodes without a label."""
        graph = self._all[0]
        return [graph.id_of(node) for node in (~graph.labelled).nonzero().squeeze(1).tolist()]

    def _chosen(self, nodes: Sequence[str | int] | None) -> Tensor:
        graph = self._all[0]
        return torch.arange(graph.num_nodes) if nodes is None else graph.index_of([str(node) for node in nodes])

    @cached_property
    def _all(self) -> tuple[NodeData, Tensor, tuple[str, ...]]:
        return probabilities_of(self.run, self.data, data_dir=self.data_dir, device=self.device, model=self.model)

    @cached_property
    def _states(self) -> Tensor:
        return torch.cat([self._states_of(run) for run, _ in self.run.members or [(self.run, 1.0)]], 1)

    def _states_of(self, run: RunFolder) -> Tensor:
        task, model, _ = open_nodes(run, self.data, self.data_dir, self.device, module=self.model)
        with matmul_precision(run.config.train.precision):
            return last_states(model, task.finite_scores).float().cpu()


def probabilities_of(
    run: RunFolder,
    data: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    model: nn.Module | None = None,
) -> tuple[NodeData, Tensor, tuple[str, ...]]:
    """The graph of any run or a new one, the probabilities [N, classes] of all its nodes, and notes on the data.

    They are calibrated on validation. Under the target "labels" each column has its own; under "number" they are the
    values [N, 1]. Those of a portfolio are the weighted mean of its members'. The arguments are those of
    :func:`predict_nodes`.
    """
    task, network, notes = open_nodes(run, data, data_dir, device, module=model)
    with matmul_precision(run.config.train.precision):
        answers = task.answers(task.finite_scores(network), run.calibration).cpu()
    return task.data, answers.view(task.num_nodes, -1), notes


def threshold_of(run: RunFolder, precision: float, **options: Any) -> Threshold:
    """The least probability of a class from which the run's validation nodes have a wanted precision."""
    if not 0 < precision < 1:
        raise ArgumentError("precision", precision, "above 0 and below 1")
    task, network, _ = open_nodes(run, None, options["data_dir"], options["device"], module=options["model"])
    if task.target.name != "classes":
        raise ArgumentError("precision", precision, f"none for a target of {task.target.name}")
    with matmul_precision(run.config.train.precision):
        confidence, right = task.confidences(task.finite_scores(network), run.calibration)
    threshold = threshold_for(precision, confidence, right)
    if threshold is None:
        best = threshold_for(0.0, confidence, right)
        allowed = f"a smaller one: all {len(right)} validation nodes together have {best.precision if best else 0:.2f}"
        raise ArgumentError("precision", precision, allowed)
    return threshold


def open_nodes(
    run: RunFolder,
    data: str | Path | None,
    data_dir: str | Path | None,
    device: str,
    splits: Sequence[str] = (),
    module: nn.Module | None = None,
) -> tuple[NodeClassification, Any, tuple[str, ...]]:
    """The task on the run's graph or a new one, whose `splits` must have nodes; the model, and notes on the data.

    The model of a portfolio gives the logarithms of its probabilities on this graph.
    """
    if not isinstance(run.config.data, NodeDataOptions):
        names = f"head={run.schema['entities'][0]!r} and relation={run.schema['relations'][0]!r}"
        raise DataError(run.path, "it is a run of link prediction", hint=f"queries, such as {names}")
    if run.members:
        if module is not None:
            raise ArgumentError("model", type(module).__name__, "none for a portfolio, which holds its models")
        graph, notes = _graph(run, data, data_dir)
        scale = run.schema.get("target_scale")
        task = NodeClassification(graph, run.config, pick_device(device), splits, target_scale=scale)
        each = [(_scores(member, data, data_dir, device), weight) for member, weight in run.members]
        scores = task.target.outputs(averaged_log(each, graph.target))
        return task, FixedScores(scores.to(task.device)), notes
    loaded, scaling = run.load_parts(**({} if module is None else {"module": module}))
    model: Any = loaded
    graph, notes = _graph(run, data, data_dir)
    wanted = (scaling or model).in_channels
    if graph.x is not None and graph.x.size(1) != wanted:
        allowed = f"the {wanted} that the run was trained on"
        raise DataError(graph.name, f"it has {graph.x.size(1)} features", allowed=allowed)
    scale = run.schema.get("target_scale")
    task = NodeClassification(graph, run.config, pick_device(device), splits, scaling, scale)
    return task, model.to(task.device), notes


def _scores(run: RunFolder, data: str | Path | None, data_dir: str | Path | None, device: str) -> Tensor:
    """Calibrated scores [N, C] of a member of a portfolio, on the CPU; a number in its unit."""
    task, model, _ = open_nodes(run, data, data_dir, device)
    with matmul_precision(run.config.train.precision):
        scores = task.finite_scores(model)
    return task.target.scores(calibrated(scores, run.calibration)).cpu()


def _graph(run: RunFolder, data: str | Path | None, data_dir: str | Path | None) -> tuple[NodeData, tuple[str, ...]]:
    """The run's graph, at its present place, or a new one, and notes on it."""
    settings, stored = run.config.data, run.schema
    assert isinstance(settings, NodeDataOptions)
    fingerprint, splits, *_ = (stored.pop(name, None) for name in ("fingerprint", "splits", "features", "target_scale"))
    schema = Schema.from_dict(stored)
    if data is None:
        run.check_data("data=… with the folder or file where it is now")
    else:
        graph = load_new_graph(data, settings, schema)
        if graph.fingerprint() != fingerprint:
            return graph, graph.notes
        settings = from_anywhere(settings, data)  # the run's graph, with the split that the run has drawn
    graph = load_node_data(settings, data_dir, scaled_like=schema)
    if schema.names != graph.schema.names:
        fault = "it has other features, classes or edge types than the run was trained on"
        hint = "data=… for a new graph, or to train again"
        raise DataError(graph.name, fault, allowed="the same, in the same files", hint=hint)
    if fingerprint != graph.fingerprint():
        return graph, (f"{graph.name} has other nodes, labels or edges than the run was trained on",)
    if splits != graph.split_fingerprint():
        return graph, (f"{graph.name} has another split than the run was trained with",)
    return graph, ()
