"""PyKEEN's whole models with the weights of ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from magna.baselines.links.pykeen import PyKEENModel


def pykeen_twin(model: PyKEENModel, train: Tensor) -> Any:
    """PyKEEN's model of the same name and weights, in evaluation mode."""
    from pykeen import models
    from pykeen.triples import CoreTriplesFactory

    options = model.options
    sizes: dict[str, Any] = {"num_entities": model.num_entities, "num_relations": model.num_relations}
    settings: dict[str, Any] = {"embedding_dim": options.channels // options.parts}
    if options.interaction == "AutoSF":
        settings |= {"num_components": options.parts, "coefficients": options.blocks}
    twin = getattr(models, options.interaction)(triples_factory=CoreTriplesFactory.create(train, **sizes), **settings)
    tables = [
        (twin.entity_representations, model.entities(model.entity_table.detach())),
        (twin.relation_representations, model.relations(model.relation_table.detach())),
    ]
    for representations, rows in tables:
        for representation, part in zip(representations, rows if isinstance(rows, tuple) else (rows,), strict=True):
            numbers = torch.view_as_real(part) if part.is_complex() else part
            representation._embeddings.weight.data.copy_(numbers.reshape(len(part), -1))
    return twin.eval()
