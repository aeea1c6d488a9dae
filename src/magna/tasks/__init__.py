"""A task: what is predicted, from which batches, with which loss and metrics."""

from __future__ import annotations

from pathlib import Path

import torch

from magna.config import Config
from magna.datasets import load_node_data
from magna.tasks.node_classification import NodeClassification

__all__ = ["NodeClassification", "make_task"]


def make_task(config: Config, data_dir: str | Path | None, device: torch.device) -> NodeClassification:
    """Read the data that a config names and put the task on a device."""
    return NodeClassification(load_node_data(config.data, data_dir), config, device)
