"""Targets of nodes on one graph, all nodes in one batch: batches, loss and metrics. No optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from magna.config.layers import AttentionOptions
from magna.config.path_kind import SPLITS
from magna.config.registry import ModelSettings
from magna.config.schema import Config
from magna.config.tables import NodeDataOptions, NodeTask
from magna.data import NodeData, prepare, with_random_split
from magna.errors import ArgumentError, DataError
from magna.nn.ensemble import averaged, make_model, members_of
from magna.nn.scaling import FeatureScaling
from magna.nn.sparse import SparseRows, has_few_entries
from magna.tasks.calibration import calibrated, fit_calibration
from magna.tasks.feature_scaling import with_scaling
from magna.tasks.metrics import METRIC_FORMS
from magna.tasks.node_metrics import NODE_METRICS
from magna.tasks.node_report import class_report, confidences, node_metrics
from magna.tasks.targets import target_of

Model = Callable[..., Tensor]  # a model, or a function in place of one


class NodeClassification:
    """The loss over the labelled nodes of the training split; the model always sees the whole graph.

    Nodes have a class, several labels or a number (`NodeData.target`). Scores of a number are standardised.

    >>> from magna.config.registry import model_settings
    >>> from magna.data import load_digits
    >>> task = NodeClassification(load_digits(), Config(), torch.device("cpu"))
    >>> sorted(task.evaluate(task.make_model(model_settings(hidden_channels=8)), "valid"))
    ['accuracy', 'loss']
    """

    SHARES_BATCH = NodeTask.SHARES_BATCH

    def __init__(
        self,
        data: NodeData,
        config: Config,
        device: torch.device,
        splits: Sequence[str] = SPLITS,
        scaling: FeatureScaling | None = None,
        target_scale: Sequence[float] | None = None,
    ):
        """Put a graph on a device; `splits` must have nodes.

        A finished run brings the `scaling` of its training, of numbers also their mean and deviation.
        """
        assert isinstance(config.data, NodeDataOptions) and isinstance(config.task, NodeTask)
        _check(data, splits, config.task)
        self.data_config, self._unprepared = config.data, data
        self.data, self.scaling = with_scaling(prepare(data, config.data), config.data, scaling)
        data = self.data
        assert data.x is not None
        self.dataset, self.device, self.settings = data.name, device, config.task
        self.num_nodes, self.num_edges = data.num_nodes, data.edge_index.size(1)
        self.in_channels, self.num_classes = data.x.size(1), data.num_classes
        self.target = target_of(data, target_scale)
        self.metric = self.target.metric(config.task.metric, data)
        self._measure = NODE_METRICS[data.target][self.metric]
        # The same tensors are handed to the model every time, so their sorted `Graph` is built only once.
        self._x = (SparseRows.of(data.x) if has_few_entries(data.x) else data.x).to(device)
        self._edge_index, self._y = data.edge_index.to(device), self.target.encoded(data.y).to(device)
        self._truth = data.y.to(device)
        self._types = () if data.edge_type is None else (data.edge_type.to(device),)
        edges = {"edge_weight": data.edge_weight, "edge_attr": data.edge_attr}
        self._edges = {name: value.to(device) for name, value in edges.items() if value is not None}
        self._nodes = {name: data.split(name).to(device) for name in SPLITS}
        self._random: dict[int, dict[str, Tensor]] = {}

    def make_model(self, settings: ModelSettings, **parts: Any) -> Any:
        sizes: dict[str, Any] = parts | {"in_channels": self.in_channels, "out_channels": self.num_classes}
        if self.data.num_relations is not None:
            if not isinstance(settings, AttentionOptions) and not parts:
                allowed = f"magna: {self.dataset} has typed edges, and {settings.name} takes none"
                raise ArgumentError("model.name", settings.name, allowed)
            sizes["num_relations"] = self.data.num_relations
        else:
            for name, value in settings.changes().items():
                if name in ("relation_channels", "relation_norm"):
                    allowed = f"the default, as the edges of {self.dataset} have no types"
                    raise ArgumentError(f"model.{name}", value, allowed)
        if self.data.edge_attr is not None:
            sizes["edge_dim"] = self.data.edge_attr.size(1)
        model = make_model(settings, self.target.name, **sizes)
        if "edge_weight" in self._edges and not getattr(model, "TAKES_EDGE_WEIGHT", True):
            allowed = f"a model that reads it, such as gcn or magna; {settings.name} does not"
            raise ArgumentError("edge_weight", f"a weight of each edge of {self.dataset}", allowed)
        return model

    @property
    def size(self) -> str:
        outputs = "a number" if self.target.name == "number" else f"{self.num_classes} {self.target.name}"
        return f"{self.num_nodes:,} nodes, {self.num_edges:,} edges, {outputs}"

    @property
    def data_bytes(self) -> int:
        """Size of the data on the device; the edges are stored sorted by target and by source."""
        return self._x.nbytes + 4 * self._edge_index.nbytes + sum(part.nbytes for part in self._edges.values())

    def notes(self, _: Config) -> tuple[str, ...]:
        return self.data.notes

    def objective(self, settings: NodeTask, _: nn.Module) -> NodeObjective:
        return NodeObjective(self, settings)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The columns that another graph must have, and fingerprints of this one, for the run folder."""
        data = self._unprepared
        fingerprints = data.fingerprint(), data.split_fingerprint(), data.feature_fingerprint()
        marks = dict(zip(("fingerprint", "splits", "features"), fingerprints, strict=True))
        scale = {} if self.target.scale is None else {"target_scale": self.target.scale}
        return data.schema.to_dict() | marks | scale

    def loss(self, model: Model, nodes: Tensor, epoch: int | Tensor = 0, settings: NodeTask | None = None) -> Tensor:
        """The loss of some training nodes, the consistency of passes where the task asks for it, and the loss that
        the model brings along.

        Args:
            model: gives the scores of all nodes; an ensemble those of each member, [M, N, C].
            nodes: nodes whose labels are read.
            epoch: number of the epoch, for the ramp of the consistency.
            settings: in place of the task's; its numbers may be tensors.
        """
        settings = settings or self.settings
        compared = isinstance(settings.consistency, Tensor) or settings.consistency > 0
        passes = [self.scores(model) for _ in range(settings.passes if compared else 1)]
        if passes[0].dim() == 2:
            return self._loss(passes, nodes, epoch, settings) + self._auxiliary(model, passes, epoch)
        assert isinstance(model, nn.Module)
        parts = [
            self._loss(scores, nodes, epoch, settings) + self._auxiliary(member, scores, epoch)
            for member, scores in zip(members_of(model), zip(*passes, strict=True), strict=True)
        ]
        # The sum, so that each member has the gradient that it would have alone.
        return torch.stack(parts).sum()

    def _auxiliary(self, model: Model, passes: Sequence[Tensor], epoch: int | Tensor) -> Tensor | float:
        """The loss that a model brings along, see :func:`magna.config.registry.node_model`; the mean of the passes."""
        auxiliary = getattr(model, "auxiliary_loss", None)
        if auxiliary is None:
            return 0.0
        inputs = self._x, self._edge_index, *self._types
        return torch.stack([auxiliary(scores, epoch, *inputs) for scores in passes]).mean()

    def _loss(self, passes: Sequence[Tensor], nodes: Tensor, epoch: int | Tensor, settings: NodeTask) -> Tensor:
        """Loss of one model from its passes, [N, C] each."""
        target, balanced = self._y[nodes], settings.class_weights == "balanced"
        if len(passes) == 1:
            return self.target.loss(passes[0][nodes], target, balanced)
        passes = [self.target.logs(scores) for scores in passes]
        supervised = torch.stack(
            [self.target.loss_of_logs(scores[nodes], target, balanced) for scores in passes]
        ).mean()
        if settings.consistency_nodes > 0:
            drawn = torch.randint(self.num_nodes, (settings.consistency_nodes,), device=target.device)
            passes = [scores[drawn] for scores in passes]
        ramp = torch.as_tensor(epoch + 1, device=target.device) / settings.ramp
        distance = self.target.distance(passes, settings.temperature, settings.confidence)
        return supervised + settings.consistency * ramp.clamp(max=1) * distance

    def scores(self, model: Model) -> Tensor:
        return model(self._x, self._edge_index, *self._types, **self._edges)

    def averaged(self, scores: Tensor) -> Tensor:
        """The scores of an ensemble by those of its members, [M, N, C]."""
        return averaged(scores, self.target.name)

    def measure(self, scores: Tensor, nodes: Tensor) -> dict[str, Tensor]:
        value = self._measure(self.target.scores(scores[nodes]), self._truth[nodes])
        return {self.metric: value, "loss": self.target.loss(scores[nodes], self._y[nodes])}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, calibration: Mapping[str, Any] | None = None) -> dict[str, float]:
        """The metric of the task and the loss on `train`, `valid` or `test`; with a calibration all metrics."""
        return self.metrics_of(self.scores(model.eval()), split, calibration)

    def metrics_of(
        self, scores: Tensor, split: str, calibration: Mapping[str, Any] | None = MappingProxyType({})
    ) -> dict[str, float]:
        """Metrics on a split by the scores of all nodes."""
        nodes = self.nodes(split)
        metrics = {name: float(value) for name, value in self.measure(scores, nodes).items()}
        if calibration is None:
            return metrics
        measured = self.target.scores(scores[nodes])
        return metrics | node_metrics(measured, self._truth[nodes], self.target.name, calibration)

    def report(self, model: nn.Module, split: str, calibration: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Metrics on a split, each class, the confusion matrix and the reliability, as calibrated."""
        scores, nodes, calibration = self.finite_scores(model), self.nodes(split), calibration or {}
        names = [self.data.class_name(label) for label in range(self.num_classes)]
        measured, truth = self.target.scores(scores[nodes]), self._truth[nodes]
        return {
            "metrics": self.metrics_of(scores, split, calibration),
            **class_report(measured, truth, self.target.name, names, calibration),
        }

    def answers(self, scores: Tensor, calibration: Mapping[str, Any] | None = None) -> Tensor:
        """float64 probabilities [N, C] of classes or labels, calibrated; the values [N] of a number in its unit."""
        return self.target.answers(scores if self.target.name == "number" else calibrated(scores, calibration))

    def confidences(self, scores: Tensor, calibration: Mapping[str, Any] | None = None) -> tuple[Tensor, Tensor]:
        """Confidence in each answer on validation, and whether it is right."""
        nodes = self.nodes("valid")
        return confidences(calibrated(scores[nodes], calibration), self._truth[nodes], self.target.name)

    @torch.no_grad()
    def finite_scores(self, model: nn.Module) -> Tensor:
        """Scores [N, C] for predictions; others than numbers are refused."""
        scores, data = self.scores(model.eval()), self._unprepared
        if scores.isfinite().all():
            return scores
        assert data.x is not None
        # The largest feature is the likely source; diffusion spreads it to other nodes.
        node, column = divmod(int(data.x.abs().argmax()), data.x.size(1))
        names = data.schema.feature_names
        largest = f"{float(data.x[node, column]):.3g}, {names[column] if names else column} of {data.id_of(node)}"
        fault = f"its scores are not numbers; the largest input of the model is {largest}"
        raise DataError(self.dataset, fault, allowed="features like those of training")

    def can_score(self, split: str) -> bool:
        """True if the split has nodes."""
        return self._nodes[split].numel() > 0

    def nodes(self, split: str, seed: int | None = None) -> Tensor:
        """Nodes of `train`, `valid` or `test`; with a seed, of that random split of the same graph."""
        if seed is None:
            return self._nodes[split]
        if seed not in self._random:
            drawn = with_random_split(self.data, seed)
            self._random[seed] = {name: drawn.split(name).to(self.device) for name in self._nodes}
        return self._random[seed][split]

    def score(self, metrics: dict[str, float]) -> tuple[float, float]:
        """The values that selection compares, larger is better: the metric of the task, then the loss."""
        return METRIC_FORMS[self.metric].score(metrics[self.metric]), -metrics["loss"]

    @torch.no_grad()
    def calibrate(self, model: nn.Module) -> dict[str, Any]:
        """Temperature, or slopes and biases of labels, that fit the probabilities to validation."""
        nodes, balanced = self.nodes("valid"), self.settings.class_weights == "balanced"
        scores = self.scores(model.eval())[nodes].cpu()
        return fit_calibration(scores, self._truth[nodes].cpu(), self.target.name, with_bias=not balanced)


@dataclass
class NodeObjective:
    """The loss of a model with some settings: one batch an epoch, all training nodes."""

    task: NodeClassification
    settings: NodeTask
    num_batches = 1

    def batches(self, *_: int) -> tuple[Tensor, ...]:
        return (self.task.nodes("train"),)

    def loss(self, model: Model, batch: Tensor, epoch: int | Tensor = 0) -> Tensor:
        return self.task.loss(model, batch, epoch, self.settings)


def _check(data: NodeData, splits: Sequence[str], settings: NodeTask) -> None:
    """Refuse data without features, or without classes or nodes that the splits need; training needs no test."""
    if data.x is None:
        raise DataError(data.name, "it has no features", allowed="one column or more of numbers beside id and label")
    if settings.class_weights == "balanced" and data.target == "number":
        raise ArgumentError("task.class_weights", settings.class_weights, "none for numbers, which have no classes")
    if "train" in splits and data.target == "classes" and data.num_classes < 2:
        fault = "no label" if data.num_classes == 0 else "one label alone"
        raise DataError(data.name, f"it has {fault}", allowed="nodes of two classes or more")
    empty = [split for split in splits if data.split(split).numel() == 0]
    if len(empty) == 3:
        fault = f"it has {int(data.labelled.sum())} labelled nodes in {data.num_classes} classes"
        allowed = "one or more for validation and for the test beside 60 % of each class, or a column 'split'"
        raise DataError(data.name, fault, allowed=allowed)
    if empty and not ("train" in splits and empty == ["test"]):
        raise DataError(data.name, f"it has no {empty[0]} node", allowed="one or more with a label")
