"""The answers among the scores of a block, on the GPU."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from magna.ops.answers import Factors, Scanned
from magna.ops.triton.launch import bound
from magna.ops.triton.sizes import ceil_div

ENTRIES = 128  # answers of a program


@triton.jit
def entries_inside(row_ptr, column_ptr, num_entries, start, width, BLOCK: tl.constexpr):
    """The next answers: their place in the list, row, column within the block, and a mask of those inside it."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = entry < num_entries
    row = tl.load(row_ptr + entry, mask=live, other=0)
    column = tl.load(column_ptr + entry, mask=live, other=-1) - start
    return entry, row, column, live & (column >= 0) & (column < width)


@triton.jit
def _answer_gradient_kernel(
    top_ptr, total_ptr, picked_ptr, share_ptr, elsewhere_ptr, extra_ptr, grad_own_ptr, entity_ptr, row_ptr, column_ptr,
    out_ptr, num_entries, start, width, OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # A query has each answer once, so no two programs write to one place.
    entry, row, column, inside = entries_inside(row_ptr, column_ptr, num_entries, start, width, BLOCK)
    score = tl.load(picked_ptr + entry, mask=inside, other=0.0)
    softmax = tl.exp(score - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    grad = tl.load(share_ptr + row) * (softmax - tl.load(elsewhere_ptr + row) - tl.load(extra_ptr + row))
    tl.store(out_ptr + row * width + column, grad.to(out_ptr.dtype.element_ty), mask=inside)
    if OWN:
        tl.store(grad_own_ptr + row, grad, mask=inside & (column == tl.load(entity_ptr + row) - start))


def answer_gradient(
    block: Factors, scanned: Scanned, share: Tensor, elsewhere: Tensor, extra: Tensor, grad_own: Tensor, out: Tensor
) -> None:
    """Write share (softmax − target) where the answers are into the gradient of a block's scores."""
    num_entries = scanned.picked.numel()
    if num_entries == 0:
        return
    entity = None if block.self_bias is None else block.self_bias[0]
    kernel = bound(_answer_gradient_kernel, OWN=entity is not None, BLOCK=ENTRIES)
    kernel[ceil_div(num_entries, ENTRIES),](
        *(*scanned, share, elsewhere, extra, grad_own, entity, *block.where, out),
        *(num_entries, block.start, out.size(1)),
    )
