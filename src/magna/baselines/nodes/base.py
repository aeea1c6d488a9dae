"""`NodeBaseline`: what the other systems of node classification have in common."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn

from magna.config.options import HUGE, Options, option
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn.attention import check_size, graph_at_door
from magna.nn.dropout import Dropout
from magna.nn.hub import Saved
from magna.nn.linear import Linear, fill_linear
from magna.nn.sparse import SparseRows
from magna.ops import checks
from magna.typing import Backend


@dataclass(frozen=True, kw_only=True)
class NodeBaselineOptions(Options):
    """Options of every :class:`NodeBaseline`."""

    hidden_channels: int = option(64, "Width of a hidden layer.", low=1, high=HUGE)
    num_layers: int = option(2, "Number of layers, the output layer included.", low=1, high=4096)
    input_dropout: float = option(
        0.0, "Dropout on the hidden states, before each further layer.", low=0, below=1, per_trial=True
    )
    backend: Backend = option("auto", "Kernels: auto takes the fastest for the device.")


class NodeBaseline(Saved):
    """Base of the baselines: sizes, options and dropout; a subclass makes its layers, then draws their values."""

    options: NodeBaselineOptions
    TAKES_EDGE_WEIGHT: ClassVar[bool] = False

    def __init__(self, in_channels: int, out_channels: int, options: NodeBaselineOptions) -> None:
        super().__init__()
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        for name, size in sizes.items():
            check_size(name, size)
        self.options, self.config = options, sizes | options.applied()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.widths = self.layer_widths()
        self.input_dropout = Dropout(options.input_dropout, backend=options.backend)

    def layer_widths(self) -> list[int]:
        """The width of the features, then that of each layer's output."""
        options = self.options
        return [self.in_channels] + [options.hidden_channels] * (options.num_layers - 1) + [self.out_channels]

    def linears(self, *, bias: bool = True) -> nn.ModuleList:
        """A linear layer from each of the `widths` to the next."""
        backend = self.options.backend
        return nn.ModuleList(Linear(width, out, bias, backend=backend) for width, out in pairwise(self.widths))

    def reset_parameters(self) -> None:
        """Draw Glorot's values for the linear layers, in their order; biases are zero."""
        for module in self.modules():
            if isinstance(module, Linear):
                fill_linear(module, "glorot")
            elif isinstance(module, nn.ParameterList):
                for bias in module:
                    nn.init.zeros_(bias)

    def graph(self, x: Tensor | SparseRows, edge_index: Tensor | Graph, edge_weight: Tensor | None = None) -> Graph:
        """The checked graph of an input; none of the baselines reads types of edges."""
        graph = graph_at_door(x, edge_index, None, self.in_channels, None)
        if edge_weight is not None:
            if not self.TAKES_EDGE_WEIGHT:
                raise ArgumentError("edge_weight", edge_weight, f"None: {type(self).__name__} does not read it")
            checks.edge_weight(edge_weight, graph, validate=edge_weight.device.type == "cpu")
        return graph
