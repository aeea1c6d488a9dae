"""The schedule of a training: learning rate, clipping, patience and the choice of the best epoch.

The same code serves a run alone, with a row for each member of an ensemble, and many runs in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.config.tables import TrainOptions
from magna.errors import Diverged


class Schedule:
    """Learning rates and bounds on the gradient of S rows that train side by side.

    >>> schedule = Schedule([TrainOptions(lr=1.0, min_lr=0.0, epochs=10, clip=2.0)])
    >>> schedule.rates(0).tolist(), schedule.rates(5).tolist()
    ([1.0], [0.5])
    >>> schedule.factors(torch.tensor([8.0]))
    tensor([0.2500])
    """

    def __init__(self, train: Sequence[TrainOptions], device: torch.device | str = "cpu") -> None:
        self._train = train[0]
        self._start, self._end = (
            torch.tensor([getattr(each, name) for each in train], dtype=torch.float64) for name in ("lr", "min_lr")
        )
        self._limit = torch.tensor([each.clip for each in train], dtype=torch.float32, device=device)
        self._current = torch.zeros(len(train), device=device)  # rates on a GPU, where a captured step reads them
        self._on_gpu = self._current.is_cuda

    def adam(self, groups: Sequence[dict[str, Any]]) -> torch.optim.Adam:
        """Adam in one fused pass over the weights; `row` of a group says which of the rates it has."""
        train = self._train
        adam = torch.optim.Adam(
            groups,
            betas=(train.beta1, train.beta2),
            weight_decay=train.weight_decay,
            capturable=self._on_gpu,
            fused=True,
        )
        self.link(adam)
        return adam

    def link(self, adam: torch.optim.Adam) -> None:
        """Let the optimiser read the rates of this schedule; loading a state replaces them by copies."""
        if self._on_gpu:
            for group in adam.param_groups:
                group["lr"] = self._current[group["row"]]

    def set_rates(self, adam: torch.optim.Adam, epoch: float) -> None:
        """Set the learning rate of each group to that after some epochs."""
        rates = self.rates(epoch)
        if self._on_gpu:
            self._current.copy_(rates, non_blocking=True)
            return
        for group in adam.param_groups:
            group["lr"] = float(rates[group["row"]])

    def rates(self, epoch: float) -> Tensor:
        """Learning rates after some epochs: from `lr` down to `min_lr` along half a cosine.

        Shapes: → [S], float64 on the CPU.
        """
        share = (1 + math.cos(math.pi * epoch / self._train.epochs)) / 2
        return self._end + (self._start - self._end) * share

    def factors(self, norms: Tensor) -> Tensor:
        """Factors that bring gradients down to a norm of `clip`; 1 where `clip` is 0.

        Shapes: norms [S] → [S].
        """
        factors = ((norms + 1e-6).reciprocal() * self._limit).clamp(max=1)
        return torch.where(self._limit > 0, factors, 1.0)


class BestEpochs:
    """The best epochs of S rows by validation; a row that is out of patience keeps its best epoch.

    >>> best = BestEpochs([TrainOptions(patience=1)])
    >>> [best.update(torch.tensor([[score, 0.0]]), epoch).tolist() for epoch, score in enumerate((0.5, 0.4, 0.3, 0.9))]
    [[True], [False], [False], [False]]
    >>> best.epoch.tolist(), best.trained(4).tolist()
    ([0], [2])
    """

    def __init__(self, train: Sequence[TrainOptions], device: torch.device | str = "cpu") -> None:
        self._patience = torch.tensor([each.patience for each in train], device=device)
        self.epoch = torch.full((len(train),), -1, device=device)  # [S]; -1: never validated
        self.score = torch.full((len(train), 2), -math.inf, dtype=torch.float64, device=device)  # [S, 2]

    def update(self, score: Tensor, epoch: int | Tensor) -> Tensor:
        """Take the scores of an epoch; True for each row that is better than ever. Nothing waits for the device.

        Shapes: score [S, 2], larger is better, the second decides between equal first ones → [S].
        """
        (first, second), (best, best_second) = score.unbind(1), self.score.unbind(1)
        better = (first > best) | ((first == best) & (second > best_second))
        better &= self.patient(epoch)
        self.score.copy_(torch.where(better[:, None], score, self.score))
        self.epoch.copy_(torch.where(better, epoch, self.epoch))
        return better

    def patient(self, epoch: int | Tensor) -> Tensor:
        """True for each row whose best epoch is at most `patience` epochs before this one, [S]."""
        return epoch - self.epoch <= self._patience

    def trained(self, epochs: int) -> Tensor:
        """Epochs until patience ended each row, `epochs` at most, [S]."""
        return (self.epoch + self._patience + 1).clamp(max=epochs)

    def rows(self, index: Tensor) -> BestEpochs:
        """Some of the rows, alone."""
        rows = object.__new__(BestEpochs)
        rows._patience, rows.epoch, rows.score = (x[index] for x in (self._patience, self.epoch, self.score))
        return rows


def check_loss(loss: float, epoch: int) -> None:
    """Raise `Diverged` for a loss that is not finite."""
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss} after epoch {epoch}; try a smaller train.lr")
