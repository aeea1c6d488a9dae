"""Node classification on one graph, all nodes in one batch: batches, loss and metrics. No optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.config import Config, ModelConfig
from magna.datasets import NodeData
from magna.metrics import accuracy
from magna.nn import MAGNA


class NodeClassification:
    """Cross-entropy over the labelled nodes of the training split; the model always sees the whole graph.

    >>> from magna.datasets import load_digits
    >>> task = NodeClassification(load_digits(), Config(), torch.device("cpu"))
    >>> sorted(task.evaluate(task.make_model(ModelConfig(hidden_channels=8)), "valid"))
    ['accuracy', 'loss']
    """

    def __init__(self, data: NodeData, config: Config, device: torch.device):
        if data.x is None:
            raise ValueError(f"{data.name} has no features; allowed: a data set with features, such as cora")
        for split in ("train", "valid", "test"):
            if data.split(split).numel() == 0:
                raise ValueError(f"{data.name} has no {split} node; allowed: at least one in each split")
        if config.data.normalise_features:
            data = data.with_row_normalised_features()
        if config.data.self_loops:
            data = data.with_self_loops()
        assert data.x is not None
        self.dataset = data.name
        self.num_nodes, self.num_edges = data.num_nodes, data.edge_index.size(1)
        self.in_channels, self.num_classes = data.x.size(1), data.num_classes
        # The same tensors are handed to the model every time, so their sorted `Graph` is built only once.
        self._x, self._edge_index, self._y = (part.to(device) for part in (data.x, data.edge_index, data.y))
        self._nodes = {name: data.split(name).to(device) for name in ("train", "valid", "test")}

    def make_model(self, config: ModelConfig) -> MAGNA:
        """A fresh model of the right width for this data."""
        return MAGNA(self.in_channels, out_channels=self.num_classes, **asdict(config))

    def batches(self) -> Iterator[Tensor]:
        """The training nodes, all at once."""
        yield self._nodes["train"]

    def loss(self, model: nn.Module, nodes: Tensor) -> Tensor:
        """Cross-entropy of a batch of training nodes."""
        logits = model(self._x, self._edge_index)
        return F.cross_entropy(logits[nodes], self._y[nodes])

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Accuracy and loss on `train`, `valid` or `test`."""
        model.eval()
        nodes = self._nodes[split]
        logits = model(self._x, self._edge_index)[nodes]
        target = self._y[nodes]
        return {"accuracy": accuracy(logits, target), "loss": float(F.cross_entropy(logits, target))}

    @staticmethod
    def score(metrics: dict[str, float]) -> tuple[float, float]:
        """What selection compares, larger is better: accuracy, and the loss where accuracies are equal."""
        return metrics["accuracy"], -metrics["loss"]
