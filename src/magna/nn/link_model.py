"""`LinkModel`: the interface between link prediction and its models; `Scorer`: embeddings with a decoder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from magna.config.layers import LinkPredictorOptions, NegativeSampling
from magna.config.registry import find_decoder
from magna.graph import Graph
from magna.nn.decoder import Decoder
from magna.nn.hub import Saved
from magna.nn.norm import NormLayer
from magna.ops import lookup, lookups
from magna.typing import RelationGuess


class Product(NamedTuple):
    """Scores of queries with all entities: query @ candidates.T + bias, and `self_bias` at the head of each query."""

    query: Tensor  # [B, C]
    candidates: Tensor  # [N, C]
    bias: Tensor | None = None  # [N]
    self_bias: tuple[Tensor, Tensor] | None = None  # heads [B], and the numbers [B] that are added to their scores

    def scores(self) -> Tensor:
        """All scores [B, N]."""
        scores = self.query @ self.candidates.T
        if self.bias is not None:
            scores = scores + self.bias
        if self.self_bias is None:
            return scores
        head, value = self.self_bias
        return scores.scatter_add(1, head[:, None], value[:, None].to(scores.dtype))

    def __add__(self, other: Product) -> Product:  # type: ignore[override]
        """One product whose scores are the sum of both; `other` has no self_bias."""
        biases = [bias for bias in (self.bias, other.bias) if bias is not None]
        return self._replace(
            query=torch.cat([self.query, other.query.to(self.query.dtype)], 1),
            candidates=torch.cat([self.candidates, other.candidates.to(self.candidates.dtype)], 1),
            bias=torch.stack(biases).sum(0) if biases else None,
        )


class Scored(NamedTuple):
    """Queries scored by one `Scorer`, with the factors of triples if tails are known."""

    scorer: Scorer
    product: Product
    ends: tuple[Tensor, ...]  # heads [B], and tails [B] if they are known
    factors: tuple[Tensor, ...]  # rows [B, C] of heads, relations and, if they are known, tails
    relations: Tensor  # [2R + 1, C], all of them

    def relation_scores(self, source: RelationGuess) -> Tensor:
        """Scores [B, 2R + 1] of each pair with all relations: the decoder's, or e_h ∘ e_t · r of the embeddings."""
        scorer = self.scorer
        if source == "states":
            return scorer.decoder.relation_scores(self.factors[0], self.factors[2], self.relations)
        _, heads, tails = lookups(scorer.entity_table, *self.ends)
        return (heads * tails) @ scorer.relation_table.T

    def n3(self) -> Tensor:
        """Nuclear 3-norm [B] of each triple."""
        norms = [self.scorer.decoder.magnitude(factor.float()).pow(3).sum(1) for factor in self.factors]
        return norms[0] + norms[1] + norms[2]


