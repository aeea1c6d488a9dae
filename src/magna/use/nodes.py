"""A finished run put to use: labels with probabilities, and its score again; on its own graph or on a new one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magna.data import NodeData, Schema, from_anywhere, load_new_graph, load_node_data, prepare
from magna.data.node_data import UNLABELLED
from magna.data.tables import csv_rows, is_csv, text_of
from magna.tasks.nodes import scored
from magna.training.capture import matmul_precision
from magna.training.run_folder import RunFolder, pick_device
from magna.use.files import write_answers
from magna.use.links import evaluate_links


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row for each node that was asked for.

    Shapes: ids, labels and truth have a row's length, probabilities is [rows, classes]; truth is None where a node's
    label is not known.
    """

    dataset: str
    classes: list[str]
    ids: list[str]
    labels: list[str]
    probabilities: Tensor
    truth: list[str | None]
    notes: tuple[str, ...] = ()  # what one should know of the data

    def columns(self) -> dict[str, list[Any]]:
        """Everything by column: what a table file holds, and what `pandas.DataFrame` takes."""
        columns: dict[str, list[Any]] = {
            "id": self.ids,
            "label": self.labels,
            "probability": self.probabilities.amax(1).tolist() if self.ids else [],
        }
        for index, name in enumerate(self.classes):
            columns[f"probability_{name}"] = self.probabilities[:, index].tolist()
        if any(label is not None for label in self.truth):
            columns["true_label"] = self.truth
        return columns

    def to_dict(self) -> dict[str, Any]:
        """Everything by node: what `magna predict --json` prints."""
        rows = zip(self.ids, self.labels, self.probabilities.tolist(), self.truth, strict=True)
        return {
            "task": "node_classification",
            "dataset": self.dataset,
            "classes": self.classes,
            "nodes": [
                {
                    "id": id,
                    "label": label,
                    "probability": max(probabilities),
                    "probabilities": dict(zip(self.classes, probabilities, strict=True)),
                    "true_label": truth,
                }
                for id, label, probabilities, truth in rows
            ],
            "notes": list(self.notes),
        }

    def write(self, path: str | Path, form: str | None = None) -> None:
        """As CSV, JSON or Parquet; the ending of the name says which where `form` does not."""
        write_answers(path, form, self.columns(), self.to_dict())


def predict(
    run_dir: str | Path,
    nodes: Sequence[str | int] | None = None,
    data: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
) -> Predictions:
    """The labels that a finished run gives to nodes, with the probability of each class.

    Args:
        run_dir: the run folder.
        nodes: ids of nodes, in the order that is wanted; None: all.
        data: where the run's own graph is now, or a new one with the same features (a folder or file as for training).
        data_dir: the data folder, for the run's own graph.
        device: "auto", "cpu" or "cuda".
    """
    graph, scores, notes = _scores(run_dir, data, data_dir, device)
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
) -> dict[str, Any]:
    """Score a finished run again from its files: what `magna evaluate --json` prints.

    On a new graph (`data`) the split is its own; where it has no splits, all labelled nodes are its test split. A
    knowledge graph has the entities and relations of the run's own.
    """
    if split not in ("valid", "test"):
        raise ValueError(f"split is {split!r}; allowed: valid, test")
    if RunFolder.open(run_dir).config.task.name == "link_prediction":
        return evaluate_links(run_dir, split, data, data_dir=data_dir, device=device)
    graph, scores, notes = _scores(run_dir, data, data_dir, device)
    nodes = graph.split(split)
    if nodes.numel() == 0:
        raise ValueError(f"{graph.name} has no {split} node; allowed: a graph with labelled nodes in that split")
    metrics = scored(scores[nodes], graph.y[nodes])
    return {
        "task": "node_classification",
        "dataset": graph.name,
        "split": split,
        "metrics": {name: float(value) for name, value in metrics.items()},
        "notes": list(notes),
    }


