"""RotH (Chami et al. 2020): rotations in hyperbolic space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from magna.baselines.links.base import LinkBaseline, SampledOptions
from magna.config.options import HUGE, option
from magna.config.registry import link_model
from magna.errors import ArgumentError
from magna.ops import lookup

_EDGE = 1 - 1e-5  # largest norm of a point, in the unit ball
_TINY = 1e-15


@dataclass(frozen=True, kw_only=True)
class RotHOptions(SampledOptions):
    """Options of :class:`RotH`."""

    channels: int = option(64, "Width of the embeddings.", low=1, high=HUGE)
    embedding_std: float = option(1e-3, "Standard deviation of the embeddings at the start.", above=0)

    def check(self) -> None:
        super().check()
        if self.channels % 2:
            raise ArgumentError("channels", self.channels, "an even number, as rotations turn pairs of channels")


@link_model("roth", RotHOptions)
class RotH(LinkBaseline):
    r"""Relations as rotations and translations of the Poincaré ball, whose curvature is learnt for each relation.

    .. math:: s(h, r, t) = -d_{c_r}\left(\mathrm{Rot}(\theta_r)\, e_h^H \oplus_{c_r} w_r^H,\; e_t^H\right)^2 + b_h + b_t

    with :math:`x^H = \exp_0^{c_r}(x)` for embeddings in the tangent space at the origin, and the distance

    .. math:: d_c(x, y) = \tfrac{2}{\sqrt c} \operatorname{artanh}\left(\sqrt c\, \lVert -x \oplus_c y \rVert\right).

    The inverse of a relation has parameters of its own, and rotations start as the identity. Distances to all entities
    need one matrix product, as they depend only on the norms of x and y and on their inner product.

    It takes every option of :class:`RotHOptions`.

    >>> model = RotH(5, 2, channels=8)
    >>> head, relation = torch.tensor([0]), torch.tensor([1])
    >>> model.scores(model.encode(), head, relation).shape
    torch.Size([1, 5])
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        self.options = RotHOptions.from_flat(options)
        super().__init__(num_entities, num_relations, self.options)
        channels, rows = self.options.channels, 2 * num_relations
        self.entity_table = nn.Parameter(torch.empty(num_entities, channels))
        self.translation = nn.Parameter(torch.empty(rows, channels))
        self.angle = nn.Parameter(torch.empty(rows, channels // 2))
        self.curvature = nn.Parameter(torch.empty(rows, 1))  # before softplus
        self.head_bias = nn.Parameter(torch.empty(num_entities, 1))
        self.tail_bias = nn.Parameter(torch.empty(num_entities, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.entity_table, self.translation):
            nn.init.normal_(table, std=self.options.embedding_std)
        nn.init.zeros_(self.angle)
        nn.init.ones_(self.curvature)
        for bias in (self.head_bias, self.tail_bias):
            nn.init.zeros_(bias)

    def query(self, states: Tensor, head: Tensor, relation: Tensor, c: Tensor) -> Tensor:
        """Points [B, C] of the heads after rotation and translation, with curvatures c [B, 1]."""
        point, shift = lookup(states, head), lookup(self.translation, relation)
        point = point * _tangent_scale(torch.linalg.vector_norm(point, dim=1, keepdim=True), c)
        shift = shift * _tangent_scale(torch.linalg.vector_norm(shift, dim=1, keepdim=True), c)
        angle = lookup(self.angle, relation)
        cos, sin = angle.cos(), angle.sin()
        x, y = point.chunk(2, 1)
        return mobius_add(torch.cat([x * cos - y * sin, x * sin + y * cos], 1), shift, c)

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        c = softplus(lookup(self.curvature, relation))
        query = self.query(states, head, relation, c)
        if tail is None:
            norms, inner = torch.linalg.vector_norm(states, dim=1)[None], query @ states.T
            bias = self.tail_bias.T
        else:
            candidates = lookup(states, tail.flatten()).view(*tail.shape, -1)  # [B, n, C]
            norms, inner = torch.linalg.vector_norm(candidates, dim=2), (query[:, None] * candidates).sum(2)
            bias = lookup(self.tail_bias, tail.flatten()).view(tail.shape)
        scale = _tangent_scale(norms, c)
        squared = _squared_distance(query.square().sum(1, keepdim=True), (norms * scale).square(), inner * scale, c)
        return bias + lookup(self.head_bias, head) - squared


def mobius_add(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """X ⊕_c y, the sum of points of the Poincaré ball of curvature -c.

    Shapes: x [B, C], y [B, C], c [B, 1] → [B, C].
    """
    inner, xx, yy = (x * y).sum(1, keepdim=True), x.square().sum(1, keepdim=True), y.square().sum(1, keepdim=True)
    total = (1 + 2 * c * inner + c * yy) * x + (1 - c * xx) * y
    return total / (1 + 2 * c * inner + c.square() * xx * yy).clamp_min(_TINY)


def _tangent_scale(norm: Tensor, c: Tensor) -> Tensor:
    """Factor of exp_0^c on vectors of these norms; their images stay inside the ball."""
    length = (c.sqrt() * norm).clamp_min(_TINY)
    return length.tanh().clamp_max(_EDGE) / length


def _squared_distance(xx: Tensor, yy: Tensor, inner: Tensor, c: Tensor) -> Tensor:
    """d_c(x, y)² from the squared norms of x and y and their inner product.

    With sinh in place of tanh, as 1 - tanh² loses its digits at the edge of the ball.
    """
    apart = c * (xx + yy - 2 * inner).clamp_min(_TINY)
    ratio = apart / ((1 - c * xx).clamp_min(1 - _EDGE) * (1 - c * yy))
    return 4 / c * ratio.sqrt().asinh().square()
