"""Node classification on one graph, all nodes in one batch: batches, loss and metrics. No optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.config.layers import AttentionOptions
from magna.config.path_kind import SPLITS
from magna.config.registry import ModelSettings
from magna.config.schema import Config
from magna.config.tables import NodeDataOptions, NodeTask
from magna.data import NodeData, prepare, with_random_split
from magna.errors import ArgumentError, DataError
from magna.nn.ensemble import make_model, members_of
from magna.nn.sparse import SparseRows, has_few_entries
from magna.tasks.metrics import correct

Model = Callable[..., Tensor]  # a model, or a function in place of one


class NodeClassification:
    """Cross-entropy over the labelled nodes of the training split; the model always sees the whole graph.

    >>> from magna.config.registry import model_settings
    >>> from magna.data import load_digits
    >>> task = NodeClassification(load_digits(), Config(), torch.device("cpu"))
    >>> sorted(task.evaluate(task.make_model(model_settings(hidden_channels=8)), "valid"))
    ['accuracy', 'loss']
    """

    METRIC, SHARES_BATCH = NodeTask.METRIC, NodeTask.SHARES_BATCH

    def __init__(self, data: NodeData, config: Config, device: torch.device, splits: Sequence[str] = SPLITS):
        """Put a graph on a device; `splits` must have nodes."""
        assert isinstance(config.data, NodeDataOptions) and isinstance(config.task, NodeTask)
        _check(data, splits)
        self.data_config, self._unprepared = config.data, data
        self.data = data = prepare(data, config.data)
        assert data.x is not None
        self.dataset, self.device, self.settings = data.name, device, config.task
        self.num_nodes, self.num_edges = data.num_nodes, data.edge_index.size(1)
        self.in_channels, self.num_classes = data.x.size(1), data.num_classes
        # The same tensors are handed to the model every time, so their sorted `Graph` is built only once.
        self._x = (SparseRows.of(data.x) if has_few_entries(data.x) else data.x).to(device)
        self._edge_index, self._y = data.edge_index.to(device), data.y.to(device)
        self._types = () if data.edge_type is None else (data.edge_type.to(device),)
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
        return make_model(settings, **sizes)

    @property
    def size(self) -> str:
        return f"{self.num_nodes:,} nodes, {self.num_edges:,} edges, {self.num_classes} classes"

    @property
    def data_bytes(self) -> int:
        """Size of the data on the device; the edges are stored sorted by target and by source."""
        return self._x.nbytes + 4 * self._edge_index.nbytes

    def notes(self, _: Config) -> tuple[str, ...]:
        return self.data.notes

    def objective(self, settings: NodeTask, _: nn.Module) -> NodeObjective:
        return NodeObjective(self, settings)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The columns that another graph must have, and fingerprints of this one, for the run folder."""
        data = self._unprepared
        fingerprints = data.fingerprint(), data.split_fingerprint(), data.feature_fingerprint()
        return data.schema.to_dict() | dict(zip(("fingerprint", "splits", "features"), fingerprints, strict=True))

    def loss(self, model: Model, nodes: Tensor, epoch: int | Tensor = 0, settings: NodeTask | None = None) -> Tensor:
        """Cross-entropy of some training nodes, the consistency of passes where the task asks for it, and the loss that
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
        target = self._y[nodes]
        if len(passes) == 1:
            return F.cross_entropy(passes[0][nodes], target)
        passes = [scores.log_softmax(-1) for scores in passes]
        supervised = torch.stack([F.nll_loss(scores[nodes], target) for scores in passes]).mean()
        if settings.consistency_nodes > 0:
            drawn = torch.randint(self.num_nodes, (settings.consistency_nodes,), device=target.device)
            passes = [scores[drawn] for scores in passes]
        ramp = torch.as_tensor(epoch + 1, device=target.device) / settings.ramp
        distance = consistency(passes, settings.temperature, settings.confidence)
        return supervised + settings.consistency * ramp.clamp(max=1) * distance

    def scores(self, model: Model) -> Tensor:
        return model(self._x, self._edge_index, *self._types)

    def measure(self, scores: Tensor, nodes: Tensor) -> dict[str, Tensor]:
        target = self._y[nodes]
        accuracy = correct(scores[nodes], target).double().mean()
        return {"accuracy": accuracy, "loss": F.cross_entropy(scores[nodes], target)}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Accuracy and loss on `train`, `valid` or `test`."""
        metrics = self.measure(self.scores(model.eval()), self.nodes(split))
        return {name: float(value) for name, value in metrics.items()}

    def report(self, model: nn.Module, split: str) -> dict[str, Any]:
        metrics = self.measure(self.finite_scores(model), self.nodes(split))
        return {"metrics": {name: float(value) for name, value in metrics.items()}}

    @torch.no_grad()
    def finite_scores(self, model: nn.Module) -> Tensor:
        """Scores [N, C] for predictions; others than numbers are refused."""
        scores, data = self.scores(model.eval()), self.data
        if scores.isfinite().all():
            return scores
        assert data.x is not None
        # The largest feature is the likely source; diffusion spreads it to other nodes.
        node, column = divmod(int(data.x.abs().argmax()), self.in_channels)
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

    @staticmethod
    def score(metrics: dict[str, float]) -> tuple[float, float]:
        """The values that selection compares, larger is better: accuracy, then the loss."""
        return metrics["accuracy"], -metrics["loss"]

    def calibrate(self, _: nn.Module) -> dict[str, float]:
        return {}


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


