"""TransE (Bordes et al. 2013)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from magna.baselines.links.base import LinkBaseline
from magna.config.layers import NegativeSampling
from magna.config.options import option
from magna.config.registry import link_model
from magna.ops import lookup


@dataclass(frozen=True, kw_only=True)
class TransEOptions(NegativeSampling):
    """Options of :class:`TransE`."""

    channels: int = option(100, "Width of the embeddings.", low=1, high=1 << 24)
    distance: int = option(1, "p of the L_p distance, 1 or 2.", low=1, high=2)


@link_model("transe", TransEOptions)
class TransE(LinkBaseline):
    r"""Relations as translations between the embeddings of entities.

    .. math:: s(h, r, t) = -\lVert e_h + w_r - e_t \rVert_p

    The inverse of a relation has the opposite translation, so that a triple has one score from both ends. All
    embeddings start uniformly within (margin + 2) / channels, as in the code of Sun et al. (2019).

    It takes every option of :class:`TransEOptions`.

    >>> model = TransE(5, 2, channels=8)
    >>> head, relation = torch.tensor([0]), torch.tensor([1])
    >>> model.scores(model.encode(), head, relation).shape
    torch.Size([1, 5])
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        self.options = TransEOptions.from_flat(options)
        super().__init__(num_entities, num_relations, self.options)
        self.entity_table = nn.Parameter(torch.empty(num_entities, self.options.channels))
        self.relation_table = nn.Parameter(torch.empty(num_relations, self.options.channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = (self.options.margin + 2) / self.options.channels
        for table in (self.entity_table, self.relation_table):
            nn.init.uniform_(table, -bound, bound)

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        sign = torch.where(relation < self.num_relations, 1.0, -1.0)[:, None]
        query = lookup(states, head) + sign * lookup(self.relation_table, relation % self.num_relations)
        p = float(self.options.distance)
        if tail is None:
            return -torch.cdist(query, states, p, compute_mode="donot_use_mm_for_euclid_dist")
        candidates = lookup(states, tail.flatten()).view(*tail.shape, -1)  # [B, n, C]
        distances: Tensor = torch.linalg.vector_norm(query[:, None] - candidates, p, dim=-1)
        return -distances
