"""`PyKEENModel`: interactions of PyKEEN behind the task, the loss and the ranks of this package."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from magna.baselines.links.base import LinkBaseline, by_blocks
from magna.config.layers import NegativeSampling
from magna.config.options import Needs, option
from magna.config.registry import link_model
from magna.errors import ArgumentError, MissingExtra
from magna.nn.dropout import Dropout
from magna.nn.link_model import Product
from magna.ops import lookup

Interaction = Literal["AutoSF", "QuatE", "RotatE"]
_TERM = r"h(\d)\s+r(\d)\s+t(\d)"
_STRUCTURE = re.compile(rf"-?\s*{_TERM}(?:\s*[+-]\s*{_TERM})*")
_AUTOSF = Needs("interaction 'AutoSF'", lambda o: o.interaction == "AutoSF")
_BILINEAR = Needs("interaction 'AutoSF' or 'QuatE'", lambda o: o.interaction != "RotatE")
_MARGIN = Needs("negatives above 0 or interaction 'RotatE'", lambda o: o.negatives > 0 or o.interaction == "RotatE")
_PARTS = {"RotatE": 2, "QuatE": 4}  # real numbers of a complex number and of a quaternion


@dataclass(frozen=True, kw_only=True)
class PyKEENOptions(NegativeSampling):
    """Options of :class:`PyKEENModel`."""

    interaction: Interaction = option("RotatE", "Name of the interaction in PyKEEN.")
    channels: int = option(128, "Real numbers in the embedding of an entity.", low=1, high=1 << 24)
    structure: str = option(
        "h0 r0 t2 + h1 r1 t1 + h2 r2 t3 + h3 r3 t0",
        "Sum of products of blocks of head, relation and tail, counted from 0.",
        needs=_AUTOSF,
    )
    embedding_std: float = option(0.1, "Standard deviation of the embeddings at the start.", above=0, needs=_BILINEAR)
    decoder_dropout: float = option(0.0, "Dropout on head and relation.", low=0, below=1, needs=_BILINEAR)
    margin: float = option(
        9.0,
        "Margin that scores of true triples are to reach; scales the starting values of RotatE.",
        above=0,
        needs=_MARGIN,
    )

    def check(self) -> None:
        super().check()
        if self.interaction == "AutoSF" and not _STRUCTURE.fullmatch(self.structure):
            raise ArgumentError("structure", self.structure, "a sum such as 'h0 r0 t1 + h1 r1 t0 - h1 r0 t1'")
        if self.channels % self.parts:
            raise ArgumentError("channels", self.channels, f"multiples of {self.parts} with {self.interaction}")

    @property
    def blocks(self) -> list[tuple[int, int, int, Literal[-1, 1]]]:
        """Block of the head, of the relation and of the tail of each product in `structure`, and its sign."""
        terms = re.findall(rf"([+-]?)\s*{_TERM}", self.structure)
        return [(int(head), int(relation), int(tail), -1 if sign == "-" else 1) for sign, head, relation, tail in terms]

    @property
    def parts(self) -> int:
        """Number by which the channels are divided."""
        return _PARTS.get(self.interaction) or 1 + max(max(block[:3]) for block in self.blocks)


@link_model("pykeen", PyKEENOptions)
class PyKEENModel(LinkBaseline):
    r"""Embeddings scored by an interaction of PyKEEN (Ali et al. 2021): RotatE, QuatE or AutoSF.

    .. math:: s(h, r, t) = -\lVert e_h \circ w_r - e_t \rVert, \quad
        -\langle e_h \otimes w_r, e_t \rangle, \quad \sum_b \pm \langle e_h^{(b_h)}, w_r^{(b_r)}, e_t^{(b_t)} \rangle

    RotatE (Sun et al. 2019) rotates complex numbers by the angles of the relation, and starts as its authors' code
    does. QuatE (Zhang et al. 2019) multiplies with unit quaternions. AutoSF (Zhang et al. 2020) adds products of
    blocks, those that a search selected for a data set. A triple has one score from both ends.

    The scores of QuatE and AutoSF are linear in either entity. Their gradient to it is thus the vector whose product
    with a candidate is the score, and the loss over all entities stores no B × N scores.

    It takes every option of :class:`PyKEENOptions`, and needs PyKEEN.
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        self.options = PyKEENOptions.from_flat(options)
        super().__init__(num_entities, num_relations, self.options)
        channels = self.options.channels
        angles = self.options.interaction == "RotatE"
        self.entity_table = nn.Parameter(torch.empty(num_entities, channels))
        self.relation_table = nn.Parameter(torch.empty(num_relations, channels // 2 if angles else channels))
        self.dropout = Dropout(self.options.decoder_dropout, name="decoder_dropout")
        self.interaction = _make(self.options)
        self.reset_parameters()

    @property
    def bound(self) -> float:
        """Largest number of RotatE's tables at the start; a relation with this number turns by π."""
        return 2 * (self.options.margin + 2) / self.options.channels

    def reset_parameters(self) -> None:
        for table in (self.entity_table, self.relation_table):
            if self.options.interaction == "RotatE":
                nn.init.uniform_(table, -self.bound, self.bound)
            else:
                nn.init.normal_(table, std=self.options.embedding_std)

    def entities(self, rows: Tensor) -> Any:
        """Rows as PyKEEN's interaction takes them: complex numbers, quaternions or blocks."""
        if self.options.interaction == "RotatE":
            return torch.view_as_complex(rows.unflatten(-1, (-1, 2)))
        return (
            rows.unflatten(-1, (-1, 4)) if self.options.interaction == "QuatE" else rows.chunk(self.options.parts, -1)
        )

    def relations(self, rows: Tensor) -> Any:
        """Rows of relations, likewise: complex numbers of modulus 1, unit quaternions or blocks."""
        if self.options.interaction == "RotatE":
            return torch.polar(torch.ones_like(rows), rows * (math.pi / self.bound))
        return normalize(self.entities(rows), dim=-1) if self.options.interaction == "QuatE" else self.entities(rows)

    def product(self, states: Tensor, head: Tensor, relation: Tensor) -> Product | None:
        if self.options.interaction == "RotatE":
            return None
        rows = self.dropout(lookup(states, head))
        relations = self.relations(self.dropout(lookup(self.relation_table, relation % self.num_relations)))

        def score(head: Tensor, tail: Tensor) -> Tensor:
            total: Tensor = self.interaction(self.entities(head), relations, self.entities(tail)).sum()
            return total

        learns = torch.is_grad_enabled()
        with torch.enable_grad():
            anything = torch.zeros_like(rows, requires_grad=True)
            (as_tail,) = torch.autograd.grad(score(rows, anything), anything, create_graph=learns)
            (as_head,) = torch.autograd.grad(score(anything, rows), anything, create_graph=learns)
        return Product(torch.where((relation < self.num_relations)[:, None], as_tail, as_head), states)

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        candidates = None if tail is None else lookup(states, tail.flatten()).view(*tail.shape, -1)  # [B, n, C]
        product = self.product(states, head, relation)
        if product is not None:
            return product.scores() if candidates is None else (product.query[:, None] * candidates).sum(-1)
        # The inverse of a rotation turns by the opposite angle.
        sign = torch.where(relation < self.num_relations, 1.0, -1.0)[:, None]
        angle = sign * lookup(self.relation_table, relation % self.num_relations)
        query = self.entities(lookup(states, head))[:, None], self.relations(angle)[:, None]

        def score(candidates: Tensor) -> Tensor:
            scores: Tensor = self.interaction(*query, self.entities(candidates))
            return scores

        return by_blocks(score, states, len(head)) if candidates is None else score(candidates)


def _make(options: PyKEENOptions) -> nn.Module:
    try:
        from pykeen.nn import quaternion
        from pykeen.nn.modules import AutoSFInteraction, QuatEInteraction, RotatEInteraction
    except ImportError:
        raise MissingExtra(f"the interaction {options.interaction}", "PyKEEN", "baselines") from None
    if options.interaction == "AutoSF":
        return AutoSFInteraction(options.blocks)
    if options.interaction == "RotatE":
        return RotatEInteraction()
    # PyKEEN stores this table for all models, even if it is made without memory for one.
    quaternion.multiplication_table.cache_clear()
    interaction: nn.Module = QuatEInteraction()
    quaternion.multiplication_table.cache_clear()
    return interaction
