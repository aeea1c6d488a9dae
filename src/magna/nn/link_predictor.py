"""`LinkPredictor`: embeddings of entities and relations, the MAGNA encoder over the typed graph, and a decoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from magna.config.layers import EncoderOptions, LinkPredictorOptions
from magna.config.registry import link_model
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn.attention import check_size
from magna.nn.encoder import MAGNA
from magna.nn.link_model import LinkModel, Scored, Scorer
from magna.nn.norm import make_norm

_ENCODER = {"heads", *EncoderOptions.options()}


@link_model("magna", LinkPredictorOptions)
class LinkPredictor(LinkModel):
    r"""Scores of (head, relation, ?) with every entity (Section 5.2 of the paper).

    .. math:: S = \mathrm{MAGNA}(E, G, R), \quad s(h, r, t) = \mathrm{decoder}(S_h, R_r) \cdot S_t

    with trainable entities E and relations R. Shallow embeddings (`skip_channels` above 0) are a second pair of tables
    whose scores, by a decoder of the same kind, are added. They have their own loss: with a shared one they memorise,
    and the encoder stops using the graph.

    Args:
        num_entities: number of entities N.
        num_relations: number of relations R, without inverses and self-loops.
        typed: False: the encoder does not see the types of edges (a control).
        options: every option of :class:`magna.config.layers.LinkPredictorOptions`, such as `decoder` or `K`.

    Shapes: edge_index [2, E], edge_type [E], head [B], relation [B] → scores [B, N].

    >>> import torch
    >>> model = LinkPredictor(3, 1, hidden_channels=16, num_layers=1, heads=4, K=2, final_norm="layer")
    >>> edges, types = torch.tensor([[0, 1, 0, 1, 2], [1, 0, 0, 1, 2]]), torch.tensor([0, 1, 2, 2, 2])
    >>> model(edges, types, torch.tensor([0]), torch.tensor([0])).shape
    torch.Size([1, 3])
    """

    def __init__(self, num_entities: int, num_relations: int, *, typed: bool = True, **options: Any) -> None:
        super().__init__()
        chosen = LinkPredictorOptions.of(None, options)
        for name, value in chosen.changes().items():
            if not chosen.options()[name].in_recipes:
                raise ArgumentError(name, value, "no value; the link predictor sets it")
        sizes = {"num_entities": num_entities, "num_relations": num_relations}
        for name, size in sizes.items():
            check_size(name, size)
        self.config = {**sizes, "typed": typed, **chosen.recipe_values()}
        self.num_entities, self.num_relations, self.typed = num_entities, num_relations, typed
        self.num_layers = chosen.num_layers
        entities = chosen.entity_channels
        relations = entities if chosen.relation_channels is None else chosen.relation_channels
        if chosen.relation_source == "entities" and (relations != entities or 2 * num_relations >= num_entities):
            allowed = "relations with as many entities or more, and as wide as they are"
            raise ArgumentError("relation_source", "entities", allowed)
        # MAGNA has its own final norm.
        encoder = _encoder(chosen, num_relations, relations, typed)
        widths = entities, relations, chosen.hidden_channels if chosen.num_layers else entities
        norm = make_norm("none" if encoder else chosen.final_norm, widths[2], chosen.norm_eps, chosen.backend)
        self.deep = Scorer(num_entities, num_relations, widths, chosen, encoder=encoder, norm=norm)
        self.deep.reset_parameters()
        self.shallow: Scorer | None = None
        if width := chosen.skip_channels:  # drawn last, so that it changes no other draw
            shared = {name: getattr(chosen, name) for name in ("decoder", "embedding_std", "backend")}
            plain = LinkPredictorOptions(num_layers=0, **shared)
            self.shallow = Scorer(num_entities, num_relations, (width, width, width), plain)
            self.shallow.reset_parameters()

    @property
    def scorers(self) -> dict[str, Scorer]:
        """The encoder with its decoder, and the shallow embeddings under the name of their settings."""
        return {"encoder": self.deep} | ({} if self.shallow is None else {"skip": self.shallow})

    def reset_parameters(self) -> None:
        for scorer in self.scorers.values():
            scorer.reset_parameters()

    def encode(
        self, edge_index: Tensor | Graph, edge_type: Tensor | None = None, *, edge_mask: Tensor | None = None
    ) -> Tensor:
        deep, types = self.deep, (edge_type, self.deep.relations()) if self.typed else ()
        states: Tensor
        if deep.encoder is None:
            states = deep.norm(deep.entity_table)
        else:
            states = deep.encoder(deep.entity_table, edge_index, *types, edge_mask=edge_mask)
        return states

    def parts(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> dict[str, Scored]:
        tables = {"encoder": states} | ({} if self.shallow is None else {"skip": self.shallow.entity_table})
        return {name: scorer.score(tables[name], head, relation, tail) for name, scorer in self.scorers.items()}


def _encoder(options: LinkPredictorOptions, num_relations: int, relation_channels: int, typed: bool) -> MAGNA | None:
    if options.num_layers == 0:
        return None
    changes = {name: value for name, value in options.changes().items() if name in _ENCODER}
    changes |= {"num_relations": 2 * num_relations + 1, "relation_embedding": False} if typed else {}
    changes["relation_channels"] = relation_channels
    return MAGNA(options.entity_channels, options.hidden_channels, options.num_layers, **changes)
