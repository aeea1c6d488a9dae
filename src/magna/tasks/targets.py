"""Targets of nodes: the loss, the probabilities and the comparison of passes for classes, labels and numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from magna.data.node_data import NodeData, Target
from magna.errors import ArgumentError
from magna.tasks.node_metrics import NODE_METRICS


class NodeTarget(ABC):
    """One kind of target.

    `logs` are what passes are compared by and `loss_of_logs` reads: log-probabilities, or values of a number.
    """

    name: Target

    def loss(self, scores: Tensor, target: Tensor, balanced: bool = False) -> Tensor:
        """Mean loss of some nodes; `balanced` gives each class the same weight."""
        return self.loss_of_logs(self.logs(scores), target, balanced)

    @abstractmethod
    def logs(self, scores: Tensor) -> Tensor:
        """Log-probabilities of the scores, or values."""

    @abstractmethod
    def loss_of_logs(self, logs: Tensor, target: Tensor, balanced: bool = False) -> Tensor:
        """The loss of scores whose `logs` are at hand."""

    def distance(self, passes: Sequence[Tensor], temperature: float | Tensor, confidence: float | Tensor) -> Tensor:
        """Distance of the `logs` of several passes from their sharpened mean; a label is a pair of classes."""
        return consistency(passes, temperature, confidence)

    def answers(self, scores: Tensor) -> Tensor:
        """float64 probabilities, or values in the unit of the data."""
        return self.logs(scores.double()).exp()

    def scores(self, outputs: Tensor) -> Tensor:
        """The scores that metrics read: the outputs of a model, of a number its values in the unit of the data."""
        return outputs

    def outputs(self, scores: Tensor) -> Tensor:
        """The outputs of a model whose metrics read these scores."""
        return scores

    def encoded(self, y: Tensor) -> Tensor:
        """The target as the loss reads it."""
        return y

    @property
    def scale(self) -> list[float] | None:
        """Mean and deviation of a number in training."""
        return None

    def metric(self, name: str, data: NodeData) -> str:
        """The metric with this name; of "auto", the first one that the validation split defines.

        A name that does not serve the target, or is not defined on validation, is refused.
        """
        measures = NODE_METRICS[self.name]
        if name not in (*measures, "auto"):
            raise ArgumentError("task.metric", name, f"{', '.join(measures)} for a target of {self.name}")
        valid = self.encoded(data.y)[data.valid]
        if len(valid) == 0:  # nothing is judged
            return next(iter(measures)) if name == "auto" else name
        constant = torch.zeros(len(valid), data.num_classes)
        defined = [each for each, measure in measures.items() if not measure(constant, valid).isnan()]
        if name != "auto" and name not in defined:
            allowed = f"{', '.join(defined)}, as all validation labels of {data.name} are equal"
            raise ArgumentError("task.metric", name, allowed)
        return defined[0] if name == "auto" else name


class Classes(NodeTarget):
    """One class a node: cross-entropy of the softmax."""

    name = "classes"

    def loss(self, scores: Tensor, target: Tensor, balanced: bool = False) -> Tensor:
        return super().loss(scores, target, True) if balanced else F.cross_entropy(scores, target)

    def logs(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)

    def loss_of_logs(self, logs: Tensor, target: Tensor, balanced: bool = False) -> Tensor:
        if not balanced:
            return F.nll_loss(logs, target)
        # n / (C · n_c) for a node of class c, with C the classes that the nodes have.
        truth = (target[:, None] == torch.arange(logs.size(-1), device=logs.device)).to(logs.dtype)
        counts = truth.sum(0)
        weight = (truth / counts.clamp(min=1)).sum(1) / (counts > 0).sum()
        return -(weight * (truth * logs).sum(1)).sum()


class SeveralLabels(NodeTarget):
    """Several labels a node, each there or not: binary cross-entropy over the known entries."""

    name = "labels"

    def logs(self, scores: Tensor) -> Tensor:
        """[N, L, 2]: of the label's absence, and of the label."""
        return torch.stack([F.logsigmoid(-scores), F.logsigmoid(scores)], dim=-1)

    def loss_of_logs(self, logs: Tensor, target: Tensor, balanced: bool = False) -> Tensor:
        entries = torch.stack([target == 0, target == 1], dim=-1).to(logs.dtype)  # 0, 0 for an unknown label
        if balanced:
            # Within each label, absence and presence have half of its known entries each.
            counts = entries.sum(0)
            entries = entries * (counts.sum(-1, keepdim=True) / counts.clamp(min=1) / (counts > 0).sum(-1, True))
        return -(entries * logs).sum() / entries.sum().clamp(min=1)

    def answers(self, scores: Tensor) -> Tensor:
        return scores.double().sigmoid()


class Number(NodeTarget):
    """A number: squared error of the standardised target."""

    name = "number"

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation = mean, deviation

    @property
    def scale(self) -> list[float]:
        return [self.mean, self.deviation]

    def encoded(self, y: Tensor) -> Tensor:
        return ((y.double() - self.mean) / self.deviation).float()

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.double() * self.deviation + self.mean

    def outputs(self, scores: Tensor) -> Tensor:
        return (scores - self.mean) / self.deviation

    def logs(self, scores: Tensor) -> Tensor:
        return scores

    def loss_of_logs(self, logs: Tensor, target: Tensor, balanced: bool = False) -> Tensor:  # noqa: ARG002
        return (logs.reshape(target.shape) - target).square().mean()

    def distance(self, passes: Sequence[Tensor], *_: Any) -> Tensor:
        """Squared distance of the values from their mean."""
        values = torch.stack(list(passes))
        return (values - values.detach().mean(0)).square().mean()

    def answers(self, scores: Tensor) -> Tensor:
        return self.scores(scores).reshape(-1)


def target_of(data: NodeData, scale: Sequence[float] | None = None) -> NodeTarget:
    """The target of a graph; a number is scaled by the training nodes, or by `scale`, mean and deviation."""
    if data.target == "classes":
        return Classes()
    if data.target == "labels":
        return SeveralLabels()
    if scale is None:
        values = data.y[data.train].double()
        deviation = float(values.std(correction=0)) if len(values) else 1.0
        scale = (float(values.mean()) if len(values) else 0.0, deviation if deviation > 0 else 1.0)
    return Number(*scale)


def consistency(passes: Sequence[Tensor], temperature: float | Tensor, confidence: float | Tensor = 0.0) -> Tensor:
    """Distance of stochastic passes from their sharpened mean (Feng et al. 2020, GRAND).

    Σ_s ‖p_s − p̄‖² / S with p̄ ∝ m^(1/T), m the mean of the p_s, which gets no gradient; averaged over the nodes where
    some class has at least `confidence` in m (Feng et al. 2022, GRAND+), 0 where there is no such node.

    Shapes: passes [N, C] or [N, L, 2] each, log-probabilities → [].

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
