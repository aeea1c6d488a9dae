"""`LGCN` (Gao et al. 2018, arXiv 1808.03965)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from magna.baselines.nodes.base import NodeBaseline, NodeBaselineOptions
from magna.baselines.nodes.propagation import once_per_graph, several_hops, symmetric_weights
from magna.config.options import HUGE, option
from magna.config.registry import node_model
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn.dropout import Dropout, draw_seed
from magna.nn.linear import Linear
from magna.nn.sparse import SparseRows


@dataclass(frozen=True, kw_only=True)
class LGCNOptions(NodeBaselineOptions):
    """Options of :class:`LGCN`."""

    hidden_channels: int = option(32, "Width of the graph embedding.", low=1, high=HUGE)
    num_layers: int = option(2, "Number of learnable graph convolutions.", low=1, high=4096)
    layer_channels: int = option(8, "Channels that each of them adds.", low=1, high=HUGE)
    top_k: int = option(8, "Values of the neighbours that are kept in each channel; an even number.", low=2, high=4096)
    activation: Literal["relu", "none"] = option("relu", "Function between the two convolutions of a layer.")
    embed_dropout: float = option(0.0, "Dropout on the features.", low=0, below=1, per_trial=True)
    input_dropout: float = option(0.0, "Dropout on the input of each further layer.", low=0, below=1, per_trial=True)
    edge_dropout: float = option(0.0, "Dropout on the edges of the graph embedding.", low=0, below=1)

    def check(self) -> None:
        if self.top_k % 2:
            raise ArgumentError("top_k", self.top_k, "even numbers")


class LearnableGraphConv(nn.Module):
    r"""Two 1-D convolutions over each node's features and, channel by channel, the k largest of its neighbours.

    .. math:: y_i = c_2\left(\phi\left(c_1\left(x_i \,\Vert\, \mathrm{top}_k \{x_j : j \in N_i\}\right)\right)\right)

    Each convolution is k / 2 + 1 wide, so that both lead from k + 1 places to one.

    Shapes: x [N, in_channels] → [N, out_channels].
    """

    def __init__(self, in_channels: int, out_channels: int, options: LGCNOptions) -> None:
        super().__init__()
        self.top_k, width, middle = options.top_k, options.top_k // 2 + 1, (in_channels + out_channels) // 2
        self.first = nn.Conv1d(in_channels, middle, width)
        self.act: nn.Module = nn.ReLU() if options.activation == "relu" else nn.Identity()
        self.second = nn.Conv1d(middle, out_channels, width)

    def reset_parameters(self) -> None:
        for conv in (self.first, self.second):
            assert conv.bias is not None
            nn.init.xavier_uniform_(conv.weight)
            nn.init.zeros_(conv.bias)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        places = torch.cat([x[:, None], largest_neighbours(x, graph, self.top_k)], dim=1)  # [N, k + 1, C]
        out: Tensor = self.second(self.act(self.first(places.transpose(1, 2)))).squeeze(2)
        return out


class Neighbours(NamedTuple):
    """Nodes of about the same in-degree, and their in-neighbours side by side."""

    nodes: Tensor  # [n]
    sources: Tensor  # [n, d]
    absent: Tensor  # [n, d, 1], True where a node has fewer than d


@once_per_graph
def grouped_neighbours(graph: Graph) -> tuple[Neighbours, ...]:
    """The in-neighbours of all nodes with any, loops left out, in groups whose widths are powers of two."""
    edges = graph.edge_index[:, graph.source != graph.target]
    graph = Graph.from_edge_index(edges, graph.num_nodes, validate=False)
    degree, first = graph.rowptr.long().diff(), graph.rowptr.long()[:-1]
    most, groups, width = int(degree.max()) if len(degree) else 0, [], 1
    while width < 2 * most:
        nodes = ((degree > width // 2) & (degree <= width)).nonzero().squeeze(1)
        if len(nodes):
            place = torch.arange(width, device=graph.device)
            absent = place >= degree[nodes, None]
            columns = torch.where(absent, 0, first[nodes, None] + place)
            groups.append(Neighbours(nodes, graph.col.long()[columns], absent[:, :, None]))
        width *= 2
    return tuple(groups)


def largest_neighbours(x: Tensor, graph: Graph, top_k: int) -> Tensor:
    """The `top_k` largest values of each channel among the other in-neighbours, the largest first, then zeros.

    Shapes: x [N, C] → [N, top_k, C].

    >>> graph = Graph.from_edge_index(torch.tensor([[1, 2, 0], [0, 0, 1]]), num_nodes=3)
    >>> largest_neighbours(torch.tensor([[5.0], [-2.0], [3.0]]), graph, 2).squeeze(2).tolist()
    [[3.0, -2.0], [5.0, 0.0], [0.0, 0.0]]
    """
    out = x.new_zeros(graph.num_nodes, top_k, x.size(1))
    for nodes, sources, absent in grouped_neighbours(graph):
        values = x.index_select(0, sources.flatten()).unflatten(0, sources.shape)
        values = values.masked_fill(absent, -torch.inf)  # [n, d, C]
        count = min(top_k, sources.size(1))
        best = values.topk(count, dim=1).values.masked_fill(absent[:, :count], 0)
        out = out.index_copy(0, nodes, nn.functional.pad(best, (0, 0, 0, top_k - count)))
    return out


@node_model("lgcn", LGCNOptions)
class LGCN(NodeBaseline):
    r"""Learnable graph convolutional network: an embedding by the graph, then layers that add channels to it.

    .. math:: H^{(0)} = D^{-1/2} A D^{-1/2} X W, \quad
              H^{(l+1)} = H^{(l)} \,\Vert\, \mathrm{LearnableGraphConv}(H^{(l)}), \quad
              \mathrm{out} = H^{(L)} W_{out} + b

    The embedding takes the graph as it is; in the convolutions a node is none of its neighbours.

    It takes every option of :class:`LGCNOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = LGCN(16, 3, hidden_channels=32, top_k=4)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: LGCNOptions

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        chosen = LGCNOptions.from_flat(options)
        super().__init__(in_channels, out_channels, chosen)
        self.embed_dropout = Dropout(chosen.embed_dropout, backend=chosen.backend)
        self.embedding = Linear(in_channels, chosen.hidden_channels, bias=False, backend=chosen.backend)
        added = chosen.layer_channels
        sizes = [chosen.hidden_channels + number * added for number in range(chosen.num_layers + 1)]
        self.layers = nn.ModuleList(LearnableGraphConv(size, added, chosen) for size in sizes[:-1])
        self.classifier = Linear(sizes[-1], out_channels, backend=chosen.backend)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for layer in self.layers:
            assert isinstance(layer, LearnableGraphConv)
            layer.reset_parameters()

    def forward(self, x: Tensor | SparseRows, edge_index: Tensor | Graph) -> Tensor:
        graph, options = self.graph(x, edge_index), self.options
        rate = options.edge_dropout if self.training else 0.0
        hops: dict[str, Any] = {"K": 1, "alpha": 0.0, "dropout": rate}
        hops["seed"] = draw_seed(x.device) if rate > 0 else None
        h = self.embedding(self.embed_dropout(x))
        h = several_hops(h, symmetric_weights(graph, h.dtype), graph, options.backend, **hops)
        for layer in self.layers:
            h = torch.cat([h, layer(self.input_dropout(h), graph)], dim=1)
        out: Tensor = self.classifier(self.input_dropout(h))
        return out
