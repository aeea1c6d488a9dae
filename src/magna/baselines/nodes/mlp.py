"""The prediction of models that propagate features first: norm, dropout and a linear layer, again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.nodes.base import NodeBaselineOptions
from magna.config.options import option
from magna.nn.dropout import Dropout
from magna.nn.norm import make_norm
from magna.nn.sparse import SparseRows, as_dense
from magna.typing import Norm


@dataclass(frozen=True, kw_only=True)
class MLPOptions(NodeBaselineOptions):
    """Options of :class:`MLP`."""

    embed_dropout: float = option(0.0, "Dropout on the propagated features.", low=0, below=1, per_trial=True)
    norm: Norm = option("none", "Norm of the input of each layer.")


class MLP(nn.Module):
    r"""Linear layers on propagated features, each after a norm and dropout, with ReLU between them.

    .. math:: H^{(0)} = P X, \quad
              H^{(l+1)} = \mathrm{ReLU}\left(\mathrm{dropout}(\mathrm{norm}(H^{(l)})) W + b\right)

    Where nothing stands between the propagation P and the first layer, P (X W) is computed, which is narrower.

    Args:
        layers: the linear layers, without bias.
        options: norm and rates of dropout, `embed_dropout` for the first layer and `input_dropout` for the others.
        row_norm: divide each row by its length before the norm.

    Shapes: [N, in_channels] → [N, out_channels].
    """

    def __init__(self, layers: nn.ModuleList, options: MLPOptions, *, row_norm: bool = False) -> None:
        super().__init__()
        self.layers, self.row_norm = layers, row_norm
        sizes: list[tuple[Any, Any]] = [(layer.in_features, layer.out_features) for layer in layers]
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(size)) for _, size in sizes)
        self.norms = nn.ModuleList(make_norm(options.norm, size, backend=options.backend) for size, _ in sizes)
        rates = [options.embed_dropout] + [options.input_dropout] * (len(sizes) - 1)
        self.dropouts = nn.ModuleList(Dropout(rate, backend=options.backend) for rate in rates)

    def forward(self, x: Tensor | SparseRows, propagate: Callable[[Tensor], Tensor]) -> Tensor:
        """The scores; `propagate` is P, a linear function of each column."""
        first = self.dropouts[0]
        assert isinstance(first, Dropout)
        if self.row_norm or first.drops or not isinstance(self.norms[0], nn.Identity):
            h = self._layer(0, propagate(as_dense(x)))
        else:
            h = propagate(self.layers[0](x)) + self.biases[0]
        for number in range(1, len(self.layers)):
            h = self._layer(number, F.relu(h))
        return h

    def _layer(self, number: int, h: Tensor) -> Tensor:
        h = F.normalize(h, dim=-1) if self.row_norm else h
        out: Tensor = self.layers[number](self.dropouts[number](self.norms[number](h))) + self.biases[number]
        return out
