"""SACN (Shang et al. 2019): weighted graph convolutions, and Conv-TransE as the decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.links.base import EncodedBaseline, EncodedOptions
from magna.config.options import option
from magna.config.registry import decoder, link_model
from magna.graph import Graph
from magna.nn.decoder import Decoder
from magna.nn.dropout import Dropout
from magna.ops import attention_diffusion


@dataclass(frozen=True, kw_only=True)
class SACNOptions(EncodedOptions):
    """Options of :class:`SACN`."""

    decoder: ClassVar[str] = "conv-transe"
    dropout: float = option(0.0, "Dropout on the output of each layer.", low=0, below=1)


class WGCNEncoder(nn.Module):
    r"""Graph convolutions whose edges have a learnt weight for each relation.

    .. math:: H' = \tanh\left(\mathrm{BatchNorm}\left(\left(\textstyle\sum_t \alpha_t A_t + I\right) H W\right)\right)

    A_t has the edges of relation t in both directions. α and W differ from layer to layer.

    Shapes: x [N, C] → [N, C].
    """

    def __init__(self, num_relations: int, options: SACNOptions) -> None:
        super().__init__()
        channels, layers = options.channels, options.num_layers
        self.num_relations = num_relations
        self.alpha = nn.Parameter(torch.empty(layers, num_relations))
        self.linears = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(channels) for _ in range(layers))
        self.dropout = Dropout(options.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.alpha)
        for layer in (*self.linears, *self.norms):
            layer.reset_parameters()

    def forward(self, x: Tensor, graph: Graph, edge_mask: Tensor | None) -> Tensor:
        assert graph.edge_type is not None
        loop = graph.edge_type == 2 * self.num_relations
        for alpha, linear, norm in zip(self.alpha, self.linears, self.norms, strict=True):
            weights = torch.where(loop, 1.0, alpha[graph.edge_type % self.num_relations])
            if edge_mask is not None:
                weights = weights * edge_mask
            spread = attention_diffusion(linear(x)[:, None], weights[:, None], graph, K=1, alpha=0.0)
            x = self.dropout(norm(spread.squeeze(1)).tanh())
        return x


@decoder("conv-transe")
class ConvTransE(Decoder):
    r"""ReLU(W vec([h; r] ∗ ω)) · t + b_t (Shang et al. 2019): filters ω that slide over head and relation together.

    The filters are 2 × 5, and their maps are as wide as the states, so that each number of a map belongs to a channel
    of head and relation. Batch norms follow the input, the filters and W, before the ReLU.
    """

    FILTERS, WIDTH = 100, 5
    LEAST_BATCH = 2  # one query alone has no variance
    GUESSES = False

    def __init__(self, channels: int, relation_channels: int, num_entities: int, **options: Any) -> None:
        super().__init__(channels, relation_channels, num_entities, **options | {"entity_bias": True})
        self.filters = nn.Conv1d(2, self.FILTERS, self.WIDTH, padding=self.WIDTH // 2)
        self.out = nn.Linear(self.FILTERS * channels, channels)
        self.pair_norm, self.map_norm, self.out_norm = map(nn.BatchNorm1d, (2, self.FILTERS, channels))

    @classmethod
    def start_std(cls, channels: int) -> float:  # noqa: ARG003 (others depend on it)
        """Standard deviation of the head, as both are rows of one input."""
        return 1.0

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # The input of every norm has a deviation of 1, so that scores are the same before a norm has seen any batch.
        nn.init.normal_(self.filters.weight, std=1 / math.sqrt(2 * self.WIDTH))
        nn.init.normal_(self.out.weight, std=math.sqrt(2 / self.out.in_features))
        for layer in (self.filters, self.out):
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        for norm in (self.pair_norm, self.map_norm, self.out_norm):
            norm.reset_parameters()
        # ReLU leaves half of the squares.
        nn.init.constant_(self.out_norm.weight, math.sqrt(2 / self.channels))

    def join(self, head: Tensor, relation: Tensor) -> Tensor:
        maps = self.map_norm(self.filters(self.pair_norm(torch.stack([head, relation], 1))))
        out = self.dropout(self.out(self.dropout(F.relu(maps)).flatten(1)))
        return F.relu(self.out_norm(out))


@link_model("sacn", SACNOptions)
class SACN(EncodedBaseline):
    r"""Weighted graph convolutions, whose states Conv-TransE scores.

    .. math:: S = \mathrm{WGCN}(E, G), \quad s(h, r, t) = \mathrm{ReLU}(W\, \mathrm{vec}([S_h; w_r] * \omega)) \cdot S_t

    The encoder is :class:`WGCNEncoder`, the decoder :class:`ConvTransE`. A norm over all entities needs the whole
    graph in each step.

    It takes every option of :class:`SACNOptions`.

    >>> model = SACN(3, 1, channels=4, num_layers=1).eval()
    >>> edges, types = torch.tensor([[0, 1, 0, 1, 2], [1, 0, 0, 1, 2]]), torch.tensor([0, 1, 2, 2, 2])
    >>> model(edges, types, torch.tensor([0]), torch.tensor([0])).shape
    torch.Size([1, 3])
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        chosen = SACNOptions.from_flat(options)
        super().__init__(num_entities, num_relations, chosen, WGCNEncoder(num_relations, chosen))
