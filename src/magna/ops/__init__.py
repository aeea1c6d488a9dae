"""Pure functions: check, choose a backend, call. No parameters, no global randomness."""

import magna.ops.backend.folding  # noqa: F401 (the rules of the ops under torch.vmap)
from magna.ops.diffusion import attention_diffusion
from magna.ops.exact import attention_matrix, diffused_attention
from magna.ops.gpu.linear import feed_forward, linear, linears, rounded_at_once
from magna.ops.gpu.norm import add_norm
from magna.ops.gpu.table import lookup, lookups
from magna.ops.loss import kvsall_loss
from magna.ops.ranking import RankCounts, rank_scores, rank_targets
from magna.ops.scores import edge_scores, head_scores
from magna.ops.seeded_dropout import dropout
from magna.ops.softmax import edge_softmax
from magna.ops.weights import geometric_weights, hops_for, truncation_error

__all__ = [
    "RankCounts",
    "add_norm",
    "attention_diffusion",
    "attention_matrix",
    "diffused_attention",
    "dropout",
    "edge_scores",
    "edge_softmax",
    "feed_forward",
    "geometric_weights",
    "head_scores",
    "hops_for",
    "kvsall_loss",
    "linear",
    "linears",
    "lookup",
    "lookups",
    "rank_scores",
    "rank_targets",
    "rounded_at_once",
    "truncation_error",
]