def _check(data: NodeData, splits: Sequence[str]) -> None:
    """Refuse data without features, or without classes or nodes that the splits need; training needs no test."""
    if data.x is None:
        raise DataError(data.name, "it has no features", allowed="one column or more of numbers beside id and label")
    if data.target != "classes":
        kind = "a number" if data.target == "number" else "several labels"
        hint = "data.target=classes" if data.target == "number" else ""
        raise DataError(data.name, f"its nodes have {kind} each", allowed="one class each", hint=hint)
    if "train" in splits and data.num_classes < 2:
        fault = "no label" if data.num_classes == 0 else "one label alone"
        raise DataError(data.name, f"it has {fault}", allowed="nodes of two classes or more")
    empty = [split for split in splits if data.split(split).numel() == 0]
    if len(empty) == 3:
        fault = f"it has {int(data.labelled.sum())} labelled nodes in {data.num_classes} classes"
        allowed = "one or more for validation and for the test beside 60 % of each class, or a column 'split'"
        raise DataError(data.name, fault, allowed=allowed)
    if empty and not ("train" in splits and empty == ["test"]):
        raise DataError(data.name, f"it has no {empty[0]} node", allowed="one or more with a label")


def consistency(passes: Sequence[Tensor], temperature: float | Tensor, confidence: float | Tensor = 0.0) -> Tensor:
    """Distance of stochastic passes from their sharpened mean (Feng et al. 2020, GRAND).

    Σ_s ‖p_s − p̄‖² / S with p̄ ∝ m^(1/T), m the mean of the p_s, which gets no gradient; averaged over the nodes where
    some class has at least `confidence` in m (Feng et al. 2022, GRAND+), 0 where there is no such node.

    Shapes: passes [N, C] each, log-probabilities → [].

    >>> one_hot = torch.eye(2).log()
    >>> float(consistency([one_hot, one_hot], 0.5))
    0.0
    """
    probabilities = torch.stack([scores.exp() for scores in passes])  # [S, N, C]
    with torch.no_grad():
        mean = probabilities.mean(0)
        sharp = mean ** (1 / temperature)
        sharp = sharp / sharp.sum(-1, keepdim=True)
        sure = (mean.amax(-1) >= confidence).to(mean.dtype)
    distances = (probabilities - sharp).square().sum(-1).mean(0)
    return (distances * sure).sum() / sure.sum().clamp(min=1)
