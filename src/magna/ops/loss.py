"""The loss over all entities, walked in blocks: B × N scores are never stored.

Matrix products are torch's own. The steps between them are in `loss_torch.py`, in plain PyTorch, and in
`triton/kvsall.py`, in one pass over a block. `triton/kvsall_products.py` makes the scores of bfloat16 factors itself
and never stores them. The backward pass computes the scores of each block again.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.ops import checks, reference
from magna.ops.answers import (
    Answers,
    Factors,
    Scanned,
    SelfBias,
    check_answers,
    check_block,
    check_products,
    check_self_bias,
)
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import accumulator, add_product, as_they_come, cannot_run, product, why_not
from magna.ops.loss_torch import choose_block as choose_block
from magna.typing import one_of

LossBackend = Literal["auto", "reference", "blocked", "triton"]
Precision = Literal["float32", "bfloat16"]

_STEPS = {"blocked": "magna.ops.loss_torch", "triton": "magna.ops.triton.kvsall"}


def kvsall_loss(
    query: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    answers: Answers,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    self_bias: SelfBias | None = None,
    precision: Precision = "float32",
    block: int | None = None,
    backend: LossBackend = "auto",
    validate: bool = True,
) -> Tensor:
    r"""KL divergence with label smoothing between the answers of queries and the softmax over all entities.

    s = query @ candidates.T + bias; t = (labels (1 − γ) + γ / N) / (n (1 − γ) + γ) for a query with n answers; the loss
    is Σ_b w_b KL(t_b ‖ softmax(s_b)) / Σ_b w_b. The entities are walked in blocks, forward and backward, so B × N
    scores are never stored. Queries weighted by their number of answers give the mean over triples.

    A query without answers is ignored, so a short batch may be filled up with such queries; entries of `index` from
    ptr[-1] on are ignored too. With both, batches have one size and a training step can be a CUDA graph.

    Args:
        query: one vector per query, float64, float32 or bfloat16.
        candidates: one vector per entity, of the same type.
        bias: one number per entity, or None.
        answers: ptr and index: the answers of query b are index[ptr[b]:ptr[b + 1]], increasing, each once.
        label_smoothing: γ, 0 to 1.
        weight: w, 0 and above; None counts all queries the same. It gets no gradient.
        self_bias: one entity of each query and a bias of its score, such as the head of the query itself.
        precision: "float32" multiplies as torch is set to (TF32 where allowed; float64 stays float64); "bfloat16"
            rounds both factors to bfloat16 and adds up in float32, on the GPU's tensor cores.
        block: entities at a time; None chooses by the size of a block of scores.
        backend: "reference" stores all scores, "blocked" is plain PyTorch, "triton" runs on the GPU; "auto" chooses.
        validate: look at the values of `answers` and `weight` (waits for the GPU).

    Shapes: query [B, C], candidates [N, C], bias [N], ptr [B + 1], index [A], weight [B] → scalar.

    >>> answers = torch.tensor([0, 2]), torch.tensor([0, 1])
    >>> round(kvsall_loss(torch.zeros(1, 3), torch.zeros(4, 3), None, answers).exp().item(), 6)
    2.0
    """
    one_of("backend", backend, LossBackend)
    check_products(query, candidates, bias)
    validate, sizes = validate and checks.values_readable(query), (query.size(0), candidates.size(0))
    check_answers("answers", answers, sizes, query.device, validate)
    check_self_bias(self_bias, sizes, query.device, validate)
    check_block(block)
    _check_options(query, label_smoothing, weight, precision)
    if validate and weight is not None and not bool((weight >= 0).all()):
        raise ArgumentError("an entry of weight", float(weight[~(weight >= 0)][0]), "0 and above")
    chosen = choose_backend(backend, query.device)
    if chosen == "reference":
        if precision == "bfloat16":
            query, candidates = query.bfloat16().float(), candidates.bfloat16().float()
        with as_they_come(query.device):
            return reference.kvsall_loss(
                query, candidates, bias, answers, label_smoothing=label_smoothing, weight=weight, self_bias=self_bias
            )
    ptr, index = answers
    weight = None if weight is None else weight.detach()
    targets = kvsall_targets_op(
        ptr, index, weight, candidates.size(0), float(label_smoothing), accumulator(query.dtype), chosen
    )
    if block is None:
        multiplied = torch.bfloat16 if precision == "bfloat16" else query.dtype
        block = choose_block(query.size(0), candidates.size(0), query.device, multiplied)
    entity, entity_bias = self_bias or (None, None)
    options = precision, block, chosen
    return kvsall_loss_op(query, candidates, bias, ptr, *targets, entity, entity_bias, *options)[0]


def _check_options(query: Tensor, label_smoothing: float, weight: Tensor | None, precision: Precision) -> None:
    one_of("precision", precision, Precision)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError("label_smoothing", label_smoothing, "0 to 1")
    if precision == "bfloat16" and query.dtype == torch.float64:
        raise ArgumentError("query", query, "torch.float32 with precision 'bfloat16'", ".float()")
    if weight is not None:
        checks.alike("weight", weight, None, query.shape[:1], query.device, "one per query")


def choose_backend(backend: LossBackend, device: torch.device) -> str:
    """The implementation that runs: for "auto" Triton's on the GPU where it can run, else plain PyTorch in blocks."""
    if backend == "triton" or (backend == "auto" and device.type == "cuda"):
        reason = why_not("triton", device)
        if reason is None:
            return "triton"
        if backend == "triton":
            raise cannot_run(backend, reason)
    return "blocked" if backend == "auto" else backend


