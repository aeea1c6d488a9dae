"""R-GCN (Schlichtkrull et al. 2018) with DistMult."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magna.baselines.links.base import EncodedBaseline, EncodedOptions
from magna.config.options import option
from magna.config.registry import link_model
from magna.graph import Graph
from magna.nn.dropout import Dropout
from magna.ops import attention_diffusion


@dataclass(frozen=True, kw_only=True)
class RGCNOptions(EncodedOptions):
    """Options of :class:`RGCN`."""

    decoder: ClassVar[str] = "distmult"
    num_bases: int = option(2, "Number of matrices V_b whose sums are the matrices of the relations.", low=1, high=4096)
    edge_dropout: float = option(0.0, "Probability of leaving an edge out, self-loops excepted.", low=0, below=1)
    dropout: float = option(0.0, "Dropout on the input of each layer.", low=0, below=1)


class RGCNLayer(nn.Module):
    r"""Mean over the neighbours of each relation, multiplied by a matrix for that relation.

    .. math:: h_i' = W_0 h_i + \sum_r \sum_{j \in N_i^r} \tfrac{1}{|N_i^r|} \sum_b a_{rb} V_b h_j + \beta

    Shapes: x [N, C], norm [E], the share 1 / \|N_i^r\| of each edge, and 0 for self-loops → [N, C].
    """

    def __init__(self, channels: int, num_types: int, num_bases: int) -> None:
        super().__init__()
        self.bases = nn.Parameter(torch.empty(num_bases, channels, channels))  # V_b, from the right
        self.coefficients = nn.Parameter(torch.empty(num_types, num_bases))
        self.root = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.root.reset_parameters()
        for basis in self.bases:
            nn.init.xavier_uniform_(basis)
        nn.init.xavier_uniform_(self.coefficients)

    def forward(self, x: Tensor, graph: Graph, norm: Tensor) -> Tensor:
        assert graph.edge_type is not None
        weights = self.coefficients[graph.edge_type] * norm[:, None]  # [E, B]
        terms = torch.einsum("nc,bcd->nbd", x, self.bases)
        out: Tensor = attention_diffusion(terms, weights, graph, K=1, alpha=0.0).sum(1) + self.root(x)
        return out


class RGCNEncoder(nn.Module):
    """Layers of :class:`RGCNLayer` with ReLU between them."""

    def __init__(self, num_relations: int, options: RGCNOptions) -> None:
        super().__init__()
        self.loops, self.edge_dropout = 2 * num_relations, options.edge_dropout
        sizes = options.channels, self.loops + 1, options.num_bases
        self.layers = nn.ModuleList(RGCNLayer(*sizes) for _ in range(options.num_layers))
        self.dropout = Dropout(options.dropout)

    def reset_parameters(self) -> None:
        for layer in self.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Tensor, graph: Graph, edge_mask: Tensor | None) -> Tensor:
        norm = self.shares(graph, edge_mask).to(x.dtype)
        for number, layer in enumerate(self.layers):
            x = layer(self.dropout(F.relu(x) if number else x), graph, norm)
        return x

    def shares(self, graph: Graph, edge_mask: Tensor | None) -> Tensor:
        """Share [E] of each edge among those of its relation at its target; 0 for absent edges and self-loops."""
        assert graph.edge_type is not None
        present = graph.edge_type != self.loops
        if edge_mask is not None:
            present = present & edge_mask
        if self.training and self.edge_dropout > 0:
            present = present & (torch.rand(present.shape, device=present.device) >= self.edge_dropout)
        group = graph.target * (self.loops + 1) + graph.edge_type
        number = present.to(torch.float32)
        counts = number.new_zeros(graph.num_nodes * (self.loops + 1)).index_add_(0, group, number)
        return number / counts[group].clamp_min(1)


@link_model("r-gcn", RGCNOptions)
class RGCN(EncodedBaseline):
    r"""Relational graph convolutions over the typed graph, whose states DistMult scores.

    .. math:: S = \mathrm{RGCN}(E, G), \quad s(h, r, t) = \langle S_h, w_r, S_t \rangle

    The layers are those of :class:`RGCNLayer`. The inverse of a relation is a relation of its own.

    It takes every option of :class:`RGCNOptions`.

    >>> model = RGCN(3, 1, channels=4, num_layers=1)
    >>> edges, types = torch.tensor([[0, 1, 0, 1, 2], [1, 0, 0, 1, 2]]), torch.tensor([0, 1, 2, 2, 2])
    >>> model(edges, types, torch.tensor([0]), torch.tensor([0])).shape
    torch.Size([1, 3])
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        chosen = RGCNOptions.from_flat(options)
        super().__init__(num_entities, num_relations, chosen, RGCNEncoder(num_relations, chosen))
