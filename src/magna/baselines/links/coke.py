"""CoKE (Wang et al. 2019): a Transformer that fills the gap in (head, relation, [MASK])."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.links.base import LinkBaseline
from magna.config.options import HUGE, Options, option
from magna.config.registry import link_model
from magna.errors import ArgumentError
from magna.nn.link_model import Product
from magna.ops import lookup


@dataclass(frozen=True, kw_only=True)
class CoKEOptions(Options):
    """Options of :class:`CoKE`."""

    channels: int = option(256, "Width of the embeddings and of the layers.", low=1, high=HUGE)
    num_blocks: int = option(6, "Number of Transformer layers.", low=1, high=4096)
    heads: int = option(4, "Attention heads of each layer.", low=1, high=4096)
    ffn_multiplier: int = option(2, "Inner width of the feed-forward networks over the layers'.", low=1, high=1024)
    dropout: float = option(
        0.1, "Dropout on the input, on the attention and on the output of each part.", low=0, below=1
    )

    def check(self) -> None:
        super().check()
        if self.channels % self.heads:
            raise ArgumentError("heads", self.heads, f"divisors of channels, {self.channels}")


@link_model("coke", CoKEOptions)
class CoKE(LinkBaseline):
    r"""A sequence of three tokens with a gap, whose state in the gap is compared with all entities.

    .. math:: z = \mathrm{Transformer}(e_h + p_1,\; w_r + p_2,\; m + p_3)_3, \quad
        s(h, r, t) = \mathrm{LayerNorm}(\mathrm{GELU}(W z + \beta)) \cdot e_t + b_t

    A head is asked for by the sequence ([MASK], relation, tail): the gap then has the first position.

    It takes every option of :class:`CoKEOptions`.

    >>> model = CoKE(5, 2, channels=8, num_blocks=1)
    >>> head, relation = torch.tensor([0]), torch.tensor([1])
    >>> model.scores(model.encode(), head, relation).shape
    torch.Size([1, 5])
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        self.options = CoKEOptions.from_flat(options)
        super().__init__(num_entities, num_relations, self.options)
        channels, inner = self.options.channels, self.options.ffn_multiplier * self.options.channels
        self.entity_table = nn.Parameter(torch.empty(num_entities, channels))
        self.relation_table = nn.Parameter(torch.empty(num_relations, channels))
        self.gap = nn.Parameter(torch.empty(channels))
        self.positions = nn.Parameter(torch.empty(3, channels))
        self.entity_bias = nn.Parameter(torch.empty(num_entities))
        self.input_norm, self.output_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.dropout = nn.Dropout(self.options.dropout)
        form: dict[str, Any] = {"dropout": self.options.dropout, "activation": "gelu", "batch_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(channels, self.options.heads, inner, **form)
            for _ in range(self.options.num_blocks)
        )
        self.output = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.zeros_(parameter)
        nn.init.normal_(self.gap, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)

    def product(self, states: Tensor, head: Tensor, relation: Tensor) -> Product:
        forward = (relation < self.num_relations)[:, None, None]
        rows = lookup(self.relation_table, relation % self.num_relations)
        tokens = torch.stack([lookup(states, head), rows, self.gap.expand_as(rows)], 1)  # [B, 3, C]
        z = self.dropout(self.input_norm(tokens + torch.where(forward, self.positions, self.positions.flip(0))))
        for block in self.blocks:
            z = block(z)
        return Product(self.output_norm(F.gelu(self.output(z[:, 2]))), states, self.entity_bias)

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        scores = self.product(states, head, relation).scores()
        return scores if tail is None else scores.gather(1, tail)
