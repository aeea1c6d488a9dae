"""The loss over all entities as a `torch.library` op that walks them in blocks: B × N scores are never stored.

Matrix products are torch's own; what happens between them is in plain PyTorch in `kvsall_steps.py` and in one pass over
a block in `triton_kvsall.py`. Of bfloat16 numbers, `triton_kvsall_products.py` makes the scores itself and never stores
them. The backward pass computes the scores of each block again.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from magna.ops.answers import Factors, Own, Scanned
from magna.ops.backend.registry import add_product, fused_op, product, why_not

LossBackend = Literal["auto", "reference", "blocked", "triton"]
Precision = Literal["float32", "bfloat16"]

_STEPS = {"blocked": "magna.ops.loss_torch", "triton": "magna.ops.triton.kvsall"}
_BLOCK_BYTES = {"cpu": 16 << 20, "cuda": 64 << 20}  # scores of a block, or their gradient where that is all there is
_LEAST_BLOCKS = 8  # of float32, also where all scores would fit: a block is small beside them
_SMALL_BYTES = 4 << 20  # of all scores, that are not worth cutting


def choose_backend(backend: LossBackend, device: torch.device) -> str:
    """The implementation that runs: for "auto" Triton's on the GPU where it can run, else plain PyTorch in blocks."""
    if backend == "triton" or (backend == "auto" and device.type == "cuda"):
        reason = why_not("triton", device)
        if reason is None:
            return "triton"
        if backend == "triton":
            raise ValueError(f"backend is 'triton', which cannot run here: {reason}; try backend='auto'")
    return "blocked" if backend == "auto" else backend


