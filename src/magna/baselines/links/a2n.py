"""A2N (Bansal et al. 2019): attention of a query over the neighbours of its head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from magna.baselines.links.base import LinkBaseline
from magna.config.options import HUGE, Options, option
from magna.config.registry import link_model
from magna.graph import Graph, as_graph
from magna.nn.dropout import Dropout
from magna.nn.link_model import Product
from magna.ops import lookup, lookups


class Neighbourhoods(NamedTuple):
    """Embeddings of all entities, and the edges of a step."""

    entities: Tensor  # [N, C]
    graph: Graph
    edge_mask: Tensor | None  # [E]


@dataclass(frozen=True, kw_only=True)
class A2NOptions(Options):
    """Options of :class:`A2N`."""

    num_layers: ClassVar[int] = 1  # it reads the graph once
    channels: int = option(64, "Width of the embeddings.", low=1, high=HUGE)
    max_neighbours: int = option(64, "Neighbours that a query attends to at most.", low=1, high=1 << 16)
    embedding_std: float = option(0.1, "Standard deviation of the embeddings at the start.", above=0)
    decoder_dropout: float = option(0.0, "Dropout on the head with its neighbours and on the relation.", low=0, below=1)


@link_model("a2n", A2NOptions)
class A2N(LinkBaseline):
    r"""DistMult whose head is joined with its neighbours, weighted by the query.

    .. math:: n_i = W_n [e_i; w_i], \quad p = \mathrm{softmax}_i\, \langle e_h, w_r, n_i \rangle, \quad
        s(h, r, t) = \left\langle W_h \left[\textstyle\sum_i p_i n_i; e_h\right], w_r, e_t \right\rangle

    The sum is over the edges into h, with source i and relation w_i; without any, its vector is zero. Of an entity
    with more than `max_neighbours` edges a step in training reads a random choice at equal spaces, and evaluation the
    same choice each time.

    It takes every option of :class:`A2NOptions`.

    >>> model = A2N(3, 1, channels=4)
    >>> edges, types = torch.tensor([[0, 1, 0, 1, 2], [1, 0, 0, 1, 2]]), torch.tensor([0, 1, 2, 2, 2])
    >>> model(edges, types, torch.tensor([0]), torch.tensor([0])).shape
    torch.Size([1, 3])
    """

    num_layers = A2NOptions.num_layers

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        self.options = A2NOptions.from_flat(options)
        super().__init__(num_entities, num_relations, self.options)
        channels = self.options.channels
        self.entity_table = nn.Parameter(torch.empty(num_entities, channels))
        self.relation_table = nn.Parameter(torch.empty(2 * num_relations, channels))
        self.neighbour = nn.Linear(2 * channels, channels, bias=False)
        self.join = nn.Linear(2 * channels, channels, bias=False)
        self.dropout = Dropout(self.options.decoder_dropout, name="decoder_dropout")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.entity_table, self.relation_table):
            nn.init.normal_(table, std=self.options.embedding_std)
        self.neighbour.reset_parameters()
        self.join.reset_parameters()

    def encode(  # type: ignore[override]
        self, edge_index: Tensor | Graph, edge_type: Tensor | None = None, *, edge_mask: Tensor | None = None
    ) -> Neighbourhoods:
        """The embeddings with the graph, as each query reads it in another way."""
        graph = as_graph(edge_index, self.num_entities, edge_type, 2 * self.num_relations + 1)
        return Neighbourhoods(self.entity_table, graph, edge_mask)

    def product(self, states: Neighbourhoods, head: Tensor, relation: Tensor) -> Product:  # type: ignore[override]
        edges, present = self.edges(states, head)
        assert states.graph.edge_type is not None
        source, kind = states.graph.source[edges], states.graph.edge_type[edges] % (2 * self.num_relations)
        # W_n [e; w] = W_1 e + W_2 w, so that each entity and each relation is multiplied once.
        by_entity, by_relation = self.neighbour.weight.chunk(2, 1)
        entities, heads = lookups(states.entities, head)
        relations, rows = lookups(self.relation_table, relation)
        terms = lookup(entities @ by_entity.T, source.flatten()) + lookup(relations @ by_relation.T, kind.flatten())
        neighbours = terms.view(*edges.shape, -1)  # [B, n, C]
        scores = torch.einsum("bc,bnc->bn", heads * rows, neighbours).masked_fill(~present, -1e9)
        attention = scores.softmax(1) * present
        pooled = torch.einsum("bn,bnc->bc", attention, neighbours)
        query = self.dropout(self.join(torch.cat([pooled, heads], 1))) * self.dropout(rows)
        return Product(query, entities)

    def scores(
        self,
        states: Neighbourhoods,  # type: ignore[override]
        head: Tensor,
        relation: Tensor,
        tail: Tensor | None = None,
    ) -> Tensor:
        scores = self.product(states, head, relation).scores()
        return scores if tail is None else scores.gather(1, tail)

    def edges(self, states: Neighbourhoods, head: Tensor) -> tuple[Tensor, Tensor]:
        """Edges [B, n] into each head, and a mask of those that are present; n is `max_neighbours`."""
        graph, most = states.graph, self.options.max_neighbours
        first = graph.rowptr.long()[head][:, None]
        degree = graph.rowptr.long()[head + 1][:, None] - first
        slot = torch.arange(most, device=head.device)[None]
        start = torch.rand(len(head), 1, device=head.device) if self.training else torch.zeros_like(first)
        # All edges if they fit, else every (degree / most)-th.
        spread = (slot * degree // most + (start * degree).long()) % degree.clamp_min(1)
        place = first + torch.where(degree > most, spread, slot.minimum(degree - 1).clamp_min(0))
        edges = graph.by_target.order.long()[place.clamp_max(max(0, graph.num_edges - 1))]
        assert graph.edge_type is not None
        present = (slot < degree) & (graph.edge_type[edges] != 2 * self.num_relations)
        return edges, present if states.edge_mask is None else present & states.edge_mask[edges]
