"""Edges grouped by one of their ends, and the pieces that a program of a kernel walks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# A program of a GPU kernel walks one piece, so that a hub does not run on one program alone. Where pieces fill the GPU
# many times over, longer ones leave fewer sums to add up.
_SHORT_PIECE, _LONG_PIECE, _MANY_EDGES = 64, 128, 1 << 20


class Segments(NamedTuple):
    """Edges grouped by one end (target, source or relation), and each group cut into pieces of bounded length."""

    ptr: Tensor  # [S + 1] int32, group s is positions ptr[s] .. ptr[s + 1]
    order: Tensor  # [E] int32, the caller's edge at each position
    pieces: Tensor  # [P, 4] int32: group, begin, end, slot (-1: the group's only piece; group -1: padding)
    hubs: Tensor  # [Q, 3] int32: group, first slot, end slot, for groups of several pieces (group -1: padding)
    num_slots: int  # slots that the pieces of hubs write their partial sums to

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Segments:
        ptr, order, pieces, hubs = (tensor.to(device, non_blocking=non_blocking) for tensor in self[:4])
        return Segments(ptr, order, pieces, hubs, self.num_slots)


def segments_of(key: Tensor, size: int, in_order: bool) -> Segments:
    if in_order:
        ordered, order = key, torch.arange(key.numel(), device=key.device)
    else:
        ordered, order = torch.sort(key, stable=True)
    bounds = torch.arange(size + 1, device=key.device)
    ptr = torch.searchsorted(ordered.contiguous(), bounds)
    return Segments(ptr.int(), order.int(), *_cut(ptr, key.numel()))


def piece_edges(num_edges: int) -> int:
    """Edges of a piece at most; a row with more is a hub."""
    return _SHORT_PIECE if num_edges < _MANY_EDGES else _LONG_PIECE


def _cut(ptr: Tensor, num_edges: int) -> tuple[Tensor, Tensor, int]:
    """Cut each group into pieces of bounded length.

    Under a compiler the number of pieces must not depend on the data: the tables then have the largest size that
    can be needed, and what is left over is marked with group -1.
    """
    device, size = ptr.device, ptr.numel() - 1
    if size == 0:
        empty = torch.zeros(0, dtype=torch.int32, device=device)
        return empty.view(0, 4), empty.view(0, 3), 0
    longest = piece_edges(num_edges)
    degree = ptr[1:] - ptr[:-1]
    count = ((degree + longest - 1) // longest).clamp_(min=1)
    first = torch.cumsum(count, 0)
    is_hub = count > 1
    hub_end = torch.cumsum(torch.where(is_hub, count, 0), 0)
    if torch.compiler.is_compiling():
        # Two more than there can be: a compiler takes sizes of 0 and 1 for cases of their own, and would compile anew.
        num_hubs = num_edges // longest + 2
        num_slots = 2 * num_hubs
        num_pieces = size + num_slots  # never fewer than slots, as slot i belongs to piece i
    else:
        num_pieces, num_hubs, num_slots = torch.stack([first[-1], is_hub.sum(), hub_end[-1]]).tolist()
    piece = torch.arange(num_pieces, device=device)
    group = torch.searchsorted(first, piece, right=True)
    used = group < size
    group = group.clamp_(max=size - 1)
    within = piece - (first - count)[group]
    begin = ptr[group] + within * longest
    end = torch.minimum(begin + longest, ptr[group + 1])
    slot = torch.where(used & is_hub[group], (hub_end - count)[group] + within, -1)
    end = torch.where(used, end, begin)
    pieces = torch.stack([torch.where(used, group, -1), begin, end, slot], dim=1)
    # The pieces of hubs come first, so that slot i belongs to piece i; then the others from long to short, so that the
    # rows that a program walks side by side are alike.
    pieces = pieces[torch.argsort(torch.where(slot < 0, begin - end, -longest - 1), stable=True)]
    # The hubs in the order of their groups: the i-th hub is the first group whose running count passes i.
    running = torch.cumsum(is_hub, 0)
    hub = torch.searchsorted(running, torch.arange(num_hubs, device=device), right=True)
    used = hub < size
    hub = hub.clamp_(max=size - 1)
    slots = torch.stack([(hub_end - count)[hub], hub_end[hub]], dim=1)
    hubs = torch.cat([torch.where(used, hub, -1)[:, None], torch.where(used[:, None], slots, 0)], dim=1)
    # The largest first, so that no program waits for it at the end.
    hubs = hubs[torch.argsort(torch.where(used, hubs[:, 1] - hubs[:, 2], 0), stable=True)]
    return pieces.int(), hubs.int(), num_slots
