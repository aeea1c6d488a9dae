"""`LinkBaseline`: the common part of the models of link prediction that are compared with MAGNA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from magna.config.layers import NegativeSampling
from magna.config.options import Needs, Options, option
from magna.nn.attention import check_size
from magna.nn.link_model import LinkModel

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


def by_blocks(score: Callable[[Tensor], Tensor], states: Tensor, queries: int) -> Tensor:
    """Scores of queries with all entities, a block of candidates at a time, as every pair stores a difference.

    Shapes: states [N, C], `score` of candidates [1, n, C] → [B, n]; → [B, N].
    """
    size = max(1, _BLOCK // max(1, queries * states.size(1)))
    return torch.cat([score(part[None]) for part in states.split(size)], 1)
