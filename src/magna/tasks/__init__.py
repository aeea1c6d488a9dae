"""A task: what is predicted, from which batches, with which loss and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

from magna.config.schema import Config, DataConfig
from magna.data import load_knowledge_graph, load_node_data
from magna.ops.backend.registry import why_not
from magna.tasks.links import LinkPrediction
from magna.tasks.nodes import NodeClassification

__all__ = ["LinkPrediction", "NodeClassification", "Task", "make_task"]

Task = NodeClassification | LinkPrediction


def make_task(
    config: Config,
    data_dir: str | Path | None,
    device: torch.device,
    ranked: Sequence[str] = ("valid", "test"),
) -> Task:
    """Read the data that a config names and put the task on a device; `ranked` are the splits of a knowledge graph
    that will be.
    """
    links = config.task.name == "link_prediction"
    for field in fields(DataConfig):
        if field.name != "name" and (field.name == "control") != links:
            value = getattr(config.data, field.name)
            if value != field.default:
                raise ValueError(f"data.{field.name} is {value!r}; {config.task.name} has no such setting")
    if config.model.backend != "auto" and (reason := why_not(config.model.backend, device)) is not None:
        raise ValueError(
            f"model.backend is {config.model.backend!r}, which cannot run here: {reason}; try model.backend=auto"
        )
    if links:
        return LinkPrediction(load_knowledge_graph(config.data.name, data_dir), device, config.data.control, ranked)
    return NodeClassification(load_node_data(config.data, data_dir), config, device)
