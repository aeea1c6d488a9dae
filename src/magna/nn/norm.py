"""Norms: layer norm, the authors' layer norm, batch norm, or none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from magna import ops
from magna.errors import ArgumentError
from magna.typing import Backend, Norm


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` over the channels, whose output has the type of its input under autocast, too.

    Torch's would be float32, which the next matrix product rounds again; on a large graph these copies cost more than
    the norm. Means and deviations are float32 either way.
    """

    UNBIASED = False

    def __init__(self, channels: int, eps: float = 1e-5, *, backend: Backend = "auto") -> None:
        super().__init__(channels, eps)
        self.backend = backend

    def forward(self, x: Tensor) -> Tensor:
        return self.added(x, None)[1]

    def added(self, x: Tensor, added: Tensor | None, **dropouts: Any) -> tuple[Tensor, Tensor]:
        """The sum x + added and its norm; `dropouts` are those of `ops.add_norm`, on x and on the norm."""
        dropouts |= {"unbiased": self.UNBIASED, "backend": self.backend, "validate": False}
        return ops.add_norm(x, added, self.weight, self.bias, self.eps, **dropouts)


class UnbiasedLayerNorm(LayerNorm):
    r"""The authors' layer norm: the unbiased standard deviation, with eps added outside the root.

    .. math:: y = w \frac{x - \bar x}{\mathrm{std}(x) + \epsilon} + b, \quad
              \mathrm{std}(x)^2 = \tfrac{1}{C - 1} \textstyle\sum_c (x_c - \bar x)^2

    `torch.nn.LayerNorm` adds eps to the variance. On row-normalised bags of words, whose variance is about 1e-5, its
    eps of 1e-5 shrinks the result by a tenth to a third; this one does not.

    Args:
        channels: width of a row, 2 or more.
        eps: added to the standard deviation.

    Shapes: [..., C] → [..., C].

    >>> UnbiasedLayerNorm(2)(torch.tensor([[0.0, 2.0]])).detach().round(decimals=3).tolist()
    [[-0.7070000171661377, 0.7070000171661377]]
    """

    UNBIASED = True

    def __init__(self, channels: int, eps: float = 1e-6, *, backend: Backend = "auto") -> None:
        if channels < 2:
            raise ArgumentError("channels", channels, "2 or more with norm 'unbiased'")
        super().__init__(channels, eps, backend=backend)


class BatchNorm(nn.Module):
    r"""Each channel with mean 0 and variance 1 over all rows, then a learnt gain and shift.

    .. math:: y_{ic} = w_c \frac{x_{ic} - \bar x_c}{\sqrt{\mathrm{var}(x_c) + \epsilon}} + b_c

    The rows are all nodes of a graph. Training and evaluation both use its mean and variance, so there are no running
    statistics, and each graph is normed by itself. Unlike in a layer norm, a large channel does not hide small ones.

    Args:
        channels: width of a row.
        eps: added to the variance.

    Shapes: [N, C] → [N, C].

    >>> BatchNorm(1, eps=0.0)(torch.tensor([[1.0], [3.0]])).tolist()
    [[-1.0], [1.0]]
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        # Sums over many rows are float32; the output has the input's type, as in a layer norm.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(0)
        variance = centred.square().mean(0)  # `torch.var` of an outer axis takes a CPU four times as long
        return (centred * (self.weight * (variance + self.eps).rsqrt()) + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}"


NormLayer = LayerNorm | BatchNorm | nn.Identity


def make_norm(norm: Norm, channels: int, eps: float | None = None, backend: Backend = "auto") -> NormLayer:
    """A norm by its name; if eps is None, with its default (1e-6 in "unbiased", else 1e-5)."""
    if norm == "none":
        return nn.Identity()
    options: dict[str, Any] = {} if eps is None else {"eps": eps}
    if norm == "batch":
        return BatchNorm(channels, **options)
    return (LayerNorm if norm == "layer" else UnbiasedLayerNorm)(channels, **options, backend=backend)


def reset_norm(norm: NormLayer) -> None:
    """Set gain 1 and shift 0; the norm "none" has neither."""
    if not isinstance(norm, nn.Identity):
        norm.reset_parameters()
