"""`Stack`: graph convolutions one after the other, with norm, residual and feed-forward network between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from magna.baselines.nodes.base import NodeBaseline, NodeBaselineOptions
from magna.baselines.nodes.propagation import one_hop, symmetric_weights
from magna.config.layers import BlockOptions
from magna.config.options import Needs, option
from magna.graph import Graph
from magna.nn.block import FeedForward
from magna.nn.dropout import Dropout
from magna.nn.linear import Linear, fill_linear, fill_matrix
from magna.nn.norm import BatchNorm, LayerNorm, make_norm
from magna.nn.sparse import SparseRows
from magna.typing import Norm

_FEED_FORWARD = Needs("feed_forward", lambda options: options.feed_forward)


@dataclass(frozen=True, kw_only=True)
class StackOptions(NodeBaselineOptions):
    """Options of every :class:`Stack`."""

    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)
    norm: Norm = option(
        "none", "Norm before each activation; with feed_forward, before each network and each further layer."
    )
    residual: bool = option(
        False, "Add the input of each layer to its output, through a matrix where the widths differ."
    )
    feed_forward: bool = option(False, "Put MAGNA's feed-forward network (Eq. 7) in place of each activation.")
    ffn_multiplier: int = option(
        4, "Inner width of the feed-forward network over the layer's.", low=1, high=1024, needs=_FEED_FORWARD
    )
    ffn_dropout: float = option(
        0.0, "Dropout inside the feed-forward network.", low=0, below=1, per_trial=True, needs=_FEED_FORWARD
    )


class Stack(NodeBaseline):
    r"""Base of models whose layers are convolutions :math:`C_l` with activations between them.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(\mathrm{norm}\left(C_l(H^{(l)}) + b_l\right)\right)

    With `residual` and `feed_forward` a layer is that of MAGNA (Eqs. 6 and 7) around another convolution:

    .. math:: \hat H = C_l(\mathrm{norm}(H^{(l)})) + b_l + H^{(l)}, \quad
              H^{(l+1)} = W_2\,\mathrm{ReLU}(W_1\,\mathrm{norm}(\hat H)) + \hat H

    The first layer takes the features without a norm, and no activation follows the last layer. A subclass may have
    other layers, weights of edges and convolutions.
    """

    options: StackOptions
    ACTIVATION: ClassVar[type[nn.Module]] = nn.ReLU
    ENDS_HIDDEN: ClassVar[bool] = False  # an activation follows the last layer, too

    def __init__(self, in_channels: int, out_channels: int, options: StackOptions) -> None:
        super().__init__(in_channels, out_channels, options)
        backend = options.backend
        self.embed_dropout = Dropout(options.embed_dropout, backend=backend)
        self.layers = self.make_layers()
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in self.widths[1:])
        self.residuals = nn.ModuleList()
        if options.residual:
            self.residuals.extend(
                nn.Identity() if width == out else Linear(width, out, bias=False, backend=backend)
                for width, out in pairwise(self.widths)
            )
        hidden = self.widths[1:] if self.ENDS_HIDDEN else self.widths[1:-1]
        self.activations = nn.ModuleList(map(self._make_activation, hidden))
        norm = options.norm if options.feed_forward else "none"
        self.norms = nn.ModuleList(make_norm(norm, width, backend=backend) for width in hidden[: len(self.layers) - 1])

    @property
    def matrices(self) -> int:
        """Number of matrices in a layer."""
        return 1

    def make_layers(self) -> nn.ModuleList:
        """The matrices of each convolution, `matrices` below each other; the stack adds the biases."""
        backend, pairs = self.options.backend, pairwise(self.widths)
        return nn.ModuleList(Linear(width, self.matrices * out, bias=False, backend=backend) for width, out in pairs)

    def _make_activation(self, width: int) -> nn.Module:
        options = self.options
        if not options.feed_forward:
            return nn.Sequential(make_norm(options.norm, width, backend=options.backend), self.ACTIVATION())
        names = ("norm", "ffn_multiplier", "ffn_dropout", "backend")
        return FeedForward(width, BlockOptions(**{name: getattr(options, name) for name in names}))

    def reset_parameters(self) -> None:
        """Draw Glorot's values for each matrix of the layers, then :meth:`reset_parts`."""
        for layer in self.layers:
            assert isinstance(layer, Linear)
            for matrix in layer.weight.chunk(self.matrices):
                fill_matrix(matrix, "glorot")
        self.reset_parts()

    def reset_parts(self) -> None:
        """Draw Glorot's values for the matrices outside of the layers; norms and biases do nothing at the start."""
        layers = set(self.layers.modules())
        for module in self.modules():
            if module not in layers and isinstance(module, Linear):
                fill_linear(module, "glorot")
            elif isinstance(module, LayerNorm | BatchNorm):
                module.reset_parameters()
        for bias in self.biases:
            nn.init.zeros_(bias)

    def weights(self, graph: Graph, dtype: torch.dtype, edge_weight: Tensor | None = None) -> tuple[Graph, Any]:
        """The graph that the convolutions walk, and the weights [E, 1] of its edges."""
        return graph, symmetric_weights(graph, dtype, edge_weight)

    def convolve(self, layer: nn.Module, h: Tensor | SparseRows, graph: Graph, weight: Any) -> Tensor:
        """The output of a convolution without its bias; by default a hop after a product."""
        return one_hop(layer(h), weight, graph, self.options.backend)

    def states(
        self, x: Tensor | SparseRows, edge_index: Tensor | Graph, edge_weight: Tensor | None = None
    ) -> list[Tensor]:
        """The output of each layer, after its activation where it has one."""
        weighted = () if edge_weight is None else (edge_weight,)
        graph, weight = self.weights(self.graph(x, edge_index, *weighted), x.dtype, *weighted)
        h: Any = self.embed_dropout(x)
        states = []
        for number, (layer, bias) in enumerate(zip(self.layers, self.biases, strict=True)):
            taken = self.input_dropout(self.norms[number - 1](h)) if number > 0 else h
            out = self.convolve(layer, taken, graph, weight) + bias
            if len(self.residuals):
                out = out + self.residuals[number](h)
            h = self.activations[number](out) if number < len(self.activations) else out
            states.append(h)
        return states

    def forward(
        self, x: Tensor | SparseRows, edge_index: Tensor | Graph, *, edge_weight: Tensor | None = None
    ) -> Tensor:
        return self.states(x, edge_index, edge_weight)[-1]