def _targets_shape(ptr: Tensor, index: Tensor, *options: Any) -> tuple[Tensor, ...]:
    targets = ptr.new_empty(4, ptr.numel() - 1, dtype=options[-2])
    return index.new_empty(index.shape), index.new_empty(index.shape), targets


@fused_op("magna::kvsall_targets", _targets_shape)
def kvsall_targets_op(
    ptr: Tensor,
    index: Tensor,
    weight: Tensor | None,
    num_entities: int,
    label_smoothing: float,
    dtype: torch.dtype,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The answers' `entries`, and `targets` [4, B], the numbers of a query that need no score.

    These are its share, the excess of an answer's target over the others', the others' target, and Σ_j t_j log t_j.
    """
    steps = _steps(backend)
    row, column = steps.entries(ptr, index)
    return row, column, steps.targets(ptr, weight, num_entities, label_smoothing, dtype)


def _loss_shape(
    query: Tensor, candidates: Tensor, bias: Any, ptr: Tensor, row: Tensor, column: Tensor, targets: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(targets.new_empty(size) for size in ((), len(query), len(query), len(row)))


@fused_op("magna::kvsall_loss", _loss_shape)
def kvsall_loss_op(
    query: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    ptr: Tensor,
    row: Tensor,
    column: Tensor,
    targets: Tensor,
    entity: Tensor | None,
    entity_bias: Tensor | None,
    precision: str,
    block: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Σ_b share_b KL(t_b ‖ softmax(s_b)), and for the backward pass: largest scores, Σ_j exp(s_j − largest), answers'.

    Not their logsumexp in one number: with scores of 20 and above, rounding it puts all probabilities off by 1e-6.

    KL = Σ_j t_j log t_j + log Σ_j exp s_j − Σ_j t_j s_j. As t is the same for all entities that are no answers, the
    last sum is that over the answers and Σ_j s_j = q · Σ_j e_j + Σ_j b_j.
    """
    steps, dtype = _steps(backend), targets.dtype
    q, e, b = _operands(query, candidates, bias, precision, block, dtype)
    self_bias = _self_bias(entity, entity_bias, dtype)
    factors = Factors(q, e, b, self_bias, (row, column))
    scanned = steps.scan(factors, block)
    return steps.loss(factors, steps.column_sums(e, dtype), bias, scanned, ptr, targets), *scanned


def _loss_backward_shape(
    grad: Tensor, query: Tensor, candidates: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    targets, entity = rest[2:4]
    grad_bias = targets.new_empty(0) if bias is None else torch.empty_like(bias)
    grad_self_bias = targets.new_empty(0 if entity is None else len(query))
    return torch.empty_like(query), candidates.new_empty(candidates.shape), grad_bias, grad_self_bias


@fused_op("magna::kvsall_loss_backward", _loss_backward_shape)
def kvsall_loss_backward_op(
    grad: Tensor,
    query: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    row: Tensor,
    column: Tensor,
    targets: Tensor,
    entity: Tensor | None,
    entity_bias: Tensor | None,
    top: Tensor,
    total: Tensor,
    picked: Tensor,
    precision: str,
    block: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """∂s = grad · share (softmax(s) − t), block by block; ∂query = ∂s e, ∂candidates = ∂sᵀ q, ∂bias = Σ_b ∂s.

    The gradient of a query's self bias is ∂s at that entity.
    """
    steps, where = _steps(backend), (row, column)
    share, extra, elsewhere, _ = targets
    share = grad * share
    q, e, b = _operands(query, candidates, bias, precision, block, share.dtype)
    grad_q = torch.zeros_like(q, dtype=share.dtype)
    grad_e = candidates.new_empty(len(b), e.size(1))
    grad_b = torch.empty_like(b) if bias is not None else b.new_empty(0)
    self_bias = _self_bias(entity, entity_bias, share.dtype)
    grad_self_bias = share.new_zeros(0 if self_bias is None else len(share))
    scanned = Scanned(top, total, picked)
    for part in Factors(q, e, b, self_bias, where).blocks(block):
        rows = slice(part.start, part.start + block)
        # The gradient of a block's scores is freed before the next one is made.
        grad_s = steps.gradient(part, scanned, share, elsewhere, extra, grad_self_bias)
        add_product(grad_q, grad_s, part.entities)
        product(grad_s.T, q, out=grad_e[rows])
        if bias is not None:
            torch.sum(grad_s, 0, dtype=share.dtype, out=grad_b[rows])
        del grad_s
    size = candidates.size(0)
    grad_b = grad_b[:size] if bias is None else grad_b[:size].to(bias.dtype)
    return grad_q.to(query.dtype), grad_e[:size], grad_b, grad_self_bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, candidates, bias, _, *tensors, ctx.precision, ctx.block, ctx.backend = inputs
    ctx.biased, ctx.owned = bias is not None, tensors[-1] is not None
    ctx.save_for_backward(query, candidates, bias, *tensors, *output[1:])


@kvsall_loss_op.register_autograd(_save)
def _(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    query, candidates, bias, self_bias = kvsall_loss_backward_op(
        grad, *ctx.saved_tensors, ctx.precision, ctx.block, ctx.backend
    )
    none = [None] * 5
    return query, candidates, bias if ctx.biased else None, *none, self_bias if ctx.owned else None, *none[:3]


def _operands(
    query: Tensor, candidates: Tensor, bias: Tensor | None, precision: str, block: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, candidates and biases as the products take them.

    Rows of an odd number of bfloat16 would keep the products off their fast paths, so the biases fill a whole number of
    blocks; those after the last entity are -inf, and no softmax sees them.
    """
    size = candidates.size(0)
    if precision == "bfloat16" or query.dtype == torch.bfloat16:
        query, candidates = query.bfloat16(), candidates.bfloat16()
    filled = size + -size % block if query.dtype == torch.bfloat16 else size
    b = torch.full((filled,), -torch.inf, dtype=dtype, device=query.device)
    b[:size] = 0 if bias is None else bias
    return query.contiguous(), candidates.contiguous(), b


def _self_bias(entity: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> SelfBias | None:
    return None if entity is None or bias is None else (entity.contiguous(), bias.to(dtype).contiguous())


def _steps(backend: str) -> ModuleType:
    return importlib.import_module(_STEPS[backend])