class Scorer(nn.Module):
    """Embeddings of entities and relations, an encoder or none, and the decoder that takes its states.

    Args:
        num_entities: number of entities.
        num_relations: number of relations R, without inverses and self-loops.
        widths: of an entity's embedding, of a relation's embedding, and of the states.
        options: the decoder, starting values and biases.
        encoder: computes the states from the embeddings; None: they are the embeddings, after `norm`.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        widths: tuple[int, int, int],
        options: LinkPredictorOptions,
        *,
        encoder: nn.Module | None = None,
        norm: NormLayer | None = None,
    ) -> None:
        super().__init__()
        self.options = options
        entity_channels, relation_channels, channels = widths
        kind: type[Decoder] = find_decoder(options.decoder)
        rows = 2 * num_relations + 1
        # Gradients are clipped by a norm that adds up the parameters in this order.
        self.entity_table = nn.Parameter(torch.empty(num_entities, entity_channels))
        self.relation_table = nn.Parameter(torch.empty(rows, relation_channels))
        self.loop_bias = nn.Parameter(torch.empty(rows)) if options.loop_bias else None
        self.encoder, self.norm = encoder, nn.Identity() if norm is None else norm
        # Relations that enter the product as they are start at the scale that it needs.
        direct = relation_channels == channels and kind.PROJECTS
        self.decoder = kind(
            channels,
            relation_channels,
            num_entities,
            relation_std=kind.start_std(channels) if direct else options.embedding_std,
            dropout=options.decoder_dropout,
            entity_bias=options.entity_bias,
            init=options.init,
            backend=options.backend,
        )

    def reset_parameters(self) -> None:
        """Draw starting values; what a seed means depends on this order."""
        if self.options.init == "official":
            bound = 6 / math.sqrt(self.entity_table.size(1))
            nn.init.uniform_(self.entity_table, -bound, bound)
            if self.options.relation_source == "relations":
                nn.init.uniform_(self.relation_table, -bound, bound)
            else:
                nn.init.zeros_(self.relation_table)  # read by relation prediction alone
        else:
            nn.init.normal_(self.entity_table, std=self.options.embedding_std)
            nn.init.normal_(self.relation_table, std=self.decoder.relation_std)
        if self.loop_bias is not None:
            # At the start a head is as likely as any other entity.
            nn.init.constant_(self.loop_bias, -math.log(len(self.entity_table)))
        for part in (self.encoder, self.norm, self.decoder):
            if isinstance(part, nn.Module) and not isinstance(part, nn.Identity):
                part.reset_parameters()  # type: ignore[operator]

    def relations(self) -> Tensor:
        """Embeddings [2R + 1, relation_channels] of relations, their inverses, and the self-loop."""
        if self.options.relation_source == "entities":
            return self.entity_table[: self.relation_table.size(0)]
        return self.relation_table

    def score(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Scored:
        """Score queries (head, relation) with all entities."""
        # One lookup for all rows, as the gradient of each lookup is as large as the table.
        ends = (head,) if tail is None else (head, tail)
        states, heads, *tails = lookups(states, *ends)
        relations, rows = lookups(self.decoder.relation(self.relations()), relation)
        query = self.decoder.query(heads, rows)
        self_bias = None
        if self.loop_bias is not None:
            self_bias = head, lookup(self.loop_bias[:, None], relation).squeeze(1)
        product = Product(query, states, self.decoder.entity_bias, self_bias)
        return Scored(self, product, ends, (heads, rows, *tails), relations)


class LinkModel(Saved):
    """Base of the models of link prediction.

    Relations are numbered r, r + num_relations for the inverse of r, and 2 num_relations for the self-loop of each
    entity. A query (head, relation) asks for tails; a head is asked for as the tail of the inverse relation.

    A model implements `encode` and `scores`. One whose scores are a sum of products implements `scorers` and `parts`
    instead of `scores`: B × N scores are then never stored, and relation prediction and N3 can be added to its loss.
    """

    num_entities: int
    num_relations: int
    num_layers = 0  # layers that read the graph
    sampling: NegativeSampling | None = None  # None: the loss is over all entities

    @property
    def scorers(self) -> Mapping[str, Scorer]:
        """Parts whose scores are added, by name."""
        return {}

    @property
    def least_batch(self) -> int:
        """Least number of queries of a training step."""
        return max((scorer.decoder.LEAST_BATCH for scorer in self.scorers.values()), default=1)

    def encode(
        self, edge_index: Tensor | Graph, edge_type: Tensor | None = None, *, edge_mask: Tensor | None = None
    ) -> Tensor:
        """States [N, C] of all entities; edges [E] whose mask is False are left out."""
        raise NotImplementedError

    def parts(self, *_: Any, **__: Any) -> dict[str, Scored]:
        """Queries scored by each of the `scorers`; takes the arguments of `scores`."""
        return {}

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        """Scores [B, N] of queries with all entities, or [B, n] with the entities `tail` [B, n]."""
        scores: Tensor = _sum(part.product.scores() for part in self.parts(states, head, relation).values())
        return scores if tail is None else scores.gather(1, tail)

    def product(self, states: Tensor, head: Tensor, relation: Tensor) -> Product | None:
        """Scores of queries with all entities as one product; None for scores of another form."""
        parts = self.parts(states, head, relation)
        return _sum(part.product for part in parts.values()) if parts else None

    def forward(
        self,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None,
        head: Tensor,
        relation: Tensor,
        *,
        edge_mask: Tensor | None = None,
    ) -> Tensor:
        return self.scores(self.encode(edge_index, edge_type, edge_mask=edge_mask), head, relation)


def _sum(terms: Iterable[Any]) -> Any:
    return reduce(lambda a, b: a + b, terms)
