"""`Hops`: the weight of each hop (Eqs. 3 to 5) and the dropout after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from magna.config.layers import ConvSettings
from magna.ops import geometric_weights
from magna.ops.checks import Rate


class Hops(nn.Module):
    r"""Schedule of the hops, as arguments of `attention_diffusion`.

    Fixed weights come as K and alpha, learnt ones as alpha [H] or theta [H, K + 1]:

    .. math:: \theta_k = \alpha (1 - \alpha)^k, \quad \theta_K = (1 - \alpha)^K

    A layer reads nothing else of its hops, so another module can take this place, such as one whose weights [H, K + 1]
    and rates [K, 1] are tensors: `{"theta": …, "feature_dropout": …}`.

    >>> Hops(heads=2, options=ConvSettings(K=3, alpha=0.2))()
    {'memory': 'auto', 'feature_dropout': 0.0, 'K': 3, 'alpha': 0.2}
    """

    def __init__(self, heads: int, options: ConvSettings) -> None:
        super().__init__()
        self.options = options
        self.K, self.alpha = options.K, options.alpha
        self.feature_dropout: Rate = options.feature_dropout
        learnt = options.hop_weights
        self.alpha_logit = nn.Parameter(torch.empty(heads)) if learnt == "alpha" else None
        self.theta_logit = nn.Parameter(torch.empty(heads, self.K + 1)) if learnt == "theta" else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start from the geometric weights."""
        for logit in (self.alpha_logit, self.theta_logit):
            if logit is not None:
                alpha = torch.full((len(logit),), self.alpha, dtype=torch.float64)
                logit.copy_(alpha.logit() if logit.dim() == 1 else geometric_weights(alpha, self.K).log())

    def forward(self) -> dict[str, Any]:
        alpha = self.alpha if self.alpha_logit is None else self.alpha_logit.sigmoid()
        if self.options.mode == "exact":
            return {"mode": "exact", "tolerance": self.options.tolerance, "alpha": alpha}
        rate = self.feature_dropout if self.training else 0.0
        schedule = {"memory": self.options.memory, "feature_dropout": rate}
        if self.theta_logit is not None:
            return schedule | {"theta": self.theta_logit.softmax(1)}
        return schedule | {"K": self.K, "alpha": alpha}

    def extra_repr(self) -> str:
        hops = f"K={self.K}" if self.options.mode == "truncated" else "mode='exact'"
        return f"{hops}, alpha={self.alpha}"
