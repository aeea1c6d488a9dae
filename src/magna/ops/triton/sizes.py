"""Numbers of programs, sizes of their blocks and types of their sums, which the host computes before each launch.

`triton.cdiv` and `triton.next_power_of_2`, which serve inside kernels too, take several times as long on the host.
"""

from __future__ import annotations

import torch
import triton.language as tl


def ceil_div(size: int, part: int) -> int:
    return -(-size // part)


def power_of_2(size: int) -> int:
    """The least power of 2 that is at least `size`, which is 1 or more."""
    return 1 << (size - 1).bit_length()


def index_type(size: int) -> tl.dtype:
    """The type of places among so many entries and one block more; 64 bits take more instructions to draw for."""
    return tl.int32 if size < 2**30 else tl.int64


def accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
