"""`CustomModel`: a module of the user's, trained and saved as every model of node classification."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from magna.config.options import Options
from magna.config.registry import node_model
from magna.errors import ArgumentError
from magna.nn.hub import Saved
from magna.nn.sparse import SparseRows, as_dense

CUSTOM = "custom"


@node_model(CUSTOM, Options)
class CustomModel(Saved):
    """A module that is called as `module(x, edge_index)`, with `edge_type` as well for typed edges.

    Edges with weights or features are passed on as `edge_weight=…` and `edge_attr=…`.

    Its files hold the weights and the name of its class; the module itself comes with each call.

    Shapes: x [N, in_channels], edge_index [2, E] → [N, out_channels].

    >>> import torch
    >>> CustomModel(nn.Identity(), in_channels=3, out_channels=3)(torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        module: Any = None,
        *,
        in_channels: int,
        out_channels: int,
        num_relations: int | None = None,
        edge_dim: int | None = None,
    ):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ArgumentError("model", module, "the torch.nn.Module of the run, as in train(data, model=module)")
        self.module = module
        self.in_channels, self.out_channels = in_channels, out_channels
        name = f"{type(module).__module__}.{type(module).__qualname__}"
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "num_relations": num_relations}
        self.config = {"module": name, **sizes} | ({} if edge_dim is None else {"edge_dim": edge_dim})

    def forward(self, x: Tensor | SparseRows, *edges: Tensor, **parts: Tensor) -> Tensor:
        """Scores of the nodes."""
        scores: Tensor = self.module(as_dense(x), *edges, **parts)
        shape = [x.size(0), self.out_channels]
        if list(scores.shape) != shape:
            raise ArgumentError("model", type(self.module).__name__, f"a module whose output has shape {shape}")
        return scores