def choose_block(num_queries: int, num_entities: int, device: torch.device, dtype: torch.dtype = torch.float32) -> int:
    """How many entities to look at in one step, a multiple of 64, so that the blocks are about alike.

    On the GPU all that is stored of a block of bfloat16 products is a gradient of that type.
    """
    each = 2 if dtype == torch.bfloat16 and device.type == "cuda" else 4
    fit = _BLOCK_BYTES.get(device.type, 16 << 20) // (each * max(num_queries, 1))
    least = 1 if each * num_queries * num_entities <= _SMALL_BYTES else _LEAST_BLOCKS * each // 4
    number = max(least, -(-num_entities // max(fit, 64)))
    return -(-num_entities // (64 * number)) * 64


@fused_op("magna::kvsall_targets")
def kvsall_targets_op(
    ptr: Tensor,
    index: Tensor,
    weight: Tensor | None,
    num_entities: int,
    label_smoothing: float,
    dtype: torch.dtype,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The answers' `entries`, and `targets` [4, B]: what is known of each query before any score.

    These are its share, what an answer's target has above the others', the others' target, and Σ_j t_j log t_j.
    """
    steps = _steps(backend)
    row, column = steps.entries(ptr, index)
    return row, column, steps.targets(ptr, weight, num_entities, label_smoothing, dtype)


@kvsall_targets_op.register_fake
def _(ptr, index, weight, num_entities, label_smoothing, dtype, backend):
    row, column = (index.new_empty(index.shape) for _ in range(2))
    return row, column, ptr.new_empty(4, ptr.numel() - 1, dtype=dtype)


@fused_op("magna::kvsall_loss")
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
    """Σ_b share_b KL(t_b ‖ softmax(s_b)); what the backward needs: largest scores, Σ_j exp(s_j − largest), answers'.

    Not their logsumexp in one number: where scores are 20 and above, rounding it puts all probabilities off by 1e-6.

    KL = Σ_j t_j log t_j + log Σ_j exp s_j − Σ_j t_j s_j, and since t is the same for all that are no answers, the last
    sum is that over the answers and Σ_j s_j = q · Σ_j e_j + Σ_j b_j.
    """
    steps, dtype = _steps(backend), targets.dtype
    q, e, b = _operands(query, candidates, bias, precision, block, dtype)
    own = _own(entity, entity_bias, dtype)
    given = Factors(q, e, b, own, (row, column))
    found = steps.scan(given, block)
    return steps.loss(given, steps.column_sums(e, dtype), bias, found, ptr, targets), *found


@kvsall_loss_op.register_fake
def _(query, candidates, bias, ptr, row, column, targets, entity, entity_bias, precision, block, backend):
    sizes = (), len(query), len(query), len(row)
    return tuple(targets.new_empty(size) for size in sizes)


@fused_op("magna::kvsall_loss_backward")
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

    The gradient of a query's own bias is ∂s at that entity.
    """
    steps, where = _steps(backend), (row, column)
    share, extra, elsewhere, _ = targets
    share = grad * share
    q, e, b = _operands(query, candidates, bias, precision, block, share.dtype)
    grad_q = torch.zeros_like(q, dtype=share.dtype)
    grad_e = candidates.new_empty(len(b), e.size(1))
    grad_b = torch.empty_like(b) if bias is not None else b.new_empty(0)
    own = _own(entity, entity_bias, share.dtype)
    grad_own = share.new_zeros(0 if own is None else len(share))
    found = Scanned(top, total, picked)
    for part in Factors(q, e, b, own, where).blocks(block):
        here = slice(part.start, part.start + block)
        # The gradient of a block's scores has no name for long: it is not there when the next one is made.
        grad_s = steps.gradient(part, found, share, elsewhere, extra, grad_own)
        add_product(grad_q, grad_s, part.entities)
        product(grad_s.T, q, out=grad_e[here])
        if bias is not None:
            torch.sum(grad_s, 0, dtype=share.dtype, out=grad_b[here])
        del grad_s
    size = candidates.size(0)
    grad_b = grad_b[:size] if bias is None else grad_b[:size].to(bias.dtype)
    return grad_q.to(query.dtype), grad_e[:size], grad_b, grad_own


@kvsall_loss_backward_op.register_fake
def _(grad, query, candidates, bias, row, column, targets, entity, entity_bias, top, total, picked, *options):
    grad_bias = targets.new_empty(0) if bias is None else torch.empty_like(bias)
    grad_own = targets.new_empty(0 if entity is None else len(query))
    return torch.empty_like(query), candidates.new_empty(candidates.shape), grad_bias, grad_own


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    query, candidates, bias, _, *tensors, ctx.precision, ctx.block, ctx.backend = inputs
    ctx.biased, ctx.owned = bias is not None, tensors[-1] is not None
    ctx.save_for_backward(query, candidates, bias, *tensors, *output[1:])


def _grad(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    query, candidates, bias, own = kvsall_loss_backward_op(
        grad, *ctx.saved_tensors, ctx.precision, ctx.block, ctx.backend
    )
    none = [None] * 5
    return query, candidates, bias if ctx.biased else None, *none, own if ctx.owned else None, *none[:3]


kvsall_loss_op.register_autograd(_grad, setup_context=_save)


def _operands(
    query: Tensor, candidates: Tensor, bias: Tensor | None, precision: str, block: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, candidates and biases as the products take them.

    Rows of an odd number of bfloat16 would keep the products off their fast paths, so there are biases for a whole
    number of blocks; those of entities that are not there are -inf, and no softmax sees them.
    """
    size = candidates.size(0)
    if precision == "bfloat16" or query.dtype == torch.bfloat16:
        query, candidates = query.bfloat16(), candidates.bfloat16()
    filled = size + -size % block if query.dtype == torch.bfloat16 else size
    b = torch.full((filled,), -torch.inf, dtype=dtype, device=query.device)
    b[:size] = 0 if bias is None else bias
    return query.contiguous(), candidates.contiguous(), b


def _own(entity: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Own | None:
    return None if entity is None or bias is None else (entity.contiguous(), bias.to(dtype).contiguous())


def _steps(backend: str) -> ModuleType:
    return importlib.import_module(_STEPS[backend])
