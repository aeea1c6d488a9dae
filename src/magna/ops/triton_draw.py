"""`random.py` in Triton: the same bits for the same (seed, stream, index)."""

import triton
import triton.language as tl


@triton.jit
def _mix(h):
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    h = h * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def bits(seed_ptr, stream, index):
    """32 random bits for each int64 index."""
    seed = tl.load(seed_ptr)
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key0 = _mix(low + (stream + 1).to(tl.uint32) * 0x9E3779B9)
    key1 = _mix(high + (key0 ^ 0x5BF03635))
    h = _mix((index & 0xFFFFFFFF).to(tl.uint32) ^ key0)
    return _mix(h ^ key1 ^ ((index >> 32).to(tl.uint32) * 0x85EBCA6B))


@triton.jit
def factor(drawn, rate, ACC: tl.constexpr):
    """0 where dropped, 1 / (1 - rate) where kept."""
    kept = drawn.to(tl.int64) >= (rate * 4294967296.0).to(tl.int64)
    return tl.where(kept, 1.0 / (1.0 - rate.to(ACC)), 0.0)
