"""Scaling of features as functions: by row, by column, TF-IDF, and principal components."""

from __future__ import annotations

import torch
from torch import Tensor

_EXACT = 1024  # columns up to which all components are computed
_EXTRA, _STEPS = 16, 6  # further directions, and steps of the iteration above that


def rows_normalised(x: Tensor) -> Tensor:
    """Each row divided by its sum; rows of zeros stay.

    >>> rows_normalised(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    total = x.sum(1, keepdim=True)
    return torch.where(total == 0, x, x / total)


def column_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each column, in float64; the latter is 0 for a constant column.

    Shapes: x [N, C] → [C], [C].
    """
    raw = x.double()
    deviation = raw.std(0, correction=0)
    return raw.mean(0), torch.where(deviation > 1e-12 * raw.abs().amax(0), 1 / deviation, 0.0)


def columns_scaled(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """(x - shift) · scale, computed in float64.

    >>> columns_scaled(torch.tensor([[3.0]]), torch.tensor([1.0]), torch.tensor([0.5])).tolist()
    [[1.0]]
    """
    return ((x.double() - shift) * scale).float()


def inverse_frequency(x: Tensor) -> Tensor:
    r"""Weight of each column, :math:`\ln \frac{1 + N}{1 + N_c} + 1`, N_c the rows in which it is not zero.

    Shapes: x [N, C] → [C], float64.

    >>> inverse_frequency(torch.tensor([[2.0, 0.0], [5.0, 0.0]])).tolist()
    [1.0, 2.09861228866811]
    """
    return ((1 + len(x)) / (1 + x.count_nonzero(0).double())).log() + 1


def principal_axes(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean of the rows, and the `count` directions of largest variance, each with a positive largest entry.

    Of more than 1,024 columns the directions come from a subspace iteration with a fixed start.

    Shapes: x [N, C] → [C], [C, count], float64.
    """
    mean = x.double().mean(0)
    centred = x.double() - mean
    if x.size(1) <= _EXACT:
        axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)
    else:
        width = min(count + _EXTRA, *x.shape)
        axes = torch.randn(x.size(1), width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for _ in range(_STEPS):
            axes = torch.linalg.qr(centred.T @ torch.linalg.qr(centred @ axes).Q).Q
        axes = axes @ torch.linalg.svd(centred @ axes, full_matrices=False).Vh.T
    axes = axes[:, :count]
    return mean, axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
