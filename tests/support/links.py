"""A small random knowledge graph, its task, and link predictors for it."""

from __future__ import annotations

from typing import Any

import torch

from magna.config.schema import Config
from magna.data import KnowledgeGraph
from magna.data.triples import triples_from
from magna.nn import LinkPredictor
from magna.nn.link_model import LinkModel
from magna.tasks import LinkPrediction
from magna.typing import Control

ENTITIES, RELATIONS = 40, 3
MODEL: dict[str, Any] = {"hidden_channels": 16, "heads": 4, "K": 2, "num_layers": 1, "final_norm": "layer"}


def link_task(control: Control = "none") -> LinkPrediction:
    """A task on about 250 random triples, the same each time."""
    generator = torch.Generator().manual_seed(0)
    columns = [torch.randint(size, (260,), generator=generator) for size in (ENTITIES, RELATIONS, ENTITIES)]
    rows = sorted({(f"e{h:02}", f"r{r}", f"e{t:02}") for h, r, t in torch.stack(columns, dim=1).tolist()})
    order = torch.randperm(len(rows), generator=generator).tolist()
    shuffled = [rows[i] for i in order]
    splits = {"train": shuffled[60:], "valid": shuffled[:30], "test": shuffled[30:60]}
    return LinkPrediction(KnowledgeGraph.from_triples(triples_from("random", splits)), torch.device("cpu"), control)


def link_model(**options: Any) -> LinkPredictor:
    """A small link predictor in evaluation mode, the same each time."""
    torch.manual_seed(0)
    if options.get("num_layers") != 0:
        options = MODEL | options
    return LinkPredictor(ENTITIES, RELATIONS, **{"entity_channels": 12} | options).eval()


def link_settings(batch_size: int = 16, **settings: Any) -> Any:
    """The settings of a task; those of shallow embeddings are allowed."""
    settings = {"name": "link_prediction", "batch_size": batch_size} | settings
    return Config.from_dict({"model": {"skip_channels": 10}, "task": settings}).task


def trained_losses(model: LinkModel, epochs: int = 30, lr: float = 0.05, **settings: Any) -> list[float]:
    """Loss of the last step of each epoch of a short training."""
    objective = link_task().objective(link_settings(**{"label_smoothing": 0.0} | settings), model.train())
    adam, losses = torch.optim.Adam(model.parameters(), lr), []
    for epoch in range(epochs):
        for batch in objective.batches(epoch):
            loss = objective.loss(model, batch)
            adam.zero_grad()
            loss.backward()
            adam.step()
        losses.append(loss.item())
    return losses


def with_biases() -> LinkPredictor:
    """A small link predictor with random biases of its entities and self-loops."""
    model = link_model(loop_bias=True, entity_bias=True)
    with torch.no_grad():
        for bias in (model.deep.loop_bias, model.deep.decoder.entity_bias):
            assert bias is not None
            bias.normal_(std=3.0)
    return model


def one_triple(**splits: list[tuple[str, str, str]]) -> KnowledgeGraph:
    """A graph with the same triple in each split, but for those that are given."""
    rows = {split: [("a", "r", "b")] for split in ("train", "valid", "test")}
    return KnowledgeGraph.from_triples(triples_from("tiny", rows | splits))
