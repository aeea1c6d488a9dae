"""K hops forward and back on a backend's kernels, with recomputed states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from magna.graph import Graph, Segments
from magna.ops.backend.registry import Draw, Hop, HopBack, Kernels

CACHE_LINE = 64  # bytes


def spacing(K: int) -> int:
    """Hops between two checkpoints, about √K, so that checkpoints and the states between two of them are fewest.

    >>> [spacing(K) for K in (1, 2, 8, 16, 32, 64)]
    [1, 2, 3, 4, 6, 8]
    """
    every = 1
    while every * every < K:
        every += 1
    return every


def slices(size: int, least: int) -> list[slice]:
    """Even parts of at least `least` and less than twice as much; one part if `size` is less.

    >>> [part.stop for part in slices(8, 3)], [part.stop for part in slices(2, 3)]
    ([4, 8], [2])
    """
    count = max(1, size // least)
    cuts = [part * size // count for part in range(count + 1)]
    return [slice(*ends) for ends in pairwise(cuts)]


def states_at_once(K: int) -> int:
    """Checkpoints, and the states between two of them."""
    return (K - 1) // spacing(K) + spacing(K) - 1


class HopWalk(NamedTuple):
    """K hops in one direction: Z_{k+1} = A_k Z_k + θ_{K-1-k} x from Z_0 = θ_K x, or those of its gradient."""

    x: Tensor  # [N, H, D], all or some of the heads and columns
    attention: Tensor  # [E, H], in the order of the walk
    theta: Sequence[Tensor]  # [H] each, θ_0 .. θ_K
    draw: Draw
    graph: Graph
    backend: Kernels

    @property
    def K(self) -> int:
        return len(self.theta) - 1

    def over(self, segments: Segments) -> HopWalk:
        """The same hops, with the attention dropout that their backend draws ahead for walks over the segments."""
        if self.draw.attention_rate is None:
            return self
        words = self.backend.attention_kept(self.draw, self.K, segments)
        return self._replace(draw=self.draw._replace(drawn=words))

    def part(self, heads: slice, columns: slice) -> HopWalk:
        """The hops of some heads and columns alone."""
        attention_rate, feature_rate = self.draw.attention_rate, self.draw.feature_rate
        return self._replace(
            x=self.x[:, heads, columns].contiguous(),
            attention=self.attention[:, heads].contiguous(),
            theta=[weight[heads] for weight in self.theta],
            draw=self.draw._replace(
                attention_rate=None if attention_rate is None else attention_rate[heads],
                feature_rate=None if feature_rate is None else feature_rate[..., heads].contiguous(),
                first_head=heads.start,
                first_column=columns.start,
            ),
        )

    def empty(self, count: int) -> list[Tensor]:
        """Uninitialised states."""
        return [self.backend.empty(self.x.shape, self.x) for _ in range(count)]

    def buffers(self, last: int, checkpoints: Tensor | Sequence[Tensor], every: int) -> list[Tensor]:
        """Room for the states Z_1 .. Z_last: every `every`-th is a checkpoint, the others share two buffers."""
        spare = self.empty(min(last, 2)) if every != 1 else []
        return [
            checkpoints[k // every - 1] if every and k % every == 0 else spare[k % len(spare)]
            for k in range(1, last + 1)
        ]

    def run(self, z: Tensor, first: int, outs: Iterable[Tensor]) -> None:
        """From the state Z_first = z, a hop into each of `outs`."""
        edges = self.attention, self.graph.by_target, self.graph.col
        for hop, out in enumerate(outs, first):
            scales = self.theta[self.K] if hop == 0 else None, self.theta[self.K - 1 - hop]
            self.backend.hop(Hop(z, self.x, *edges, *scales, out, _after(self.draw, hop), hop))
            z = out

    def states_back(self, checkpoints: Sequence[Tensor], every: int) -> Iterator[Tensor]:
        """The states Z_{K-1}, …, Z_0; those between two checkpoints are computed again from the first."""
        between = self.empty(min(every, self.K) - 1)
        for first in reversed(range(0, self.K, every)):
            z = checkpoints[first // every - 1] if first else self.x
            again = between[: self.K - 1 - first]
            self.run(z, first, again)
            yield from reversed([z, *again])

    def run_back(
        self,
        grad: Tensor,
        states: Iterable[Tensor],
        sums: Tensor,
        grad_theta: Tensor | None,
        first_part: bool = True,
        last_part: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Gradients to x and to the attention.

        T_0 is the incoming gradient and T_m = Aᵀ T_{m-1}; grad x = Σ_m θ_m T_m and ∂A_ji = Σ_k ⟨T_{K-1-k}[j], Z_k[i]⟩.
        Both read T of the same neighbours in one walk over the out-edges. ∂A adds up in `sums`, in source order; the
        last hop of the last part reorders it as the caller's edges.
        """
        K, x, grad_attention = self.K, self.x, sums
        if self.draw.feature_rate is not None:
            grad = self.backend.hop_dropout(grad, _after(self.draw, K - 1), K - 1)
        (grad_x,) = self.empty(1)
        buffers = self.empty(2) if K > 1 or grad_theta is not None else []
        edges = self.attention, self.graph.by_source, self.graph.source_col
        for m, z in enumerate(states, 1):
            hop = K - m
            if grad_theta is not None:
                grad_theta[m - 1] += (grad.to(grad_theta.dtype) * x).sum(0).sum(-1)
            into = buffers[m % 2] if hop > 0 or grad_theta is not None else None
            scales = self.theta[K] if hop == 0 else None, self.theta[0] if m == 1 else None, self.theta[m]
            rank = self.graph.source_rank if last_part and hop == 0 else None
            # The gradient leaves the hop before through its dropout.
            draw, add = _after(self.draw, hop - 1), m > 1 or not first_part
            complete = self.backend.hop_backward(
                HopBack(grad, z, *edges, *scales, sums, add, rank, grad_x, into, draw, hop)
            )
            if complete is not None:
                grad_attention = complete
            if into is not None:
                grad = into
        if grad_theta is not None:
            grad_theta[K] += (grad.to(grad_theta.dtype) * x).sum(0).sum(-1)
        return grad_x, grad_attention


