"""The Triton backend: the functions of `registry.Kernels`, for CUDA tensors."""

from __future__ import annotations

import torch

from magna.ops.triton.draw import attention_kept, dropout
from magna.ops.triton.edges import empty, segment_sum, take_rows
from magna.ops.triton.hop import hop
from magna.ops.triton.hop_back import hop_backward, hop_dropout
from magna.ops.triton.launch import INTERPRETED
from magna.ops.triton.scores import edge_scores, head_scores, head_scores_backward, kept_edges
from magna.ops.triton.softmax import edge_softmax, edge_softmax_backward
from magna.ops.triton.top_k import top_k_mask

__all__ = [
    "attention_kept",
    "dropout",
    "edge_scores",
    "edge_softmax",
    "edge_softmax_backward",
    "empty",
    "head_scores",
    "head_scores_backward",
    "hop",
    "hop_backward",
    "hop_dropout",
    "kept_edges",
    "segment_sum",
    "take_rows",
    "top_k_mask",
    "why_not",
]


def why_not(device: torch.device) -> str | None:
    if device.type == "cuda" or INTERPRETED:
        return None
    return f"the tensors are on {device}, and Triton runs on CUDA (or anywhere, slowly, with TRITON_INTERPRET=1)"
