"""Link prediction on one knowledge graph: filtered ranks, temperature, and the loss of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from magna.nn.scaling import FeatureScaling
from magna.ops import rank_scores, rank_targets
from magna.tasks.calibration import fit_temperature, reliability
from magna.tasks.link_objective import LinkObjective, batch_size
from magna.tasks.metrics import Ranks, TieRule
from magna.typing import Control

SIDES = ("head", "tail")
_OTHER_TIES: tuple[TieRule, ...] = ("optimistic", "pessimistic")
_CALIBRATED = 1024  # ranks that probabilities are fitted to, and judged by
_TOLERANCE = 1e-3  # of the temperature
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

    metric, SHARES_BATCH = LinkTask.METRIC, LinkTask.SHARES_BATCH
    scaling: FeatureScaling | None = None  # entities have no features

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
        sizes: dict[str, Any] = {"num_entities": self.graph.num_entities, "num_relations": self.graph.num_relations}
        if not self.typed:
            sizes["typed"] = False
        model: LinkModel = make_model(settings, **sizes, **parts)
        return model

    def objective(self, settings: Any, model: LinkModel) -> LinkObjective:
        return LinkObjective(self.graph, self.edge_type, settings, model)

    @torch.no_grad()
    def states(self, model: LinkModel) -> Tensor:
        """States of all entities, for evaluation."""
        return model.eval().encode(self.edge_index, self.edge_type)

    def blocks(
        self,
        model: LinkModel,
        queries: Tensor,
        splits: Sequence[str] = SPLITS,
        size: int = _BLOCK,
        states: Tensor | None = None,
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Queries [Q, 2] a block at a time: its rows, the scores [b, N], and a mask [b, N] of their known answers.

        Answers are known from the triples of the splits; `size` is the largest b.
        """
        states = self.states(model) if states is None else states
        known = self.graph.answers_to(queries.cpu(), splits)
        queries = queries.to(self.device)
        for start in range(0, len(queries), size):
            rows = slice(start, start + size)
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

    def evaluate(self, model: LinkModel, split: str, _: Mapping[str, Any] | None = None) -> dict[str, float]:
        """MRR, mean rank and hits of both sides of `valid` or `test`, by each rule for ties."""
        return _metrics(self.ranks(model, split))

    @torch.no_grad()
    def report(self, model: LinkModel, split: str, calibration: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Metrics of both sides, of each side and each relation, and by the other rules for ties.

        With a calibration also the reliability of its probabilities.

        A model of several parts is also ranked by the scores of each part alone.
        """
        states, ranking = self.states(model), self._rankings[split]
        ranks = self.ranks(model, split, states)
        parts = model.parts(states, *ranking.queries.unbind(1)) if len(model.scorers) > 1 else {}
        relations = ranks.by(ranking.rel_type.cpu())
        names = self.graph.triples.relations
        honest = {}
        if calibration is not None:
            honest = {"calibration": reliability(*self.confidences(model, split, calibration.get("temperature", 1.0)))}
        return {
            "metrics": _metrics(ranks),
            **{side: _metrics(ranks.select(ranking.side(side))) for side in SIDES},
            **{name: _metrics(self._product_ranks(part.product, split)) for name, part in parts.items()},
            "ties": {tie: ranks.metrics(tie) for tie in _OTHER_TIES},
            **honest,
            "relations": {names[r]: {"ranks": len(part), **_metrics(part)} for r, part in relations.items()},
        }

    @staticmethod
    def score(metrics: dict[str, float]) -> tuple[float, float]:
        """The values that selection compares, larger is better: MRR, then the mean rank."""
        return metrics["mrr"], -metrics["mr"]

    @torch.no_grad()
    def calibrate(self, model: LinkModel) -> dict[str, Any]:
        """The temperature whose `log_probabilities` fit the answers of validation best; NaN for scores that are NaN."""
        queries, target = self._sample("valid")
        states = self.states(model)

        def derivatives(scale: float) -> tuple[float, float]:
            sums = torch.zeros(2, dtype=torch.float64)
            for rows, scores, known in self.blocks(model, queries, ("train", "valid"), states=states):
                answer = scores.gather(1, target[rows, None])
                # The target against all entities that are not known answers; a known one weighs nothing.
                rivals = scores.masked_fill(known, -torch.inf).scatter(1, target[rows, None], answer)
                shares = (scale * rivals).softmax(1)
                distance = torch.where(rivals.isinf(), 0.0, scores - answer)
                mean = (shares * distance).sum(1)
                variance = (shares * (distance - mean[:, None]).square()).sum(1)
                sums += torch.stack([mean.double().sum(), variance.double().sum()]).cpu()
            return float(sums[0]), float(sums[1])

        return {"temperature": fit_temperature(derivatives, _TOLERANCE)}

    @torch.no_grad()
    def confidences(self, model: LinkModel, split: str, temperature: float) -> tuple[Tensor, Tensor]:
        """Probability of the best unknown answer of some queries of a split, and whether the split has it."""
        earlier: tuple[str, ...] = ("train",) if split == "valid" else ("train", "valid")
        queries = torch.unique(self._sample(split)[0], dim=0)
        truth = self.graph.answers_to(queries.cpu(), (split,))
        probability, right = [], []
        for rows, scores, known in self.blocks(model, queries, earlier):
            logs = log_probabilities(scores.double() / temperature, known).masked_fill(known, -torch.inf)
            best, entity = logs.max(1)
            probability.append(best.exp().cpu())
            counts, first = truth.counts[rows], int(truth.ptr[rows.start])
            query = torch.repeat_interleave(torch.arange(len(scores)), counts)
            is_answer = truth.index[first : first + len(query)] == entity.cpu()[query]
            right.append(torch.zeros(len(scores)).index_add_(0, query, is_answer.float()) > 0)
        return torch.cat(probability), torch.cat(right)

    def _sample(self, split: str) -> tuple[Tensor, Tensor]:
        """Queries [n, 2] and answers [n] of at most 1,024 ranks of a split, evenly over it."""
        ranking = self._rankings[split]
        sample = torch.linspace(0, len(ranking.query) - 1, min(_CALIBRATED, len(ranking.query))).long().to(self.device)
        return ranking.queries[ranking.query[sample]], ranking.target[sample]


def log_probabilities(scores: Tensor, known: Tensor) -> Tensor:
    """Log probability of each entity, against itself and all entities that are not known answers.

    Shapes: scores [B, N], known [B, N] → [B, N].
    """
    others = scores.masked_fill(known, -torch.inf).logsumexp(1, keepdim=True)
    return torch.where(known, scores - torch.logaddexp(others, scores), scores - others)


def _metrics(ranks: Ranks) -> dict[str, float]:
    ties = {f"mrr_{tie}": ranks.metrics(tie)["mrr"] for tie in _OTHER_TIES}
    return ranks.metrics() | ties
