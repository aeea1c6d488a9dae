"""Training of a link model: batches of queries, and their loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from magna.config.layers import NegativeSampling
from magna.data import Answers, KnowledgeGraph
from magna.errors import ArgumentError
from magna.nn.link_model import LinkModel, Product, Scored
from magna.ops import kvsall_loss
from magna.ops.answers import entries

_RELATION_SMOOTHING = 1e-3
# A step that masks its answers takes one query of so many at most. On average it then masks a fifth of the edges, and
# attention still has something to learn from.
_SHARE = 10


def batch_size(graph: KnowledgeGraph, settings: Any, model: Any) -> int:
    """Queries of a training step; `model` is a link model or its options."""
    queries = len(graph.queries)
    size: int = min(settings.batch_size, queries)
    if settings.mask_answers and getattr(model, "num_layers", 0) > 0:
        size = min(size, max(-(-queries // _SHARE), 2))  # one query alone could not be normed
    return size


class LinkObjective:
    """The loss of a link model: KL between the smoothed answers of queries and its softmax over all entities.

    Edges that reveal an answer of the batch are masked, in both directions. Shallow embeddings have their own loss
    without smoothing: neither part sees the scores of the other. Nothing waits for the device.
    """

    def __init__(self, graph: KnowledgeGraph, edge_type: Tensor | None, settings: Any, model: LinkModel) -> None:
        self.settings, self.edge_type = settings, edge_type
        self.edge_index, self.answers = graph.edge_index, graph.answers
        self.batch_size = batch_size(graph, settings, model)
        # Weights of each part in the loss: label smoothing, relation prediction, N3.
        self._weights = {
            "encoder": (settings.label_smoothing, settings.relation_prediction, settings.n3),
            "skip": (0.0, settings.skip_relation_prediction, settings.skip_n3),
        }
        self._check(model)
        self._edges = (graph.edge_query, graph.reverse_query) if settings.mask_answers and model.num_layers else None
        # Head, relation, number of answers and place of the first one. The last columns, for -1, -2, …, fill a batch
        # up: queries without answers from everywhere, so that a norm over the batch sees the usual mixture, and the
        # gradients of thousands of them do not meet at one entity.
        self._queries_in_all = queries = len(graph.queries)
        columns = torch.cat([graph.queries.T, torch.stack([self.answers.counts, self.answers.ptr[:-1]])])
        spares = columns[:, torch.arange(self.batch_size, device=columns.device) * queries // self.batch_size]
        spares[2] = 0
        self._queries = torch.cat([columns, spares], dim=1)
        self._num_entities = graph.num_entities
        query, entity = entries(*self.answers)
        self._known = query * self._num_entities + entity if model.sampling is not None else query[:0]  # increasing
        # The most answers that a batch can have.
        self._capacity = int(self.answers.counts.topk(self.batch_size).values.sum())

    def _check(self, model: LinkModel) -> None:
        settings, least = self.settings, model.least_batch
        if model.sampling is not None and settings.label_smoothing > 0:
            raise ArgumentError("task.label_smoothing", settings.label_smoothing, "0 with model.negatives above 0")
        if self.batch_size < least:
            allowed = f"{least} or more with a decoder that norms the queries of a step"
            raise ArgumentError("task.batch_size", self.batch_size, allowed)
        for part, (_, guess, n3) in self._weights.items():
            prefix = "" if part == "encoder" else f"{part}_"
            scorer = model.scorers.get(part)
            for name, weight in ((f"task.{prefix}relation_prediction", guess), (f"task.{prefix}n3", n3)):
                if weight > 0 and scorer is None:
                    raise ArgumentError(name, weight, "0 with a model without this part")
            if scorer is None or guess == 0:
                continue
            widths = scorer.entity_table.size(1), scorer.relation_table.size(1)
            if settings.relation_guess == "embeddings" and widths[0] != widths[1]:
                allowed = f"'states' with entities of width {widths[0]} and relations of width {widths[1]}"
                raise ArgumentError("task.relation_guess", "embeddings", allowed, "equal widths")
            if settings.relation_guess == "states" and not scorer.decoder.GUESSES:
                allowed = f"0 with {type(scorer.decoder).__name__}, which cannot score all relations of a pair"
                hint = "task.relation_guess='embeddings'"
                raise ArgumentError(f"task.{prefix}relation_prediction", guess, allowed, hint)

    @property
    def num_batches(self) -> int:
        return -(-self._queries_in_all // self.batch_size)

    def batches(self, epoch: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
        """Numbers of the training queries, each once, in an order that depends on epoch and seed alone.

        All batches have one size; -1, -2, … fill up the last one.
        """
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(self._queries_in_all, generator=generator)
        places = self.num_batches * self.batch_size
        padded = torch.arange(-places, 0, pin_memory=self.edge_index.is_cuda)
        padded[: len(order)] = order
        return padded.to(self.edge_index.device, non_blocking=True).view(-1, self.batch_size).unbind()

    def loss(self, model: LinkModel, batch: Tensor, epoch: int | Tensor = 0) -> Tensor:  # noqa: ARG002 (other tasks)
        settings = self.settings
        head, relation, count, first = self._queries[:, batch]
        weight = (count if settings.query_weight == "answers" else count > 0).to(torch.float32)
        tail, sampling = None, model.sampling
        if sampling is not None or any(max(extra) > 0 for _, *extra in self._weights.values()):
            # One answer of each query, drawn at random, stands for all of them.
            tail = self.answers.index[first + (torch.rand_like(weight) * count).long()]
        states = model.encode(self.edge_index, self.edge_type, edge_mask=self._edge_mask(batch))
        if sampling is not None and tail is not None:
            return self._sampled_loss(partial(model.scores, states, head, relation), batch, tail, weight, sampling)
        answers = self._answers(first, count)
        parts = model.parts(states, head, relation, tail)
        if not parts:
            product, smoothing = model.product(states, head, relation), settings.label_smoothing
            if product is not None:
                return self._product_loss(product, answers, weight, smoothing)
            return dense_loss(model.scores(states, head, relation), answers, weight, smoothing)
        losses = [
            self._product_loss(part.product, answers, weight, self._weights[name][0]) for name, part in parts.items()
        ]
        if tail is not None:
            share = weight / weight.sum()
            for name, part in parts.items():
                losses += self._extra_losses(part, relation, share, *self._weights[name][1:])
        return reduce(torch.add, losses)

    def _sampled_loss(
        self,
        scores: Callable[[Tensor], Tensor],
        batch: Tensor,
        tail: Tensor,
        weight: Tensor,
        sampling: NegativeSampling,
    ) -> Tensor:
        """-log σ(γ + s) of an answer and -log σ(-γ - s) of drawn entities, weighted by their scores."""
        drawn = torch.randint(self._num_entities, (len(batch), sampling.negatives), device=batch.device)
        margins = scores(torch.cat([tail[:, None], drawn], 1)) + sampling.margin
        code = batch[:, None] * self._num_entities + drawn
        known = self._known[torch.searchsorted(self._known, code).clamp_max(len(self._known) - 1)] == code
        wrong = margins[:, 1:].masked_fill(known, -1e9)
        share = (wrong.detach() * sampling.adversarial).softmax(1)
        losses = softplus(-margins[:, 0]) + (share * softplus(wrong)).sum(1)
        return (weight / weight.sum() * losses).sum() / 2

    def _extra_losses(self, part: Scored, relation: Tensor, share: Tensor, guess: float, n3: float) -> Iterator[Tensor]:
        if guess > 0:
            scores = part.relation_scores(self.settings.relation_guess)
            yield guess * _cross_entropy(scores, relation, share)
        if n3 > 0:
            yield n3 * (share * part.n3()).sum()

    def _product_loss(self, product: Product, answers: Answers, weight: Tensor, label_smoothing: float) -> Tensor:
        # States of bfloat16 stay as they are; else float32, and products are rounded where those of the model are.
        dtype = torch.bfloat16 if product.candidates.dtype == torch.bfloat16 else torch.float32
        rounded = torch.is_autocast_enabled(weight.device.type)
        return kvsall_loss(
            product.query.to(dtype),
            product.candidates.to(dtype),
            product.bias,
            answers,
            label_smoothing=label_smoothing,
            weight=weight,
            self_bias=product.self_bias,
            precision="bfloat16" if rounded else "float32",
            validate=False,
        )

    def _answers(self, first: Tensor, count: Tensor) -> Answers:
        """The answers of a batch, in as many places as a batch can fill: all batches have tensors of one size."""
        ptr = count.new_zeros(len(count) + 1)
        torch.cumsum(count, 0, out=ptr[1:])
        place = torch.arange(self._capacity, device=count.device)
        row = torch.searchsorted(ptr[1:], place, right=True).clamp_(max=len(count) - 1)
        index = (first - ptr[:-1])[row].add_(place)
        return Answers(ptr, self.answers.index[index.clamp_(max=len(self.answers.index) - 1)])

    def _edge_mask(self, batch: Tensor) -> Tensor | None:
        """Mask [E] of the edges that reveal no answer of the batch; a self-loop reveals none."""
        if self._edges is None:
            return None
        # The last place is for -1: no query, of the batch or of a self-loop; those before it are for the batch alone.
        free = torch.ones(self._queries.size(1), dtype=torch.bool, device=batch.device)
        free.index_fill_(0, batch, False)
        free[-1:].fill_(True)
        return free[self._edges[0]] & free[self._edges[1]]


def dense_loss(scores: Tensor, answers: Answers, weight: Tensor, label_smoothing: float) -> Tensor:
    """The same loss of scores [B, N] of any form: the weighted mean over the queries of KL(t ‖ softmax(scores))."""
    # Ignored entries have entity -1: a column at the end that is cut off.
    labels = scores.new_zeros(scores.size(0), scores.size(1) + 1)
    labels.index_put_(entries(*answers), labels.new_ones(()))
    target = normalize(labels[:, :-1] * (1 - label_smoothing) + label_smoothing / scores.size(1), p=1)
    divergence = (torch.xlogy(target, target) - target * scores.log_softmax(1)).sum(1)
    weight = weight * (answers.counts > 0)
    return (weight / weight.sum() * divergence).sum()


def _cross_entropy(scores: Tensor, relation: Tensor, share: Tensor) -> Tensor:
    """Cross-entropy of the relation of each query among all, slightly smoothed; each query counts its share.

    Torch's own makes three dozen passes for the smoothing and the shares, forward and backward.
    """
    number = scores.size(1)
    target = (share * (_RELATION_SMOOTHING / number))[:, None].repeat(1, number)
    target.scatter_add_(1, relation[:, None], (share * (1 - _RELATION_SMOOTHING))[:, None])
    return -(target * scores.float().log_softmax(1)).sum()
