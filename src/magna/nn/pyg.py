"""The edge masks of PyG's explainers, which look for modules of its class `MessagePassing` among those of a model."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


def mask_holder() -> nn.Module | None:
    """A module that PyG's explainers give their edge mask to; None while PyG is not in use."""
    return _holder_class()() if "torch_geometric.explain" in sys.modules else None


def masked(attention: Tensor, holder: Any) -> Tensor:
    """The attention [E, H] times the mask [E] of the explainer; loops that the layer adds come last and are not masked.

    As in PyG's layers the mask comes after the softmax, so that each edge has a gradient.
    """
    mask = holder._edge_mask if holder is not None and holder.explain else None
    if mask is None:
        return attention
    mask = mask.sigmoid() if holder._apply_sigmoid else mask
    loops = mask.new_ones(attention.size(0) - mask.size(0))
    return attention * torch.cat([mask, loops])[:, None]


@cache
def _holder_class() -> type[nn.Module]:
    from torch_geometric.nn import MessagePassing

    class EdgeMask(MessagePassing):  # type: ignore[misc]
        """The mask of one layer; it has no parameters and passes no messages."""

    return EdgeMask
