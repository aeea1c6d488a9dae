"""`LinkBaseline`: the common part of the models of link prediction that are compared with MAGNA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from magna.config.layers import LinkPredictorOptions, NegativeSampling
from magna.config.options import HUGE, Needs, Options, option
from magna.graph import Graph, as_graph
from magna.nn.attention import check_size
from magna.nn.link_model import LinkModel, Scored, Scorer

_BLOCK = 2**24  # numbers of differences that are stored at a time


@dataclass(frozen=True, kw_only=True)
class SampledOptions(NegativeSampling):
    """The loss over all entities, or over drawn ones with a margin that is used there alone."""

    margin: float = option(
        0.0,
        "Margin that scores of true triples are to reach.",
        low=0,
        needs=Needs("negatives above 0", lambda o: o.negatives > 0),
    )


@dataclass(frozen=True, kw_only=True)
class EncodedOptions(Options):
    """Base of the options of :class:`EncodedBaseline`, whose classes set the decoder."""

    decoder: ClassVar[str]  # the paper's
    channels: int = option(64, "Width of the embeddings, of the relations and of the states.", low=1, high=HUGE)
    num_layers: int = option(2, "Number of layers.", low=1, high=4096)
    embedding_std: float = option(0.1, "Standard deviation of the embeddings at the start.", above=0)
    decoder_dropout: float = option(0.0, "Dropout inside the decoder.", low=0, below=1)


class LinkBaseline(LinkModel):
    """Base of the link baselines: sizes, options, and a loss over drawn entities if the options ask for one.

    Without `encode` of its own a model reads no graph, and its states are the embeddings `entity_table`.
    """

    entity_table: Tensor

    def __init__(self, num_entities: int, num_relations: int, options: Options) -> None:
        super().__init__()
        sizes = {"num_entities": num_entities, "num_relations": num_relations}
        for name, size in sizes.items():
            check_size(name, size)
        self.config = {**sizes, **options.applied()}
        self.num_entities, self.num_relations = num_entities, num_relations
        if isinstance(options, NegativeSampling) and options.negatives:
            self.sampling = options

    def encode(self, *_: Any, **__: Any) -> Tensor:
        """Embeddings [N, C] of all entities; the graph is not read."""
        return self.entity_table


class EncodedBaseline(LinkBaseline):
    """Base of the baselines with an encoder that reads the typed graph and a decoder of :mod:`magna.nn.decoder`.

    The encoder is called with the embeddings [N, C], the graph and the mask of its edges, or None.
    """

    def __init__(self, num_entities: int, num_relations: int, options: EncodedOptions, encoder: nn.Module) -> None:
        super().__init__(num_entities, num_relations, options)
        self.num_layers = options.num_layers
        shared = {name: getattr(options, name) for name in ("decoder", "embedding_std", "decoder_dropout")}
        plain = LinkPredictorOptions(num_layers=0, **shared)
        self.scorer = Scorer(num_entities, num_relations, (options.channels,) * 3, plain, encoder=encoder)
        self.scorer.reset_parameters()

    @property
    def scorers(self) -> dict[str, Scorer]:
        return {"encoder": self.scorer}

    def reset_parameters(self) -> None:
        self.scorer.reset_parameters()

    def encode(
        self, edge_index: Tensor | Graph, edge_type: Tensor | None = None, *, edge_mask: Tensor | None = None
    ) -> Tensor:
        graph = as_graph(edge_index, self.num_entities, edge_type, 2 * self.num_relations + 1)
        assert self.scorer.encoder is not None
        states: Tensor = self.scorer.encoder(self.scorer.entity_table, graph, edge_mask)
        return states

    def parts(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> dict[str, Scored]:
        return {"encoder": self.scorer.score(states, head, relation, tail)}


def by_blocks(score: Callable[[Tensor], Tensor], states: Tensor, queries: int) -> Tensor:
    """Scores of queries with all entities, a block of candidates at a time, as every pair stores a difference.

    Shapes: states [N, C], `score` of candidates [1, n, C] → [B, n]; → [B, N].
    """
    size = max(1, _BLOCK // max(1, queries * states.size(1)))
    return torch.cat([score(part[None]) for part in states.split(size)], 1)
