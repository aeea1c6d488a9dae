"""The prediction of models that propagate features first: norm, dropout and a linear layer, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.nodes.base import NodeBaselineOptions
from magna.config.options import option
from magna.nn.dropout import Dropout
from magna.nn.norm import make_norm
from magna.typing import Norm


@dataclass(frozen=True, kw_only=True)
class MLPOptions(NodeBaselineOptions):
    """Options of :class:`MLP`."""

    embed_dropout: float = option(0.0, "Dropout on the propagated features.", low=0, below=1, per_trial=True)
    norm: Norm = option("none", "Norm of the input of each layer.")


class MLP(nn.Module):
    r"""Linear layers, each after a norm and dropout, with ReLU between them.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(\mathrm{dropout}(\mathrm{norm}(H^{(l)})) W + b\right)

    Args:
        layers: the linear layers.
        options: norm and rates of dropout, `embed_dropout` for the first layer and `input_dropout` for the others.
        row_norm: divide each row by its length before the norm.

    Shapes: [N, in_channels] → [N, out_channels].
    """

    def __init__(self, layers: nn.ModuleList, options: MLPOptions, *, row_norm: bool = False) -> None:
        super().__init__()
        self.layers, self.row_norm = layers, row_norm
        sizes: Sequence[Any] = [layer.in_features for layer in layers]
        self.norms = nn.ModuleList(make_norm(options.norm, size, backend=options.backend) for size in sizes)
        rates = [options.embed_dropout] + [options.input_dropout] * (len(sizes) - 1)
        self.dropouts = nn.ModuleList(Dropout(rate, backend=options.backend) for rate in rates)

    def forward(self, h: Tensor) -> Tensor:
        for number, (norm, dropout, layer) in enumerate(zip(self.norms, self.dropouts, self.layers, strict=True)):
            h = F.relu(h) if number > 0 else h
            h = F.normalize(h, dim=-1) if self.row_norm else h
            h = layer(dropout(norm(h)))
        return h