def read_ids(path: str | Path) -> list[str]:
    """The ids of a file: the `id` column of a CSV, else one id on each line; blanks around them go, as in nodes.csv."""
    path = Path(path)
    if is_csv(path):
        rows = csv_rows(path)
        header = [name.strip() for name in next(rows, (1, []))[1]]
        if "id" not in header:
            raise ValueError(f"{path} has columns {', '.join(header)}; allowed: one of them is id")
        at = header.index("id")
        ids = [row[at].strip() for _, row in rows if len(row) > at]
    else:
        with text_of(path) as file:
            ids = [line.strip() for line in io.StringIO(file.read(), newline=None)]
    found = [id for id in ids if id]
    if not found:
        raise ValueError(f"{path} holds no id of a node; allowed: one on each line, or a .csv with a column id")
    return found


@torch.no_grad()
def _scores(
    run_dir: str | Path, data: str | Path | None, data_dir: str | Path | None, device: str
) -> tuple[NodeData, Tensor, tuple[str, ...]]:
    """The graph, the model's scores [N, C] for all of its nodes, on the CPU, and what one should know of the data."""
    run = RunFolder.open(run_dir)
    if run.config.task.name != "node_classification":
        raise ValueError(f"{run.path} is a run of link prediction; try --head and --relation, or magna.use.links")
    config, model = run.config, run.load_model()
    graph, notes = _graph(run, data, data_dir)
    graph = prepare(graph, config.data)
    if graph.x is None or graph.x.size(1) != model.in_channels:
        got = "no" if graph.x is None else graph.x.size(1)
        raise ValueError(
            f"{graph.name} has {got} features; allowed: the {model.in_channels} that the run was trained on"
        )
    where = torch.device(pick_device(device))
    edges = [part.to(where) for part in (graph.edge_index, graph.edge_type) if part is not None]
    with matmul_precision(config.train.precision):
        scores = model.to(where).eval()(graph.x.to(where), *edges).cpu()
    if not scores.isfinite().all():
        # One node tells the others: the one with the largest feature is the likely source.
        node, column = divmod(int(graph.x.abs().argmax()), graph.x.size(1))
        names = graph.schema.feature_names
        raise ValueError(
            f"{graph.name} gives scores that are no numbers; allowed: features like those of training; the largest, as "
            f"the model is given it, is {float(graph.x[node, column]):.3g}, {names[column] if names else column} of "
            f"node {graph.id_of(node)}"
        )
    return graph, scores, notes


def _graph(run: RunFolder, data: str | Path | None, data_dir: str | Path | None) -> tuple[NodeData, tuple[str, ...]]:
    """The run's own graph, wherever it is now, or a new one, and what one should know of it."""
    settings, kept = run.config.data, run.schema or {}
    fingerprint, splits, _ = (kept.pop(name, None) for name in ("fingerprint", "splits", "features"))
    schema = Schema.from_dict(kept)
    if data is None:
        run.check_data("try --data with the folder or file where it is now")
    else:
        if not kept:
            raise ValueError(f"{run.path} keeps no schema.json, which a new graph is read with; train it again")
        graph = load_new_graph(data, settings, schema)
        if graph.fingerprint() != fingerprint:
            return graph, ()
        settings = from_anywhere(settings, data)  # the run's own, with the split that the run has drawn
    graph = load_node_data(settings, data_dir, scaled_like=schema)
    if kept and schema.names != graph.schema.names:
        raise ValueError(
            f"{graph.name} has other features, classes or edge types than the run was trained on; allowed: the same, "
            "in the same files; try --data for a new graph, or to train again"
        )
    # Runs of before there were fingerprints say nothing.
    if fingerprint not in (None, graph.fingerprint()):
        return graph, (f"{graph.name} has other nodes, labels or edges than the run was trained on",)
    if splits not in (None, graph.split_fingerprint()):
        return graph, (f"{graph.name} has another split than the run was trained with",)
    return graph, ()
