"""The Triton backend: the functions of `registry.Kernels`, for CUDA tensors."""

# ruff: noqa: F401 (the registry takes them from here)

from __future__ import annotations

import torch

from magna.ops.triton.draw import attention_kept, dropout
from magna.ops.triton.edges import empty, segment_sum, take_rows
from magna.ops.triton.hop import hop, hop_backward, hop_dropout
from magna.ops.triton.launch import INTERPRETED
from magna.ops.triton.scores import edge_scores, head_scores, head_scores_backward, kept_edges
from magna.ops.triton.softmax import edge_softmax, edge_softmax_backward, top_k_mask


def why_not(device: torch.device) -> str | None:
    if device.type == "cuda" or INTERPRETED:
        return None
    return f"the tensors are on {device}, and Triton runs on CUDA (or anywhere, slowly, with TRITON_INTERPRET=1)"
