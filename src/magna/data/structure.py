"""Features of nodes from the graph alone, for data that has none: degrees, and positions."""

from __future__ import annotations

import torch
from torch import Tensor

DEGREE_BINS, POSITIONS, STEPS = 8, 32, 8


def structural_features(edge_index: Tensor, num_nodes: int) -> Tensor:
    r"""One-hot degrees on a logarithmic scale, the mean log-degree of the neighbours, and positions.

    Positions are the leading directions of :math:`\tilde D^{-1/2} \tilde A \tilde D^{-1/2}`, with a loop at each node.
    They come from a subspace iteration with a fixed start; nodes that are well connected have similar ones.

    Shapes: edge_index [2, E] → [N, 41].

    >>> structural_features(torch.tensor([[0, 1], [1, 0]]), 3).shape
    torch.Size([3, 41])
    """
    source, target = edge_index
    degree = torch.bincount(target, minlength=num_nodes)
    logs = degree.double().log1p()
    bins = torch.nn.functional.one_hot((logs / 0.7).long().clamp(max=DEGREE_BINS - 1), DEGREE_BINS)
    around = torch.zeros(num_nodes, dtype=torch.float64).index_add(0, target, logs[source]) / degree.clamp(min=1)
    scale = (degree + 1).double().rsqrt()[:, None]
    start = torch.randn(num_nodes, POSITIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = start[:, : min(POSITIONS, num_nodes)]
    for _ in range(STEPS):
        scaled = positions * scale
        hop = torch.zeros_like(scaled).index_add(0, target, scaled[source]) + scaled
        positions = torch.linalg.qr(hop * scale).Q
    wide = torch.zeros(num_nodes, POSITIONS, dtype=torch.float64)
    wide[:, : positions.size(1)] = positions * num_nodes**0.5
    return torch.cat([bins.double(), around[:, None], wide], dim=1).float()
