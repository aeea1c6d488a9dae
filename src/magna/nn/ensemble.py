"""Models by their settings, alone or as an ensemble."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from magna.config.registry import NODE_TASK, ModelSettings, find_model
from magna.nn.attention import check_size
from magna.nn.hub import Saved


class Ensemble(Saved):
    r"""Models with the same options and different starting weights, whose probabilities are averaged.

    .. math:: \mathrm{out} = \log \frac{1}{M} \sum_m \mathrm{softmax}(\mathrm{out}_m)

    In training mode it returns the scores of every member, as each has its own loss. The first member starts as a
    single model with the same seed does.

    Args:
        name: the registered name of the members' class, such as "magna".
        members: number of members.
        settings: the arguments of each.

    Shapes: inputs of a member → [N, C]; in training mode [M, N, C].

    >>> model = Ensemble("magna", 2, in_channels=16, hidden_channels=32, num_layers=1, out_channels=3).eval()
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    def __init__(self, name: str, members: int, **settings: Any) -> None:
        super().__init__()
        check_size("members", members)
        kind = find_model(NODE_TASK, name).kind
        made = [kind(**settings) for _ in range(members)]
        self.members = nn.ModuleList(made)
        self.in_channels, self.out_channels = made[0].in_channels, made[0].out_channels
        self.config = {"name": name, "members": members, **made[0].config}

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Scores of the classes whose softmax is the mean of the members'; in training mode those of each member."""
        scores = torch.stack([member(*inputs, **named) for member in self.members])  # [M, N, C]
        return scores if self.training else averaged(scores)


def averaged(scores: Tensor) -> Tensor:
    """Scores whose softmax is the mean of the members'.

    Shapes: scores [M, N, C] → [N, C].
    """
    return scores[0] if len(scores) == 1 else scores.log_softmax(-1).logsumexp(0) - math.log(len(scores))


def members_of(model: nn.Module) -> list[nn.Module]:
    """The models that are trained as if each were alone: the members of an ensemble, else the model itself."""
    return list(model.members) if isinstance(model, Ensemble) else [model]


def make_model(settings: ModelSettings, **sizes: Any) -> Any:
    """A fresh model, or an ensemble of them; `sizes` are the arguments that follow from the data.

    >>> from magna.config.registry import model_settings
    >>> make_model(model_settings(name="gat", heads=4), in_channels=16, out_channels=7).out_channels
    7
    """
    values = settings.recipe_values()
    if values.pop("members", 1) == 1:
        return find_model(settings.task, settings.name).kind(**sizes, **values)
    return Ensemble(settings.name, settings.members, **sizes, **values)


def model_class(settings: ModelSettings) -> Any:
    """The class that a run with these settings saves."""
    return find_model(settings.task, settings.name).kind if getattr(settings, "members", 1) == 1 else Ensemble
