"""Predictions of a finished run on nodes: labels with probabilities, and metrics; on the run's graph or a new one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magna.data import NodeData, Schema, from_anywhere, load_new_graph, load_node_data, prepare
from magna.data.node_data import UNLABELLED
from magna.data.tables import csv_rows, is_csv, text_of
from magna.errors import ArgumentError, DataError, listed
from magna.tasks.nodes import scored
from magna.training.capture import matmul_precision
from magna.training.run_folder import RunFolder, pick_device
from magna.use.files import write_answers
from magna.use.links import evaluate_links


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row for each node of the query.

    Shapes: ids, labels and truth have an entry a row, probabilities is [rows, classes]; truth is None for a node
    without a label.
    """

    dataset: str
    classes: list[str]
    ids: list[str]
    labels: list[str]
    probabilities: Tensor
    truth: list[str | None]
    notes: tuple[str, ...] = ()  # on the data, for the user

    def columns(self) -> dict[str, list[Any]]:
        """All values by column, as a table file and `pandas.DataFrame` take them."""
        best = self.probabilities.amax(1).tolist() if self.ids else []
        columns: dict[str, list[Any]] = {"id": self.ids, "label": self.labels, "probability": best}
        for index, name in enumerate(self.classes):
            columns[f"probability_{name}"] = self.probabilities[:, index].tolist()
        if any(label is not None for label in self.truth):
            columns["true_label"] = self.truth
        return columns

    def to_dict(self) -> dict[str, Any]:
        """All values by node, ready for JSON."""
        shares = [dict(zip(self.classes, row, strict=True)) for row in self.probabilities.tolist()]
        rows = zip(self.ids, self.labels, shares, self.truth, strict=True)
        return {
            "task": "node_classification",
            "dataset": self.dataset,
            "classes": self.classes,
            "nodes": [
                {"id": id, "label": label, "probability": max(p.values()), "probabilities": p, "true_label": truth}
                for id, label, p, truth in rows
            ],
            "notes": list(self.notes),
        }

    def write(self, path: str | Path, form: str | None = None) -> None:
        """Write CSV, TSV, JSON or Parquet: the format `form`, or that of the name's ending."""
        write_answers(path, form, self.columns(), self.to_dict())


def predict_nodes(
    run_dir: str | Path,
    nodes: Sequence[str | int] | None = None,
    data: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    model: nn.Module | None = None,
) -> Predictions:
    """Labels of nodes by a finished run, with the probability of each class.

    Args:
        run_dir: the run folder.
        nodes: ids of nodes, in the order of the result; None: all.
        data: the present place of the run's graph, or a new graph with the same features, as for training.
        data_dir: the data folder, for the run's graph.
        device: "auto", "cpu" or "cuda".
        model: your own module, if it was trained; it gets the weights of the run.
    """
    graph, scores, notes = _scores(run_dir, data, data_dir, device, model)
    chosen = torch.arange(graph.num_nodes) if nodes is None else graph.index_of([str(node) for node in nodes])
    probabilities = scores[chosen].double().softmax(1)
    return Predictions(
        dataset=graph.name,
        classes=[graph.class_name(label) for label in range(scores.size(1))],
        ids=[graph.id_of(node) for node in chosen.tolist()],
        labels=[graph.class_name(label) for label in probabilities.argmax(1).tolist()],
        probabilities=probabilities,
        truth=[None if label == UNLABELLED else graph.class_name(label) for label in graph.y[chosen].tolist()],
        notes=notes,
    )


def evaluate(
    run_dir: str | Path,
    split: str = "test",
    data: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    model: nn.Module | None = None,
) -> dict[str, Any]:
    """Metrics of a finished run, computed again from its files.

    A new graph (`data`) has its own split; if it has none, all labelled nodes are its test split. A new knowledge graph
    has the entities and relations of the run. A run of your own module needs it again, as `model`.
    """
    if split not in ("valid", "test"):
        raise ArgumentError("split", split, ["valid", "test"])
    run = RunFolder.open(run_dir)
    if run.config.task.name == "link_prediction":
        return evaluate_links(run, split, data, data_dir=data_dir, device=device)
    graph, scores, notes = _scores(run, data, data_dir, device, model)
    nodes = graph.split(split)
    if nodes.numel() == 0:
        raise DataError(graph.name, f"it has no {split} node", allowed="a graph with labelled nodes in that split")
    metrics = scored(scores[nodes], graph.y[nodes])
    return {
        "task": "node_classification",
        "dataset": graph.name,
        "split": split,
        "metrics": {name: float(value) for name, value in metrics.items()},
        "notes": list(notes),
    }


