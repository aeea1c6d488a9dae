"""Decoders: the score of (head, relation, tail) as a product of a query with a row for each candidate, plus a bias.

A new decoder is one class here and its name in `DECODERS` and in `typing.DecoderName`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from magna.nn.dropout import Dropout
from magna.nn.init import fill_linear
from magna.typing import Backend, Init

_BLOCK = 2**24  # products that are held at a time where a decoder guesses relations


class Decoder(nn.Module):
    r"""What all decoders share: states of entities and rows of relations in, products out.

    .. math:: s(h, r, t) = \mathrm{query}(h, r) \cdot \mathrm{candidates}(t) + \mathrm{bias}(t)

    Where relations are narrower or wider than the states, a matrix without bias takes them there (W r): `relation`
    does, once for all rows of their table, and everything else takes rows of what it gives.

    The starting values are such that the scores have a deviation of about 1 where the entries of the states have one:
    the loss over N candidates starts near log N, whatever the widths. `init="official"` is the authors' instead.

    Args:
        channels: width of the states.
        relation_channels: width of a relation's row.
        num_entities: number of candidates.
        relation_std: deviation of the entries of a relation's row at the start.
        dropout: on the head's state and on the relation, in training.
        entity_bias: a number for each candidate is learned and added to its scores.
        init: starting values, "glorot" or "official".
        fill: False: whoever builds the decoder calls `reset_parameters` when it is its turn to draw.

    Shapes: head [B, channels], relation [B, C_r], states [N, channels] → query [B, C], candidates [N, C], bias [N] or
    None, with relation_channels of TuckER and channels of the others for C_r.
    """

    PROJECTS = True  # a matrix takes relations to the width of the states
    TERMS = 1  # products that are summed for each channel of a score
    LEAST_BATCH = 1  # queries of a training step

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
        fill: bool = True,
    ) -> None:
        super().__init__()
        self.channels, self.relation_channels = channels, relation_channels
        self.relation_std = relation_std
        self.init: Init = init
        self.dropout = Dropout(dropout, name="decoder_dropout", backend=backend)
        differs = relation_channels != channels
        self.project = nn.Linear(relation_channels, channels, bias=False) if self.PROJECTS and differs else None
        self.entity_bias = nn.Parameter(torch.empty(num_entities)) if entity_bias else None
        self.add_own()
        if fill:
            self.reset_parameters()

    def add_own(self) -> None:
        """The parameters that a decoder has beyond those of all."""

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
        """Deviation of the relation's entries in the product with which a sum over the channels has one of 1."""
        return 1 / math.sqrt(cls.TERMS * channels)

    def relation(self, relation: Tensor) -> Tensor:
        """Rows of relations [..., relation_channels] as they enter the product, at the width of the states."""
        return relation if self.project is None else self.project(relation)

    def query(self, head: Tensor, relation: Tensor) -> Tensor:
        """What is multiplied with every candidate."""
        return self.join(self.dropout(head), self.dropout(relation))

    def join(self, head: Tensor, relation: Tensor) -> Tensor:
        """How a head and a relation become a query: each decoder's own."""
        raise NotImplementedError

    def relation_scores(self, head: Tensor, tail: Tensor, relations: Tensor) -> Tensor:
        """[B, R]: the scores of pairs of head and tail with each of all relations, without the bias."""
        return self.pair(head, tail) @ relations.T

    def pair(self, head: Tensor, tail: Tensor) -> Tensor:
        """What the relation is multiplied with in the score of head and tail, for a decoder of `LINEAR`."""
        raise NotImplementedError

    def candidates(self, states: Tensor) -> Tensor:
        return states

    def bias(self) -> Tensor | None:
        return self.entity_bias

    @staticmethod
    def magnitude(factor: Tensor) -> Tensor:
        """The size of each entry of a factor, for its nuclear 3-norm."""
        return factor.abs()


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


class ComplEx(Decoder):
    """Re Σ_c h_c r_c conj(t_c) (Trouillon et al. 2016), the first half of a row its real part, the second imaginary.

    It can tell (h, r, t) from (t, r, h), as DistMult cannot.
    """

    TERMS = 2

    def __init__(self, channels: int, relation_channels: int, num_entities: int, **options) -> None:
        if channels % 2:
            raise ValueError(f"channels is {channels}; allowed with decoder 'complex': an even number")
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


class TuckER(Decoder):
    """Σ_kij r_k h_i t_j W_kij (Balazevic et al. 2019), with the core W [relation_channels, channels, channels].

    Of B queries it stores B * relation_channels * channels products; none to guess their relations.
    """

    PROJECTS = False

    def add_own(self) -> None:
        self.core = nn.Parameter(torch.empty(self.relation_channels, self.channels, self.channels))

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

        # A few rows of the core at a time, and once more in the backward pass, so that no product is kept.
        rows = self.core.split(max(1, _BLOCK // max(1, head.numel())))
        parts = [checkpoint(block, part, head, tail, use_reentrant=False, preserve_rng_state=False) for part in rows]
        return torch.cat(parts).T


class ConvE(Decoder):
    """ReLU(W ReLU([h; r] ∗ ω)) · t + b_t (Dettmers et al. 2018): 3 × 3 filters ω over head and relation as images.

    The images are as near to squares as the width allows, the head's above the relation's. Batch norms stand behind
    the images, behind the filters and behind W, each in front of the ReLU; dropout also on whole maps of the filters
    and behind W.
    """

    FILTERS, SIDE = 32, 3
    LEAST_BATCH = 2  # one alone has no variance

    def __init__(
        self,
        channels: int,
        relation_channels: int,
        num_entities: int,
        *,
        dropout: float = 0.0,
        backend: Backend = "auto",
        **options,
    ) -> None:
        options |= {"dropout": dropout, "backend": backend, "entity_bias": True}
        super().__init__(channels, relation_channels, num_entities, **options)
        self.map_dropout = Dropout(dropout, rows=True, name="decoder_dropout", backend=backend)

    @classmethod
    def start_std(cls, channels: int) -> float:
        return 1.0  # as that of the head, beside which it is laid

    def add_own(self) -> None:
        channels = self.channels
        self.height = max(side for side in range(1, math.isqrt(channels) + 1) if channels % side == 0)
        height, width = 2 * self.height - self.SIDE + 1, channels // self.height - self.SIDE + 1
        if height < 1 or width < 1:
            raise ValueError(
                f"channels is {channels}, an image of {self.height} × {channels // self.height}; allowed with decoder "
                "'conve': images of at least 2 × 3, such as 64 channels"
            )
        self.filters = nn.Conv2d(1, self.FILTERS, self.SIDE)
        self.out = nn.Linear(self.FILTERS * height * width, channels)
        self.image_norm, self.map_norm = nn.BatchNorm2d(1), nn.BatchNorm2d(self.FILTERS)
        self.out_norm = nn.BatchNorm1d(channels)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # What every norm gets has a deviation of 1, so that scores are the same before a norm has seen any.
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


DECODERS: dict[str, type[Decoder]] = {"distmult": DistMult, "complex": ComplEx, "tucker": TuckER, "conve": ConvE}
# Those whose score is a product with the relation.
LINEAR = tuple(name for name, decoder in DECODERS.items() if decoder.pair is not Decoder.pair)
