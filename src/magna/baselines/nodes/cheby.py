"""`Cheby`: ChebNet (Defferrard et al. 2016, arXiv 1606.09375)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from magna.baselines.nodes.propagation import one_hop
from magna.baselines.nodes.stack import Stack, StackOptions
from magna.config.options import option
from magna.config.registry import node_model
from magna.graph import Graph
from magna.nn.sparse import SparseRows


@dataclass(frozen=True, kw_only=True)
class ChebyOptions(StackOptions):
    """Options of :class:`Cheby`."""

    K: int = option(2, "Order of the polynomials, the number of hops of a layer.", low=1, high=64)
    lambda_max: float = option(2.0, "Largest eigenvalue of the Laplacian; 2 is its bound.", above=0, high=2)


@node_model("cheby", ChebyOptions)
class Cheby(Stack):
    r"""ChebNet: in each layer a polynomial of the Laplacian, in the basis of Chebyshev.

    .. math:: H^{(l+1)} = \mathrm{ReLU}\left(\sum_{k=0}^{K} T_k(\tilde L) H^{(l)} W_{lk} + b_l\right), \quad
              \tilde L = \tfrac{2}{\lambda_{\max}} \left(I - D^{-1/2} A D^{-1/2}\right) - I

    with :math:`T_0 = I`, :math:`T_1 = \tilde L` and :math:`T_k = 2 \tilde L T_{k-1} - T_{k-2}`. The graph is taken as
    it is; ChebNet wants no self-loops.

    It takes every option of :class:`ChebyOptions`.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> model = Cheby(16, 3, hidden_channels=32, K=3)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    options: ChebyOptions

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, ChebyOptions.from_flat(options))
        self.reset_parameters()

    @property
    def matrices(self) -> int:
        return self.options.K + 1

    def convolve(self, layer: nn.Module, h: Tensor | SparseRows, graph: Graph, weight: Tensor) -> Tensor:
        # Clenshaw's recurrence: K hops of the products, which are narrower than wide features.
        first, *terms = layer(h).chunk(self.matrices, dim=1)
        scale = 2 / self.options.lambda_max

        def laplacian(z: Tensor) -> Tensor:
            return (scale - 1) * z - scale * one_hop(z, weight, graph, self.options.backend)

        after, current = torch.zeros_like(first), terms.pop()
        while terms:
            after, current = current, terms.pop() + 2 * laplacian(current) - after
        out: Tensor = first + laplacian(current) - after
        return out
