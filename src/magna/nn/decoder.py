"""Decoders: the score of (head, relation, tail) as a product of a query with a row for each candidate, plus a bias.

A new decoder is one class under a name, here or in any module that is imported::

    @decoder("mine")
    class Mine(Decoder):
        def join(self, head: Tensor, relation: Tensor) -> Tensor: ...
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from magna.config.registry import decoder
from magna.errors import ArgumentError
from magna.nn.dropout import Dropout
from magna.nn.linear import fill_linear
from magna.typing import Backend, Init

_BLOCK = 2**24  # products that TuckER stores at a time to guess relations


class Decoder(nn.Module):
    r"""Base of the decoders: from states of entities and rows of relations to products.

    .. math:: s(h, r, t) = \mathrm{query}(h, r) \cdot t + \mathrm{bias}(t)

    If relations are narrower or wider than the states, `relation` multiplies them by a matrix without bias first, once
    for all rows of their table; the other methods take its result.

    `reset_parameters`, which the owner of a decoder calls, starts scores with a standard deviation of about 1 for
    states of deviation 1: the loss over N candidates starts near log N at all widths. `init="official"` takes the
    values of the authors' code instead.

    Args:
        channels: width of the states.
        relation_channels: width of a relation's row, whose standard deviation at the start is `relation_std`.
        num_entities: number of candidates.
        dropout: on the state of the head and on the relation.
        entity_bias: learn a number for each candidate that is added to its scores.

    Shapes: head [B, channels], relation [B, C_r] → query [B, channels], with relation_channels of TuckER and channels
    of the others for C_r.
    """

    PROJECTS = True  # a matrix maps relations to the width of the states
    TERMS = 1  # products that are summed for each channel of a score
    LEAST_BATCH = 1  # queries of a training step
    GUESSES = True  # the score is a product with the relation, so that all relations of a pair can be scored

    def __init__(
        self,
        channels: int,
        relation_channels: int,
        num_entities: int,
        *,
        relation_std: float = 1.0,
        dropout: float = 0.0,
        entity_bias: bool = False,
        init: Init = "glorot",
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.channels, self.relation_channels, self.relation_std = channels, relation_channels, relation_std
        self.init: Init = init
        self.dropout = Dropout(dropout, name="decoder_dropout", backend=backend)
        differs = relation_channels != channels
        self.project = nn.Linear(relation_channels, channels, bias=False) if self.PROJECTS and differs else None
        self.entity_bias = nn.Parameter(torch.empty(num_entities)) if entity_bias else None

    def reset_parameters(self) -> None:
        if self.entity_bias is not None:
            nn.init.zeros_(self.entity_bias)
        if self.project is None:
            return
        if self.init == "official":
            fill_linear(self.project, self.init, math.sqrt(2))
        else:
            std = self.start_std(self.channels) / (self.relation_std * math.sqrt(self.relation_channels))
            nn.init.normal_(self.project.weight, std=std)

    @classmethod
    def start_std(cls, channels: int) -> float:
        """Standard deviation of a relation in the product with which scores have one of 1."""
        return 1 / math.sqrt(cls.TERMS * channels)

    def relation(self, relation: Tensor) -> Tensor:
        """Rows of relations [..., relation_channels] at the width that the product takes."""
        return relation if self.project is None else self.project(relation)

    def query(self, head: Tensor, relation: Tensor) -> Tensor:
        """The vector that is multiplied with every candidate, after dropout."""
        return self.join(self.dropout(head), self.dropout(relation))

    def join(self, head: Tensor, relation: Tensor) -> Tensor:
        """The query of a head and a relation."""
        raise NotImplementedError

    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        """Scores [B, R] of pairs of head and tail with all relations, without the bias."""
        return self.pair(head, tail) @ relations.T

    def pair(self, head: Tensor, tail: Tensor) -> Tensor:
        """The vector whose product with the relation is the score of a pair; for decoders with `GUESSES`."""
        raise NotImplementedError

    @staticmethod
    def magnitude(factor: Tensor) -> Tensor:
        """Size of each entry of a factor, for its nuclear 3-norm."""
        return factor.abs()


@decoder("distmult")
class DistMult(Decoder):
    """Σ_c h_c r_c t_c (Yang et al. 2015): the paper's decoder.

    >>> decoder = DistMult(2, 2, num_entities=5)
    >>> decoder.query(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).tolist()
    [[3.0, 8.0]]
    """

    def join(self, head: Tensor, relation: Tensor) -> Tensor:
        return head * relation

    def pair(self, head: Tensor, tail: Tensor) -> Tensor:
        return head * tail


@decoder("complex")
class ComplEx(Decoder):
    """Re Σ_c h_c r_c conj(t_c) (Trouillon et al. 2016), the first half of a row its real part, the second imaginary.

    Unlike DistMult it gives (h, r, t) and (t, r, h) different scores.
    """

    TERMS = 2

    def __init__(self, channels: int, relation_channels: int, num_entities: int, **options: Any) -> None:
        if channels % 2:
            raise ArgumentError("channels", channels, "an even number with decoder 'complex'")
        super().__init__(channels, relation_channels, num_entities, **options)

    def join(self, head: Tensor, relation: Tensor) -> Tensor:
        real, imaginary = head.chunk(2, -1)
        r_real, r_imaginary = relation.chunk(2, -1)
        # The product with conj(t) has (real, imaginary) · (t_real, t_imaginary) as its real part.
        return torch.cat([real * r_real - imaginary * r_imaginary, real * r_imaginary + imaginary * r_real], -1)

    def pair(self, head: Tensor, tail: Tensor) -> Tensor:
        real, imaginary = head.chunk(2, -1)
        t_real, t_imaginary = tail.chunk(2, -1)
        return torch.cat([real * t_real + imaginary * t_imaginary, real * t_imaginary - imaginary * t_real], -1)

    @staticmethod
    def magnitude(factor: Tensor) -> Tensor:
        real, imaginary = factor.chunk(2, -1)
        # The gradient of a root ends at zero.
        return (real.square() + imaginary.square() + 1e-12).sqrt()


@decoder("tucker")
class TuckER(Decoder):
    """Σ_kij r_k h_i t_j W_kij (Balazevic et al. 2019), with the core W [relation_channels, channels, channels].

    Of B queries it stores B * relation_channels * channels products; to guess relations it stores none of them.
    """

    PROJECTS = False

    def __init__(self, channels: int, relation_channels: int, num_entities: int, **options: Any) -> None:
        super().__init__(channels, relation_channels, num_entities, **options)
        self.core = nn.Parameter(torch.empty(relation_channels, channels, channels))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        size = self.relation_channels * self.channels
        nn.init.normal_(self.core, std=1 / (self.relation_std * math.sqrt(size * self.channels)))

    def join(self, head: Tensor, relation: Tensor) -> Tensor:
        pairs = relation.unsqueeze(2) * head.unsqueeze(1)  # [B, relation_channels, C]
        return pairs.flatten(1) @ self.core.flatten(0, 1)

    def pair(self, head: Tensor, tail: Tensor) -> Tensor:
        def block(core: Tensor, head: Tensor, tail: Tensor) -> Tensor:
            return ((head @ core) * tail).sum(-1)  # [rows, B, C] → [rows, B]

        # A few rows of the core at a time, computed again in the backward pass, so that no product is stored.
        rows = torch.split(self.core, max(1, _BLOCK // max(1, head.numel())))
        parts = [checkpoint(block, part, head, tail, use_reentrant=False, preserve_rng_state=False) for part in rows]
        return torch.cat(parts).T


@decoder("conve")
class ConvE(Decoder):
    """ReLU(W ReLU([h; r] ∗ ω)) · t + b_t (Dettmers et al. 2018): 3 × 3 filters ω over head and relation as images.

    The images are as near to squares as the width allows, the head's above the relation's. Batch norms follow the
    images, the filters and W, before the ReLU; dropout also falls on whole maps of the filters and on the output of W.
    """

    FILTERS, SIDE = 32, 3
    LEAST_BATCH = 2  # one query alone has no variance
    GUESSES = False

    def __init__(self, channels: int, relation_channels: int, num_entities: int, **options: Any) -> None:
        super().__init__(channels, relation_channels, num_entities, **options | {"entity_bias": True})
        self.height = max(side for side in range(1, math.isqrt(channels) + 1) if channels % side == 0)
        height, width = 2 * self.height - self.SIDE + 1, channels // self.height - self.SIDE + 1
        if height < 1 or width < 1:
            allowed = "images of at least 2 × 3 with decoder 'conve', such as 64 channels"
            raise ArgumentError("channels", channels, allowed)
        self.filters = nn.Conv2d(1, self.FILTERS, self.SIDE)
        self.out = nn.Linear(self.FILTERS * height * width, channels)
        self.image_norm, self.map_norm = nn.BatchNorm2d(1), nn.BatchNorm2d(self.FILTERS)
        self.out_norm = nn.BatchNorm1d(channels)
        self.map_dropout = Dropout(options.get("dropout", 0.0), rows=True, backend=self.dropout.backend)

    @classmethod
    def start_std(cls, channels: int) -> float:  # noqa: ARG003 (others depend on it)
        """Standard deviation of the head, as both are parts of one image."""
        return 1.0

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # The input of every norm has a deviation of 1, so that scores are the same before a norm has seen any batch.
        nn.init.normal_(self.filters.weight, std=1 / self.SIDE)
        nn.init.normal_(self.out.weight, std=math.sqrt(2 / self.out.in_features))
        for layer in (self.filters, self.out):
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        for norm in (self.image_norm, self.map_norm, self.out_norm):
            norm.reset_parameters()
        # ReLU leaves half of the squares.
        nn.init.constant_(self.out_norm.weight, math.sqrt(2 / self.channels))

    def join(self, head: Tensor, relation: Tensor) -> Tensor:
        image = self.image_norm(torch.cat([head, relation], -1).view(head.size(0), 1, 2 * self.height, -1))
        maps = F.relu(self.map_norm(self.filters(image)))
        maps = self.map_dropout(maps.flatten(0, 1)).view_as(maps)
        return F.relu(self.out_norm(self.dropout(self.out(maps.flatten(1)))))
