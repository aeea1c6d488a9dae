"""Link prediction on one knowledge graph: batches of queries, loss and filtered ranks. No optimiser."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from magna.config.schema import Config, ModelConfig
from magna.data import Answers, KnowledgeGraph, Ranking
from magna.nn.decoder import DECODERS, LINEAR
from magna.nn.link_predictor import Scored
from magna.ops import kvsall_loss, lookups, rank_targets
from magna.tasks.metrics import Ranks, TieRule
from magna.tasks.models import LinkPredictor, make_link_predictor

SIDES = ("head", "tail")
_OTHER_TIES: tuple[TieRule, ...] = ("optimistic", "pessimistic")
_RELATION_SMOOTHING = 1e-3
# The temperature of the scores is looked for among these, on at most so many ranks of validation.
_TEMPERATURES = [16 ** (step / 10) for step in range(-10, 11)]
_CALIBRATED = 1024
_BLOCK = 128  # queries that are scored at a time outside training
# A step that hides its answers takes one query of so many at most: it hides a fifth of the edges then, on average, and
# attention still has something to learn from.
_SHARE = 10


class LinkPrediction:
    """KL between the model's distribution over all entities and the smoothed answers of (head, relation) queries.

    The edges that say an answer of the batch are absent in that step, in both directions: what is asked is not told.

    >>> from magna.data import load_knowledge_graph
    >>> config = Config.from_dict({"task": {"name": "link_prediction"}})
    >>> task = LinkPrediction(load_knowledge_graph("families"), config, torch.device("cpu"))
    >>> sorted(task.evaluate(task.make_model(ModelConfig(hidden_channels=8)), "valid"))
    ['hits@1', 'hits@10', 'hits@3', 'mr', 'mrr', 'mrr_optimistic', 'mrr_pessimistic']
    """

    METRIC = "mrr"

    def __init__(
        self, graph: KnowledgeGraph, config: Config, device: torch.device, ranked: Sequence[str] = ("valid", "test")
    ):
        """`ranked` are the splits that will be: training takes both, and one without triples is an error here."""
        if graph.queries.size(0) == 0:
            raise ValueError(f"{graph.triples.name} has no train triple; allowed: at least one in each split")
        if config.data.control == "random-graph":
            graph = graph.at_random()
        self.graph = graph.to(device)
        self.dataset, self.device = graph.triples.name, device
        self.typed = config.data.control != "no-types"
        self.num_nodes, self.num_edges = graph.num_entities, graph.edge_index.size(1)
        # The same tensors are handed to the model every time, so their sorted `Graph` is built only once.
        self.edge_index, self.edge_type = self.graph.edge_index, self.graph.edge_type if self.typed else None
        self._rankings = {split: graph.ranking(split).to(device) for split in ranked}
        self._take(config)

    def _take(self, config: Config) -> None:
        self.settings, self.precision = config.task, config.train.precision
        queries = self.graph.queries.size(0)
        self.batch_size = min(config.task.batch_size, queries)
        if config.task.mask_answers and config.model.num_layers > 0:
            least = DECODERS[config.model.decoder].LEAST_BATCH
            self.batch_size = min(self.batch_size, max(-(-queries // _SHARE), least))
        # Head, relation, number of answers and place of the first one. The last columns are for -1, -2, …, no query:
        # queries from everywhere, but without answers, so that a decoder that norms a batch sees the usual mixture, and
        # not thousands of one entity wait for each other when gradients are added up.
        answers = self.graph.answers
        asked = torch.cat([self.graph.queries.T, torch.stack([answers.counts, answers.ptr[:-1]])])
        spares = asked[:, torch.arange(self.batch_size, device=self.device) * queries // self.batch_size]
        spares[2] = 0
        self._queries = torch.cat([asked, spares], dim=1)
        # The most answers that a batch can have.
        self._capacity = int(self.graph.answers.counts.topk(self.batch_size).values.sum())

    def with_config(self, config: Config) -> LinkPrediction:
        """The task on the same data with the loss of another config."""
        other = copy.copy(self)
        other._take(config)
        return other

    @property
    def size(self) -> str:
        triples = self.graph.triples
        return (
            f"{self.num_nodes:,} entities, {self.graph.num_relations} relations, {len(triples.train):,} train triples"
        )

    @property
    def data_bytes(self) -> int:
        """What the data takes on the device; the edges are kept sorted by target and by source."""
        graph = self.graph
        parts = [graph.edge_type, graph.edge_query, graph.reverse_query, graph.queries, self._queries, *graph.answers]
        for ranking in self._rankings.values():
            parts += [ranking.queries, ranking.query, ranking.target, ranking.rel_type, *ranking.known]
        return 4 * self.edge_index.nbytes + sum(part.nbytes for part in parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What one should know of the data, and of what it does to a setting."""
        queries, asked = self.graph.queries.size(0), self.settings.batch_size
        if self.batch_size == min(asked, queries):
            return self.graph.triples.notes
        return (
            *self.graph.triples.notes,
            f"task.batch_size is {asked:,} and training has {queries:,} queries: a step takes {self.batch_size:,}, as "
            "it hides the edges that tell its answers (task.mask_answers) and is to leave most of them",
        )

    @property
    def schema(self) -> dict[str, Any]:
        """What a run folder keeps: the names behind the rows of the tables, and which triples there were."""
        triples = self.graph.triples
        names = {"entities": list(triples.entities), "relations": list(triples.relations)}
        return {**names, "fingerprints": triples.fingerprints()}

    def make_model(self, config: ModelConfig) -> LinkPredictor:
        """A fresh model of the right size for this data."""
        model = make_link_predictor(config, self.graph.num_entities, self.graph.num_relations, typed=self.typed)
        if self.batch_size < model.decoder.LEAST_BATCH:
            raise ValueError(
                f"task.batch_size is {self.batch_size} with model.decoder {config.decoder!r}, which norms the queries "
                f"of a step by each other; allowed: {model.decoder.LEAST_BATCH} and above"
            )
        self._check_guess("task.relation_prediction", self.settings.relation_prediction, model, config.decoder)
        if model.skip is not None:
            asked = self.settings.skip_relation_prediction
            self._check_guess("task.skip_relation_prediction", asked, model.skip, config.decoder)
        return model

    def _check_guess(self, setting: str, asked: float, model: LinkPredictor, decoder: str) -> None:
        """Whether the relation can be guessed by these embeddings and this decoder, where that is asked for."""
        entities, relations = model.entity_table.size(1), model.relation_table.size(1)
        guess = self.settings.relation_guess
        if asked > 0 and guess == "embeddings" and entities != relations:
            raise ValueError(
                f"task.relation_guess is 'embeddings' with entities of width {entities} and relations of width "
                f"{relations}; allowed: equal widths (model.relation_channels), or 'states'"
            )
        if asked > 0 and guess == "states" and decoder not in LINEAR:
            raise ValueError(
                f"{setting} with model.decoder {decoder!r}, which cannot score all relations of a pair; allowed: "
                f"{', '.join(LINEAR)}, or task.relation_guess 'embeddings'"
            )

    @property
    def num_batches(self) -> int:
        return -(-self.graph.queries.size(0) // self.batch_size)

    def batches(self, epoch: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
        """The training queries by number, each once, in an order that epoch and seed decide alone.

        All batches have one size; -1, -2, … stand in the places that are left in the last one. Nothing waits for the
        device.
        """
        chance = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(self.graph.queries.size(0), generator=chance)
        places = self.num_batches * self.batch_size
        padded = torch.arange(-places, 0, pin_memory=self.device.type == "cuda")
        padded[: len(order)] = order
        return padded.to(self.device, non_blocking=True).view(-1, self.batch_size).unbind()

    def loss(self, model: Any, batch: Tensor, epoch: int | Tensor = 0) -> Tensor:
        """The loss of a batch of queries by a link predictor, or what stands for one; nothing waits for the device.

        Embeddings past the encoder have a loss of their own beside it, without smoothing: neither sees the scores of
        the other, which are added afterwards.
        """
        settings = self.settings
        head, relation, count, first = self._queries[:, batch]
        weight = (count if settings.query_weight == "answers" else count > 0).to(torch.float32)
        # What is asked of a triple, by the encoder's scores and by those past it: two weights each.
        asked = (settings.relation_prediction, settings.n3), (settings.skip_relation_prediction, settings.skip_n3)
        tail = None
        if any(max(pair) > 0 for pair in asked):
            # One answer of each query, drawn at random, stands for all of them.
            tail = self.graph.answers.index[first + (torch.rand_like(weight) * count).long()]
        scored = model(self.edge_index, self.edge_type, head, relation, tail, edge_mask=self._not_told(batch))
        answers = self._answers(first, count)
        loss = self._answer_loss(scored, answers, weight, settings.label_smoothing)
        if scored.past is not None:
            loss = loss + self._answer_loss(scored.past, answers, weight, label_smoothing=0.0)
        if tail is None:
            return loss
        share = weight / weight.sum()
        parts = [(model, scored)] if scored.past is None else [(model, scored), (model.skip, scored.past)]
        for (predictor, part), (guessed, normed) in zip(parts, asked, strict=False):
            heads, rows, tails, relations = part.triples
            if guessed > 0:
                if settings.relation_guess == "states":
                    scores = predictor.decoder.relation_scores(heads, tails, relations)
                else:  # from the embeddings, as e_h ∘ e_t against each relation's
                    _, h, t = lookups(predictor.entity_table, head, tail)
                    scores = (h * t) @ predictor.relation_table.T
                loss = loss + guessed * _cross_entropy(scores, relation, share)
            if normed > 0:
                norms = sum(
                    predictor.decoder.magnitude(factor.float()).pow(3).sum(1) for factor in (heads, rows, tails)
                )
                loss = loss + normed * (share * norms).sum()
        return loss

    def _answers(self, first: Tensor, count: Tensor) -> Answers:
        """The answers of a batch, so many of each query, in as many places as a batch can fill: shapes stay alike."""
        ptr = count.new_zeros(len(count) + 1)
        torch.cumsum(count, 0, out=ptr[1:])
        place = torch.arange(self._capacity, device=count.device)
        row = torch.searchsorted(ptr[1:], place, right=True).clamp_(max=len(count) - 1)
        index = (first - ptr[:-1])[row].add_(place)
        return Answers(ptr, self.graph.answers.index[index.clamp_(max=len(self.graph.answers.index) - 1)])

    def _answer_loss(self, scored: Any, answers: Answers, weight: Tensor, label_smoothing: float) -> Tensor:
        # States of bfloat16 stay as they are; else float32, and products are rounded where those of the model are.
        dtype = torch.bfloat16 if scored.candidates.dtype == torch.bfloat16 else torch.float32
        rounded = torch.is_autocast_enabled(self.device.type)
        return kvsall_loss(
            scored.query.to(dtype),
            scored.candidates.to(dtype),
            scored.bias,
            answers,
            label_smoothing=label_smoothing,
            weight=weight,
            own=scored.own,
            precision="bfloat16" if rounded else "float32",
            validate=False,
        )

    def _not_told(self, batch: Tensor) -> Tensor | None:
        """[E]: the edges that say no answer of the batch; a self-loop says none."""
        if not self.settings.mask_answers:
            return None
        # The last place is for -1: no query, of the batch or of a self-loop; those before it are for the batch alone.
        free = torch.ones(self._queries.size(1), dtype=torch.bool, device=batch.device)
        free.index_fill_(0, batch, False)
        free[-1:].fill_(True)
        return free[self.graph.edge_query] & free[self.graph.reverse_query]

    @torch.no_grad()
    def scored(self, model: nn.Module, split: str) -> Scored:
        """The scores of the queries of a split with all entities."""
        model.eval()
        return model(self.edge_index, self.edge_type, *self._rankings[split].queries.unbind(1))

    def ranks(self, scored: Scored, split: str) -> Ranks:
        """The filtered ranks of a split, rows as in its `Ranking`: all tails, then all heads."""
        ranking, scored = self._rankings[split], scored.whole()
        return Ranks(
            *rank_targets(
                scored.query,
                scored.candidates,
                scored.bias,
                ranking.query,
                ranking.target,
                ranking.known,
                scored.own,
            )
        )

    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """MRR, mean rank and hits on both sides of `valid` or `test`; ties count half, or as said."""
        return _metrics(self.ranks(self.scored(model, split), split))

    def report(self, model: nn.Module, split: str) -> dict[str, Any]:
        """The same beside each side and each relation alone, and all metrics by the other rules for ties.

        Where embeddings go past the encoder, also by the encoder's scores alone and by theirs.
        """
        scored, ranking = self.scored(model, split), self._rankings[split]
        ranks = self.ranks(scored, split)
        parts = {} if scored.past is None else {"encoder": scored._replace(past=None), "skip": scored.past}
        relations = ranks.by(ranking.rel_type.cpu())
        names = self.graph.triples.relations
        return {
            "metrics": _metrics(ranks),
            **{side: _metrics(ranks.select(_rows(ranking, side))) for side in SIDES},
            **{name: _metrics(self.ranks(part, split)) for name, part in parts.items()},
            "ties": {tie: ranks.metrics(tie) for tie in _OTHER_TIES},
            "relations": {names[r]: {"ranks": len(part), **_metrics(part)} for r, part in relations.items()},
        }

    @staticmethod
    def score(metrics: dict[str, float]) -> tuple[float, float]:
        """What selection compares, larger is better: MRR, and the mean rank where MRRs are equal."""
        return metrics["mrr"], -metrics["mr"]

    @torch.no_grad()
    def calibrate(self, model: nn.Module) -> dict[str, float]:
        """The temperature with which the softmax of `log_probabilities` gives the answers of validation most.

        NaN where it gives them no number.
        """
        model.eval()
        ranking = self._rankings["valid"]
        rows = torch.linspace(0, len(ranking.query) - 1, min(_CALIBRATED, len(ranking.query))).long().to(self.device)
        queries, target = ranking.queries[ranking.query[rows]], ranking.target[rows]
        scored = model(self.edge_index, self.edge_type, *queries.unbind(1))
        known = self.graph.answers_to(queries.cpu(), ("train", "valid"))
        loss = torch.zeros(len(_TEMPERATURES))
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            scores = scored.part(part).scores()
            told = told_answers(known, part, scores.shape).to(self.device)
            for i, temperature in enumerate(_TEMPERATURES):
                probable = log_probabilities(scores / temperature, told)
                loss[i] -= float(probable.gather(1, target[part, None]).sum())
        loss = loss.nan_to_num(torch.inf)
        return {"temperature": _TEMPERATURES[int(loss.argmin())] if loss.isfinite().any() else math.nan}


def _cross_entropy(scores: Tensor, relation: Tensor, share: Tensor) -> Tensor:
    """Of the relation of each query among all, slightly smoothed; each query counts its share.

    Torch's own takes three dozen passes for the smoothing and the shares, forth and back.
    """
    number = scores.size(1)
    told = (share * (_RELATION_SMOOTHING / number))[:, None].repeat(1, number)
    told.scatter_add_(1, relation[:, None], (share * (1 - _RELATION_SMOOTHING))[:, None])
    return -(told * scores.float().log_softmax(1)).sum()


def told_answers(known: Answers, part: slice, shape: torch.Size) -> Tensor:
    """[B, N]: the answers of some queries that are known."""
    counts = known.counts[part]
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    first = int(known.ptr[part][0])
    told = torch.zeros(shape, dtype=torch.bool)
    told[rows, known.index[first : first + len(rows)]] = True
    return told


def log_probabilities(scores: Tensor, told: Tensor) -> Tensor:
    """Log p of each entity: against all that are not known to be answers, and itself.

    Shapes: scores [B, N], told [B, N] → [B, N].
    """
    others = scores.masked_fill(told, -torch.inf).logsumexp(1, keepdim=True)
    return torch.where(told, scores - torch.logaddexp(others, scores), scores - others)


def _metrics(ranks: Ranks) -> dict[str, float]:
    ties = {f"mrr_{tie}": ranks.metrics(tie)["mrr"] for tie in _OTHER_TIES}
    return ranks.metrics() | ties


def _rows(ranking: Ranking, side: str) -> Tensor:
    return torch.arange(len(ranking.query))[ranking.side(side)]
