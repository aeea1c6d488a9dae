"""The portfolio for triples: embeddings alone and encoders, the best by filtered MRR on validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from magna.config.schema import Config
from magna.config.tables import LinkDataOptions
from magna.search.members import Member
from magna.search.portfolio import Portfolio, PortfolioStep
from magna.tasks import LinkPrediction

MINUTES, LARGE_MINUTES, LARGE_TRIPLES = 5.0, 15.0, 20_000
_BEHIND = 0.05  # below the best MRR, with three standard errors


@dataclass
class TriplePortfolio(Portfolio):
    """Members for triples; each is judged by its MRR on validation, both sides."""

    options: LinkDataOptions
    task: LinkPrediction
    triples: Mapping[str, int]  # by split

    @property
    def default_minutes(self) -> float:
        return LARGE_MINUTES if self.triples["train"] > LARGE_TRIPLES else MINUTES

    def facts_of_data(self) -> Mapping[str, Any]:
        return {"entities": self.task.num_nodes, "triples": dict(self.triples)}

    def config(self, member: Member) -> Config:
        """The member as settings for the triples."""
        config = Config.from_dict({"recipe": member.name, **member.tables}).with_seed(self.budget.seed)
        return replace(config, data=self.options)

    def train(self, step: PortfolioStep, deadline: float) -> tuple[float, int]:
        config = self.config(step.member)
        return self.train_run(step, config, self.task, deadline)

    def is_behind(self, score: float) -> bool:
        # A reciprocal rank lies between 0 and 1: its standard deviation is at most a half.
        return score < self.best_valid - _BEHIND - 1.5 / math.sqrt(2 * max(1, self.triples["valid"]))

    def shown(self, score: float) -> str:
        return f"MRR {score:.3f}"
