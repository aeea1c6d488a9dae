"""`LinkBaseline`: the common part of the models of link prediction that are compared with MAGNA."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from magna.config.layers import NegativeSampling
from magna.config.options import Options
from magna.nn.attention import check_size
from magna.nn.link_model import LinkModel


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