def read_ids(path: str | Path) -> list[str]:
    """The ids of a file: the `id` column of a CSV, or one id a line; blanks around them go, as in nodes.csv."""
    path = Path(path)
    if is_csv(path):
        rows = csv_rows(path)
        header = [name.strip() for name in next(rows, (1, []))[1]]
        if "id" not in header:
            raise DataError(path, f"it has the columns {listed(header)}", allowed="one of them is id")
        at = header.index("id")
        ids = [row[at].strip() for _, row in rows if len(row) > at]
    else:
        with text_of(path) as file:
            ids = [line.strip() for line in io.StringIO(file.read(), newline=None)]
    nodes = [id for id in ids if id]
    if not nodes:
        raise DataError(path, "it has no id of a node", allowed="one a line, or a .csv with a column id")
    return nodes


@torch.no_grad()
def _scores(
    run_dir: str | Path | RunFolder,
    data: str | Path | None,
    data_dir: str | Path | None,
    device: str,
    module: nn.Module | None = None,
) -> tuple[NodeData, Tensor, tuple[str, ...]]:
    """The graph, the scores [N, C] of all nodes on the CPU, and notes on the data."""
    run = RunFolder.open(run_dir)
    if run.config.task.name != "node_classification":
        raise DataError(run.path, "it is a run of link prediction", hint="queries of head=… and relation=…")
    config, model = run.config, run.load_model(**({} if module is None else {"module": module}))
    graph, notes = _graph(run, data, data_dir)
    graph = prepare(graph, config.data)
    if graph.x is None or graph.x.size(1) != model.in_channels:
        count = "no" if graph.x is None else graph.x.size(1)
        allowed = f"the {model.in_channels} that the run was trained on"
        raise DataError(graph.name, f"it has {count} features", allowed=allowed)
    place = torch.device(pick_device(device))
    edges = [part.to(place) for part in (graph.edge_index, graph.edge_type) if part is not None]
    with matmul_precision(config.train.precision):
        scores = model.to(place).eval()(graph.x.to(place), *edges).cpu()
    if not scores.isfinite().all():
        # The largest feature is the likely source; diffusion spreads it to other nodes.
        node, column = divmod(int(graph.x.abs().argmax()), graph.x.size(1))
        names = graph.schema.feature_names
        largest = f"{float(graph.x[node, column]):.3g}, {names[column] if names else column} of {graph.id_of(node)}"
        fault = f"its scores are not numbers; the largest input of the model is {largest}"
        raise DataError(graph.name, fault, allowed="features like those of training")
    return graph, scores, notes


def _graph(run: RunFolder, data: str | Path | None, data_dir: str | Path | None) -> tuple[NodeData, tuple[str, ...]]:
    """The run's graph, at its present place, or a new one, and notes on it."""
    settings, stored = run.config.data, run.schema or {}
    fingerprint, splits, _ = (stored.pop(name, None) for name in ("fingerprint", "splits", "features"))
    schema = Schema.from_dict(stored)
    if data is None:
        run.check_data("data=… with the folder or file where it is now")
    else:
        if not stored:
            raise DataError(run.path, "it has no schema.json, which a new graph needs", hint="to train it again")
        graph = load_new_graph(data, settings, schema)
        if graph.fingerprint() != fingerprint:
            return graph, ()
        settings = from_anywhere(settings, data)  # the run's graph, with the split that the run has drawn
    graph = load_node_data(settings, data_dir, scaled_like=schema)
    if stored and schema.names != graph.schema.names:
        fault = "it has other features, classes or edge types than the run was trained on"
        hint = "data=… for a new graph, or to train again"
        raise DataError(graph.name, fault, allowed="the same, in the same files", hint=hint)
    if stored and fingerprint != graph.fingerprint():
        return graph, (f"{graph.name} has other nodes, labels or edges than the run was trained on",)
    if stored and splits != graph.split_fingerprint():
        return graph, (f"{graph.name} has another split than the run was trained with",)
    return graph, ()
