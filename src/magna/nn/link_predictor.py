"""`LinkPredictor`: tables of entities and relations, the MAGNA encoder over the typed graph, and a decoder."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from magna.config.layers import LinkPredictorOptions, MAGNAOptions
from magna.graph import Graph
from magna.nn.attention import check_size
from magna.nn.decoder import DECODERS
from magna.nn.encoder import MAGNA
from magna.nn.hub import Saved
from magna.nn.norm import make_norm
from magna.ops import lookup, lookups
from magna.ops.answers import Own
from magna.ops.reference import with_own
from magna.typing import DecoderName, Norm, RelationSource, one_of

# Options of the encoder that follow from the knowledge graph.
_OWNED = ("num_relations", "relation_channels", "relation_embedding", "add_self_loops")
_SIZES = ("hidden_channels", "num_layers")


class Triples(NamedTuple):
    """Triples as they enter the product of a score, and all relations beside those that they have."""

    heads: Tensor  # [B, C]
    relation: Tensor  # [B, C]
    tails: Tensor  # [B, C]
    relations: Tensor  # [2R + 1, C]


class Scored(NamedTuple):
    """What the scores of some queries with all entities are made of: query @ candidates.T + bias, and `own`."""

    query: Tensor  # [B, C]
    candidates: Tensor  # [N, C]
    bias: Tensor | None  # [N]
    states: Tensor  # [N, hidden_channels], the encoder's
    own: Own | None = None  # the head of each query [B], and what is added to its score [B]
    past: Scored | None = None  # the scores past the encoder, which are added; they have no `own`
    triples: Triples | None = None  # where tails are given

    def part(self, queries: slice) -> Scored:
        """Some of the queries."""
        own = None if self.own is None else (self.own[0][queries], self.own[1][queries])
        past = None if self.past is None else self.past.part(queries)
        return self._replace(query=self.query[queries], own=own, past=past, triples=None)

    def whole(self) -> Scored:
        """The same scores as one product, those past the encoder in it."""
        if self.past is None:
            return self
        biases = [bias for bias in (self.bias, self.past.bias) if bias is not None]
        return self._replace(
            query=torch.cat([self.query, self.past.query.to(self.query.dtype)], 1),
            candidates=torch.cat([self.candidates, self.past.candidates.to(self.candidates.dtype)], 1),
            bias=torch.stack(biases).sum(0) if biases else None,
            past=None,
        )

    def scores(self) -> Tensor:
        """[B, N], all at once."""
        scores = self.query @ self.candidates.T
        scores = with_own(scores if self.bias is None else scores + self.bias, self.own)
        return scores if self.past is None else scores + self.past.scores()


class LinkPredictor(Saved):
    r"""Scores of (head, relation, ?) with every entity (Section 5.2 of the paper).

    .. math:: S = \mathrm{MAGNA}(E, G, R), \quad s(h, r, t) = \mathrm{decoder}(S_h, R_r) \cdot S_t

    with trainable entities E and relations R. Relations are numbered r, r + num_relations for the inverse of r, and
    2 num_relations for the self-loop of each entity; a head is asked for as the tail of the inverse relation.

    Args:
        num_entities: number of entities N.
        num_relations: number of relations R, without inverses and self-loops.
        hidden_channels: width of the encoder.
        num_layers: number of blocks; 0: no encoder, the decoder takes the embeddings (DistMult as such).
        decoder: "distmult", "complex", "tucker" or "conve".
        entity_channels: width of an entity's embedding.
        relation_channels: width of a relation's embedding; None: `entity_channels`.
        relation_source: "relations": their own table; "entities": the first rows of the entities' table, as the
            authors' code reads them.
        typed: False: the encoder does not see the types of edges (a control).
        embedding_std: deviation of the embeddings at the start.
        decoder_dropout: on head and relation, before the decoder.
        entity_bias: a number for each entity that is added to its scores as an answer; "conve" always has it.
        loop_bias: a number for each relation that is added to the score of (h, r, h). What makes an entity score high
            with its neighbours makes it score highest with itself, which is seldom the answer.
        skip_channels: width of second embeddings of entities and relations, which go past the encoder; a decoder of the
            same kind scores them, without dropout, and both scores are added. They have a loss of their own: what they
            remember is still looked for in the graph. 0: none.
        options: every keyword option of :class:`MAGNA`, its blocks and layers, such as `K`, `top_k`, `final_norm`.

    Shapes: edge_index [2, E], edge_type [E], head [B], relation [B], tail [B] or None → :class:`Scored`.

    >>> model = LinkPredictor(3, 1, 16, num_layers=1, heads=4, K=2, final_norm="layer")
    >>> edges, types = torch.tensor([[0, 1, 0, 1, 2], [1, 0, 0, 1, 2]]), torch.tensor([0, 1, 2, 2, 2])
    >>> model(edges, types, torch.tensor([0]), torch.tensor([0])).scores().shape
    torch.Size([1, 3])
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        hidden_channels: int,
        num_layers: int,
        *,
        decoder: DecoderName = "distmult",
        entity_channels: int = 100,
        relation_channels: int | None = None,
        relation_source: RelationSource = "relations",
        typed: bool = True,
        embedding_std: float = 0.1,
        decoder_dropout: float = 0.0,
        entity_bias: bool = False,
        loop_bias: bool = False,
        skip_channels: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        for name in _OWNED:
            if name in options:
                raise ValueError(f"{name!r} is given; the link predictor sets it itself")
        whole = MAGNAOptions.of(None, options)
        encoder = {name: value for name, value in whole.flat().items() if name not in (*_OWNED, *_SIZES)}
        relation_channels = entity_channels if relation_channels is None else relation_channels
        # Written into config.json, so that it is complete whatever the defaults of a later version are.
        self.config: dict[str, Any] = encoder | {
            "num_entities": num_entities,
            "num_relations": num_relations,
            "hidden_channels": hidden_channels,
            "num_layers": num_layers,
            "decoder": decoder,
            "entity_channels": entity_channels,
            "relation_channels": relation_channels,
            "relation_source": relation_source,
            "typed": typed,
            "embedding_std": embedding_std,
            "decoder_dropout": decoder_dropout,
            "entity_bias": entity_bias,
            "loop_bias": loop_bias,
            "skip_channels": skip_channels,
        }
        for name in ("num_entities", "num_relations", "hidden_channels", "entity_channels", "relation_channels"):
            check_size(name, self.config[name])
        if skip_channels < 0:
            raise ValueError(f"skip_channels is {skip_channels}; allowed: 0, for none, and above")
        one_of("decoder", decoder, DecoderName)
        one_of("relation_source", relation_source, RelationSource)
        if not embedding_std > 0:
            raise ValueError(f"embedding_std is {embedding_std}; allowed: above 0")
        self.num_entities, self.num_relations, self.typed = num_entities, num_relations, typed
        self.relation_source: RelationSource = relation_source
        rows = 2 * num_relations + 1
        if relation_source == "entities" and (relation_channels != entity_channels or rows > num_entities):
            raise ValueError(
                f"relation_source is 'entities' with {num_entities} entities of width {entity_channels} and {rows} "
                f"relations of width {relation_channels}; allowed: as wide, and no more relations than entities"
            )
        self.entity_table = nn.Parameter(torch.empty(num_entities, entity_channels))
        self.relation_table = nn.Parameter(torch.empty(rows, relation_channels))
        self.loop_bias = nn.Parameter(torch.empty(rows)) if loop_bias else None
        self.encoder: MAGNA | None = None
        channels = entity_channels
        if num_layers != 0:
            channels = hidden_channels
            self.encoder = MAGNA(
                entity_channels,
                hidden_channels,
                num_layers,
                num_relations=rows if typed else None,
                relation_channels=relation_channels,
                relation_embedding=False,
                **encoder,
            )
        # The encoder has its own.
        final_norm: Norm = whole.final_norm if num_layers == 0 else "none"
        self.norm = make_norm(final_norm, channels, whole.norm_eps, whole.backend)
        # Where nothing stands between the table and the product, the table has the scale that the product asks for.
        direct = relation_channels == channels and DECODERS[decoder].PROJECTS
        self.relation_std = DECODERS[decoder].start_std(channels) if direct else embedding_std
        self.decoder = DECODERS[decoder](
            channels,
            relation_channels,
            num_entities,
            relation_std=self.relation_std,
            dropout=decoder_dropout,
            entity_bias=entity_bias,
            init=whole.init,
            backend=whole.backend,
            fill=False,  # below, in the order that the results of a seed rest on
        )
        self.skip: LinkPredictor | None = None
        self.reset_parameters()
        if skip_channels:  # after the rest, whose draws do not depend on it
            self.skip = LinkPredictor(
                num_entities,
                num_relations,
                skip_channels,
                num_layers=0,
                decoder=decoder,
                entity_channels=skip_channels,
                embedding_std=embedding_std,
                backend=whole.backend,
            )

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every keyword option of the link predictor and its encoder, with its default."""
        names = [
            name for name in LinkPredictorOptions.options() if name not in (*_OWNED[::2], "add_self_loops", *_SIZES)
        ]
        return {name: getattr(LinkPredictorOptions, name) for name in names} | {"typed": True}

    def reset_parameters(self) -> None:
        if self.config["init"] == "official":
            bound = 6 / math.sqrt(self.config["entity_channels"])
            nn.init.uniform_(self.entity_table, -bound, bound)
            if self.relation_source == "relations":
                nn.init.uniform_(self.relation_table, -bound, bound)
            else:
                nn.init.zeros_(self.relation_table)  # serves the loss of relation prediction alone
        else:
            nn.init.normal_(self.entity_table, std=self.config["embedding_std"])
            nn.init.normal_(self.relation_table, std=self.relation_std)
        if self.loop_bias is not None:
            # As likely as any other entity.
            nn.init.constant_(self.loop_bias, -math.log(self.num_entities))
        if self.encoder is not None:
            self.encoder.reset_parameters()
        if not isinstance(self.norm, nn.Identity):
            self.norm.reset_parameters()
        self.decoder.reset_parameters()
        if self.skip is not None:
            self.skip.reset_parameters()

    def relations(self) -> Tensor:
        """[2R + 1, relation_channels]: relations, their inverses, the self-loop."""
        if self.relation_source == "entities":
            return self.entity_table[: self.relation_table.size(0)]
        return self.relation_table

    def encode(
        self, edge_index: Tensor | Graph, edge_type: Tensor | None = None, *, edge_mask: Tensor | None = None
    ) -> Tensor:
        """The states [N, C] of all entities; `edge_mask` [E] is False where an edge is absent in this call."""
        if self.encoder is None:
            return self.norm(self.entity_table)
        if not self.typed:
            return self.encoder(self.entity_table, edge_index, edge_mask=edge_mask)
        return self.encoder(self.entity_table, edge_index, edge_type, self.relations(), edge_mask=edge_mask)

    def score(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Scored:
        """What the scores of queries (head, relation) with all entities are made of; triples where tails are given."""
        past = None if self.skip is None else self.skip.score(self.skip.entity_table, head, relation, tail)
        # All at once, as the gradients of several lookups would be several tables.
        states, heads, *tails = lookups(states, head) if tail is None else lookups(states, head, tail)
        relations, rows = lookups(self.decoder.relation(self.relations()), relation)
        return Scored(
            self.decoder.query(heads, rows),
            self.decoder.candidates(states),
            self.decoder.bias(),
            states,
            None if self.loop_bias is None else (head, lookup(self.loop_bias[:, None], relation).squeeze(1)),
            past,
            Triples(heads, rows, tails[0], relations) if tails else None,
        )

    def forward(
        self,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None,
        head: Tensor,
        relation: Tensor,
        tail: Tensor | None = None,
        *,
        edge_mask: Tensor | None = None,
    ) -> Scored:
        return self.score(self.encode(edge_index, edge_type, edge_mask=edge_mask), head, relation, tail)