def gradients_by_slices(
    grad: Tensor, ahead: HopWalk, back: HopWalk, grad_theta: Tensor | None, room: int
) -> tuple[Tensor, Tensor]:
    """Gradients to x and to the attention, slice by slice of the columns: each goes forward again, then back.

    The states of a slice fit into about `room` bytes, unless it would be narrower than a cache line.
    """
    K, (nodes, heads, width), itemsize = back.K, back.x.shape, back.x.element_size()
    columns, line = room // (states_at_once(K) * nodes * itemsize), CACHE_LINE // itemsize
    (grad_x,), grad_attention = back.empty(1), back.attention.new_empty(back.attention.shape)
    every, g = spacing(K), back.graph
    for h in slices(heads, max(columns // width, -(-line // width))):
        sums = back.backend.empty((len(back.attention), h.stop - h.start), back.attention)
        part_theta = None if grad_theta is None else grad_theta[:, h]
        for c in slices(width, max(columns, line)):
            part = ahead.part(h, c).over(g.by_target)
            (*checkpoints,) = part.empty((K - 1) // every)
            part.run(part.x, 0, part.buffers(len(checkpoints) * every, checkpoints, every))
            states = part.states_back(checkpoints, every)
            walk, part_grad = back.part(h, c).over(g.by_source), grad[:, h, c].contiguous()
            grad_x[:, h, c], part_attention = walk.run_back(
                part_grad, states, sums, part_theta, c.start == 0, c.stop == width
            )
        grad_attention[:, h] = part_attention
    return grad_x, grad_attention


def _after(draw: Draw, hop: int) -> Draw:
    """The draw with the rate of features after a hop."""
    rate = draw.feature_rate
    return draw if rate is None or rate.dim() == 1 else draw._replace(feature_rate=rate[hop])


def in_target_order(values: Tensor, graph: Graph, backend: Kernels) -> Tensor:
    return values if graph.in_order else backend.take_rows(values, graph.by_target.order)
