"""A task: what is predicted, from which batches, with which loss and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from magna.config.schema import Config
from magna.config.tables import NodeDataOptions
from magna.data import load_knowledge_graph, load_node_data
from magna.ops.backend.registry import why_not
from magna.tasks.base import Task
from magna.tasks.links import LinkPrediction
from magna.tasks.nodes import NodeClassification

__all__ = ["LinkPrediction", "NodeClassification", "Task", "make_task"]


def make_task(
    config: Config,
    data_dir: str | Path | None,
    device: torch.device,
    ranked: Sequence[str] = ("valid", "test"),
) -> Task:
    """Read the data that a config names and put the task on a device; `ranked` are the splits of a knowledge graph
    that will be.
    """
    backend = getattr(config.model, "backend", "auto")
    if backend != "auto" and (reason := why_not(backend, device)) is not None:
        raise ValueError(f"model.backend is {backend!r}, which cannot run here: {reason}; try model.backend=auto")
    if isinstance(config.data, NodeDataOptions):
        return NodeClassification(load_node_data(config.data, data_dir), config, device)
    return LinkPrediction(load_knowledge_graph(config.data, data_dir), device, config.data.control, ranked)
