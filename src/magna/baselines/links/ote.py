"""OTE (Tang et al. 2020): orthogonal transforms of groups of channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from magna.baselines.links.base import LinkBaseline, by_blocks
from magna.config.layers import NegativeSampling
from magna.config.options import HUGE, option
from magna.config.registry import link_model
from magna.errors import ArgumentError
from magna.ops import lookup


@dataclass(frozen=True, kw_only=True)
class OTEOptions(NegativeSampling):
    """Options of :class:`OTE`."""

    channels: int = option(64, "Width of the embeddings.", low=1, high=HUGE)
    group_channels: int = option(4, "Width of a group, whose channels a relation transforms together.", low=1, high=256)

    def check(self) -> None:
        super().check()
        if self.channels % self.group_channels:
            raise ArgumentError("group_channels", self.group_channels, f"divisors of channels, {self.channels}")


@link_model("ote", OTEOptions)
class OTE(LinkBaseline):
    r"""Relations as orthogonal matrices and scales, one of each for every group i of channels.

    .. math:: s(h, r, ?) = -\sum_i \left\lVert \operatorname{diag}(e^{\sigma_{ri}})\, \phi(M_{ri})\, e_h^{(i)} -
        e_t^{(i)} \right\rVert, \quad
        s(?, r, t) = -\sum_i \left\lVert \operatorname{diag}(e^{-\sigma_{ri}})\, \phi(M_{ri})^\top e_t^{(i)} -
        e_h^{(i)} \right\rVert

    φ makes the rows of a matrix orthonormal by the Gram-Schmidt process. A query is transformed and compared with all
    candidates, so tails and heads have distances of their own. The graph context of the paper is left out.

    It takes every option of :class:`OTEOptions`.

    >>> model = OTE(5, 2, channels=8)
    >>> head, relation = torch.tensor([0]), torch.tensor([1])
    >>> model.scores(model.encode(), head, relation).shape
    torch.Size([1, 5])
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        self.options = OTEOptions.from_flat(options)
        super().__init__(num_entities, num_relations, self.options)
        channels, width = self.options.channels, self.options.group_channels
        self.entity_table = nn.Parameter(torch.empty(num_entities, channels))
        self.matrices = nn.Parameter(torch.empty(num_relations, channels // width, width, width))
        self.log_scale = nn.Parameter(torch.empty(num_relations, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = (self.options.margin + 2) / self.options.channels
        nn.init.uniform_(self.entity_table, -bound, bound)
        nn.init.normal_(self.matrices)
        nn.init.zeros_(self.log_scale)

    def query(self, states: Tensor, head: Tensor, relation: Tensor) -> Tensor:
        """Heads after the transform of their relation, or of its inverse, in groups.

        Shapes: head [B], relation [B] → [B, groups, width].
        """
        kind, forward = relation % self.num_relations, (relation < self.num_relations)[:, None, None]
        width = self.options.group_channels
        point = lookup(states, head).unflatten(1, (-1, width))
        matrix = lookup(orthonormal_rows(self.matrices).flatten(1), kind).view(len(head), -1, width, width)
        scale = lookup(self.log_scale, kind).unflatten(1, (-1, width))
        turned = torch.einsum("bgij,bgj->bgi", torch.where(forward[..., None], matrix, matrix.mT), point)
        return turned * torch.where(forward, scale, -scale).exp()

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        query = self.query(states, head, relation)[:, None]

        def score(candidates: Tensor) -> Tensor:
            groups = candidates.unflatten(2, (-1, self.options.group_channels))
            distance: Tensor = torch.linalg.vector_norm(query - groups, dim=3).sum(2)
            return -distance

        if tail is None:
            return by_blocks(score, states, len(head))
        return score(lookup(states, tail.flatten()).view(*tail.shape, -1))


def orthonormal_rows(matrices: Tensor) -> Tensor:
    """Rows made orthogonal, each to those before it, and of length 1: the Gram-Schmidt process.

    Shapes: [..., d, d] → [..., d, d].
    """
    rows: list[Tensor] = []
    for row in matrices.unbind(-2):
        for earlier in rows:
            row = row - (row * earlier).sum(-1, keepdim=True) * earlier
        rows.append(nn.functional.normalize(row, dim=-1))
    return torch.stack(rows, -2)
