"""A task as training, search and predictions see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard

from torch import Tensor, device

from magna.config.registry import ModelSettings
from magna.config.schema import Config
from magna.nn.scaling import FeatureScaling


class Objective(Protocol):
    """The loss of a model, batch by batch."""

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""

    def batches(self, epoch: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
        """The batches of an epoch."""

    def loss(self, model: Any, batch: Tensor, epoch: int | Tensor = 0) -> Tensor:
        """The loss of a batch."""


class Task(Protocol):
    """Data on a device, with what is predicted on it, the loss of a model, and its metrics."""

    metric: str  # that models are judged by
    SHARES_BATCH: bool  # trials can train in one batch: it is a `BatchTask`
    scaling: FeatureScaling | None  # from raw features to those of the models
    dataset: str
    device: device
    num_nodes: int
    num_edges: int

    @property
    def size(self) -> str:
        """Size of the data in words."""

    @property
    def data_bytes(self) -> int:
        """Size of the data on the device."""

    @property
    def schema(self) -> dict[str, Any]:
        """Names in the data and fingerprints of it, for the run folder."""

    def notes(self, config: Config) -> tuple[str, ...]:
        """Notes on the data and on settings, for the user."""

    def make_model(self, settings: ModelSettings, **parts: Any) -> Any:
        """A fresh model of the right size for the data; `parts` are further arguments of its class."""

    def objective(self, settings: Any, model: Any) -> Objective:
        """The training of a model; settings that it cannot serve are refused."""

    def can_score(self, split: str) -> bool:
        """True if there is something in a split to score."""

    def evaluate(self, model: Any, split: str, calibration: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Metrics on a split, first the one that models are judged by; with a calibration all that it defines."""

    def report(self, model: Any, split: str, calibration: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The metrics on a split and their parts, for a finished run; `calibration` is from `calibrate`."""

    def score(self, metrics: dict[str, float]) -> tuple[float, float]:
        """The values that selection compares, larger is better."""

    def calibrate(self, model: Any) -> dict[str, Any]:
        """Values that fit the probabilities to validation, after training; `temperature` is NaN for scores of NaN."""


class BatchTask(Task, Protocol):
    """A task whose trials can train in one batch, under `torch.vmap`."""

    data_config: Any
    settings: Any  # the table [task]
    in_channels: int

    def nodes(self, split: str, seed: int | None = None) -> Tensor:
        """The nodes of a split; with a seed, of that random split."""

    def scores(self, model: Any) -> Tensor:
        """The scores of a model for all nodes."""

    def averaged(self, scores: Tensor) -> Tensor:
        """The scores of an ensemble by those of its members."""

    def measure(self, scores: Tensor, nodes: Tensor) -> dict[str, Tensor]:
        """Metrics on some nodes by the scores of all."""

    def loss(self, model: Any, nodes: Tensor, epoch: int | Tensor = 0, settings: Any = None) -> Tensor:
        """The loss of some training nodes."""


def can_share_batch(task: Task) -> TypeGuard[BatchTask]:
    """True for a task whose trials can train in one batch."""
    return task.SHARES_BATCH
