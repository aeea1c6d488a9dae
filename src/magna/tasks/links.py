"""Link prediction on one knowledge graph: filtered ranks, temperature, and the loss of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from magna.config.path_kind import SPLITS
from magna.config.registry import ModelSettings
from magna.config.schema import Config
from magna.config.tables import LinkTask
from magna.data import KnowledgeGraph
from magna.errors import DataError
from magna.nn.ensemble import make_model
from magna.nn.link_model import LinkModel, Product
from magna.ops import rank_scores, rank_targets
from magna.tasks.link_objective import LinkObjective, batch_size
from magna.tasks.metrics import Ranks, TieRule
from magna.typing import Control

SIDES = ("head", "tail")
_OTHER_TIES: tuple[TieRule, ...] = ("optimistic", "pessimistic")
# The temperature of the scores is searched among these, on at most so many ranks of validation.
_TEMPERATURES = [16 ** (step / 10) for step in range(-10, 11)]
_CALIBRATED = 1024
_BLOCK = 128  # queries that are scored at a time


class LinkPrediction:
    """Link prediction on a knowledge graph: the data, filtered ranks, and for each model its objective.

    >>> from magna.config.schema import Config
    >>> from magna.data import load_knowledge_graph
    >>> config = Config.from_dict({"task": {"name": "link_prediction"}})
    >>> task = LinkPrediction(load_knowledge_graph("families"), torch.device("cpu"))
    >>> sorted(task.evaluate(task.make_model(config.model), "valid"))
    ['hits@1', 'hits@10', 'hits@3', 'mr', 'mrr', 'mrr_optimistic', 'mrr_pessimistic']
    """

    METRIC, SHARES_BATCH = LinkTask.METRIC, LinkTask.SHARES_BATCH

    def __init__(
        self,
        graph: KnowledgeGraph,
        device: torch.device,
        control: Control = "none",
        ranked: Sequence[str] = ("valid", "test"),
    ) -> None:
        """Put a graph on a device; splits in `ranked` must have triples."""
        if graph.queries.size(0) == 0:
            raise DataError(graph.triples.name, "it has no train triple", allowed="one or more in each split")
        if control == "random-graph":
            graph = graph.at_random()
        self.graph = graph.to(device)
        self.dataset, self.device = graph.triples.name, device
        self.typed = control != "no-types"
        self.num_nodes, self.num_edges = graph.num_entities, graph.edge_index.size(1)
        # The model gets the same tensors every time, so that their sorted `Graph` is built only once.
        self.edge_index, self.edge_type = self.graph.edge_index, self.graph.edge_type if self.typed else None
        self._rankings = {split: graph.ranking(split).to(device) for split in ranked}

    def can_score(self, split: str) -> bool:
        """True if the split can be ranked."""
        return split in self._rankings

    @property
    def size(self) -> str:
        relations, train = self.graph.num_relations, len(self.graph.triples.train)
        return f"{self.num_nodes:,} entities, {relations} relations, {train:,} train triples"

    @property
    def data_bytes(self) -> int:
        """Size of the data on the device; edges are stored sorted by target and by source, queries once more."""
        graph = self.graph
        parts = [graph.edge_type, graph.edge_query, graph.reverse_query, *3 * [graph.queries], *graph.answers]
        for ranking in self._rankings.values():
            parts += [ranking.queries, ranking.query, ranking.target, ranking.rel_type, *ranking.known]
        return 4 * self.edge_index.nbytes + sum(part.nbytes for part in parts)

    def notes(self, config: Config) -> tuple[str, ...]:
        """Notes on the data, and on a batch size that it does not allow."""
        assert isinstance(config.task, LinkTask)
        queries, wanted = len(self.graph.queries), config.task.batch_size
        size = batch_size(self.graph, config.task, config.model)
        if size == min(wanted, queries):
            return self.graph.triples.notes
        return (
            *self.graph.triples.notes,
            f"task.batch_size is {wanted:,} and training has {queries:,} queries: a step takes {size:,}, as it masks "
            "the edges that reveal its answers (task.mask_answers) and must leave most edges",
        )

    @property
    def schema(self) -> dict[str, Any]:
        """Names behind the rows of the tables, and fingerprints of the triples, for the run folder."""
        triples = self.graph.triples
        names = {"entities": list(triples.entities), "relations": list(triples.relations)}
        return {**names, "fingerprints": triples.fingerprints()}

    def make_model(self, settings: ModelSettings, **parts: Any) -> LinkModel:
        sizes = {"num_entities": self.graph.num_entities, "num_relations": self.graph.num_relations}
        model: LinkModel = make_model(settings, **sizes, **({} if self.typed else {"typed": False}), **parts)
        return model

    def objective(self, settings: Any, model: LinkModel) -> LinkObjective:
        return LinkObjective(self.graph, self.edge_type, settings, model)

    @torch.no_grad()
    def states(self, model: LinkModel) -> Tensor:
        """States of all entities, for evaluation."""
        return model.eval().encode(self.edge_index, self.edge_type)

    def blocks(
        self, model: LinkModel, queries: Tensor, splits: Sequence[str] = SPLITS
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Queries [Q, 2] a block at a time: its rows, the scores [b, N], and a mask [b, N] of their known answers.

        Answers are known from the triples of the splits.
        """
        states, known = self.states(model), self.graph.answers_to(queries.cpu(), splits)
        queries = queries.to(self.device)
        for start in range(0, len(queries), _BLOCK):
            rows = slice(start, start + _BLOCK)
            with torch.no_grad():
                scores = model.scores(states, *queries[rows].unbind(1))
            query = torch.repeat_interleave(torch.arange(len(scores)), known.counts[rows])
            first = int(known.ptr[start])
            mask = torch.zeros(scores.shape, dtype=torch.bool)
            mask[query, known.index[first : first + len(query)]] = True
            yield rows, scores, mask.to(self.device)

    @torch.no_grad()
    def ranks(self, model: LinkModel, split: str, states: Tensor | None = None) -> Ranks:
        """The filtered ranks of a split, rows as in its `Ranking`: all tails, then all heads."""
        states, ranking = self.states(model) if states is None else states, self._rankings[split]
        head, relation = ranking.queries.unbind(1)
        if (product := model.product(states, head, relation)) is not None:
            return self._product_ranks(product, split)

        def score(rows: Tensor) -> Tensor:
            return model.scores(states, head[rows], relation[rows])

        counts = rank_scores(score, len(head), self.num_nodes, ranking.query, ranking.target, ranking.known)
        return Ranks(*counts)

    def _product_ranks(self, product: Product, split: str) -> Ranks:
        ranking, (query, candidates, bias, self_bias) = self._rankings[split], product
        targets = ranking.query, ranking.target, ranking.known, self_bias
        return Ranks(*rank_targets(query, candidates, bias, *targets))

    def evaluate(self, model: LinkModel, split: str) -> dict[str, float]:
        """MRR, mean rank and hits of both sides of `valid` or `test`, by each rule for ties."""
        return _metrics(self.ranks(model, split))

    @torch.no_grad()
    def report(self, model: LinkModel, split: str) -> dict[str, Any]:
        """Metrics of both sides, of each side and each relation, and by the other rules for ties.

        A model of several parts is also ranked by the scores of each part alone.
        """
        states, ranking = self.states(model), self._rankings[split]
        ranks = self.ranks(model, split, states)
        parts = model.parts(states, *ranking.queries.unbind(1)) if len(model.scorers) > 1 else {}
        relations = ranks.by(ranking.rel_type.cpu())
        names = self.graph.triples.relations
        return {
            "metrics": _metrics(ranks),
            **{side: _metrics(ranks.select(ranking.side(side))) for side in SIDES},
            **{name: _metrics(self._product_ranks(part.product, split)) for name, part in parts.items()},
            "ties": {tie: ranks.metrics(tie) for tie in _OTHER_TIES},
            "relations": {names[r]: {"ranks": len(part), **_metrics(part)} for r, part in relations.items()},
        }

    @staticmethod
    def score(metrics: dict[str, float]) -> tuple[float, float]:
        """The values that selection compares, larger is better: MRR, then the mean rank."""
        return metrics["mrr"], -metrics["mr"]

    @torch.no_grad()
    def calibrate(self, model: LinkModel) -> dict[str, float]:
        """The temperature whose `log_probabilities` fit the answers of validation best; NaN for scores that are NaN."""
        ranking = self._rankings["valid"]
        sample = torch.linspace(0, len(ranking.query) - 1, min(_CALIBRATED, len(ranking.query))).long().to(self.device)
        queries, target = ranking.queries[ranking.query[sample]], ranking.target[sample]
        loss = torch.zeros(len(_TEMPERATURES))
        for rows, scores, known in self.blocks(model, queries, ("train", "valid")):
            for i, temperature in enumerate(_TEMPERATURES):
                log_probability = log_probabilities(scores / temperature, known)
                loss[i] -= float(log_probability.gather(1, target[rows, None]).sum())
        loss = loss.nan_to_num(torch.inf)
        return {"temperature": _TEMPERATURES[int(loss.argmin())] if loss.isfinite().any() else math.nan}


def log_probabilities(scores: Tensor, known: Tensor) -> Tensor:
    """Log probability of each entity, against itself and all entities that are not known answers.

    Shapes: scores [B, N], known [B, N] → [B, N].
    """
    others = scores.masked_fill(known, -torch.inf).logsumexp(1, keepdim=True)
    return torch.where(known, scores - torch.logaddexp(others, scores), scores - others)


def _metrics(ranks: Ranks) -> dict[str, float]:
    ties = {f"mrr_{tie}": ranks.metrics(tie)["mrr"] for tie in _OTHER_TIES}
    return ranks.metrics() | ties
