"""How many programs, how large their blocks, in what type they add up: what the host works out before it launches.

`triton.cdiv` and `triton.next_power_of_2` serve inside kernels too, and a call on the host takes them several times as
long as the whole of what is here.
"""

from __future__ import annotations

import torch
import triton.language as tl


def ceil_div(size: int, part: int) -> int:
    return -(-size // part)


def power_of_2(size: int) -> int:
    """The least that is no smaller than `size`, which is 1 or more."""
    return 1 << (size - 1).bit_length()


def index_type(size: int) -> tl.dtype:
    """Of places among so many entries and a block beyond them: a draw for one of 64 bits takes more instructions."""
    return tl.int32 if size < 2**30 else tl.int64


def accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
