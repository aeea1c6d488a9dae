"""The model that a config names, alone or as an ensemble."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from magna.baselines import GAT, DiffGCN
from magna.config.layers import LinkPredictorOptions, MAGNAOptions
from magna.config.schema import Config, ModelConfig
from magna.errors import ArgumentError
from magna.nn import MAGNA, LinkPredictor
from magna.nn.attention import check_size
from magna.nn.hub import Saved

Single = MAGNA | GAT | DiffGCN
MODELS: dict[str, type[Single]] = {"magna": MAGNA, "gat": GAT, "diff-gcn": DiffGCN}


class Ensemble(Saved):
    r"""Models of the same settings, each with starting weights of its own, whose probabilities are averaged.

    .. math:: \mathrm{out} = \log \frac{1}{M} \sum_m \mathrm{softmax}(\mathrm{out}_m)

    In training mode the scores of every member come out, as each has a loss of its own. The first member starts as a
    single model with the same seed does.

    Args:
        name: which model the members are, "magna", "gat" or "diff-gcn".
        members: how many.
        settings: the arguments of each.

    Shapes: what a member takes → [N, C]; in training mode [M, N, C].

    >>> model = Ensemble("magna", 2, in_channels=16, hidden_channels=32, num_layers=1, out_channels=3).eval()
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    def __init__(self, name: str, members: int, **settings: Any) -> None:
        super().__init__()
        check_size("members", members)
        made = [MODELS[name](**settings) for _ in range(members)]
        self.members = nn.ModuleList(made)
        self.in_channels, self.out_channels = made[0].in_channels, made[0].out_channels
        self.config = {"name": name, "members": members, **made[0].defaults(), **settings}

    def forward(self, *inputs: Any) -> Tensor:
        """Scores of the classes whose softmax is the mean of the members'; in training mode those of each member."""
        scores = torch.stack([member(*inputs) for member in self.members])  # [M, N, C]
        return scores if self.training else averaged(scores)


Model = Single | Ensemble | LinkPredictor


def averaged(scores: Tensor) -> Tensor:
    """Scores whose softmax is the mean of the members'; those of one member are its own.

    Shapes: scores [M, N, C] → [N, C].
    """
    return scores[0] if len(scores) == 1 else scores.log_softmax(-1).logsumexp(0) - math.log(len(scores))


def members_of(model: nn.Module) -> list[nn.Module]:
    """The models that are trained as if each were alone: the members of an ensemble, else the model itself."""
    return list(model.members) if isinstance(model, Ensemble) else [model]


def make_model(config: ModelConfig, in_channels: int, out_channels: int, **more: Any) -> Model:
    """A fresh model, or an ensemble of them; a setting that it does not have must stay at its default.

    >>> make_model(ModelConfig(name="gat", K=3), 16, 7)
    Traceback (most recent call last):
    ValueError: model.K is 3, but gat has no such setting; allowed: hidden_channels, num_layers, heads, ...
    """
    kind = MODELS[config.name]
    members, settings = config.members, _settings(replace(config, members=1), kind, config.name)
    with _named_as_settings({**settings, "members": members}):
        settings |= {"in_channels": in_channels, "out_channels": out_channels, **more}
        return kind(**settings) if members == 1 else Ensemble(config.name, members, **settings)


def make_link_predictor(
    config: ModelConfig, num_entities: int, num_relations: int, *, typed: bool = True
) -> LinkPredictor:
    """A fresh link predictor; a setting that it does not have must stay at its default.

    >>> make_link_predictor(ModelConfig(hidden_channels=16, K=2), num_entities=5, num_relations=2).num_entities
    5
    """
    if config.name != "magna":
        raise ValueError(f"model.name is {config.name!r}; allowed for link prediction: 'magna'")
    known, settings = LinkPredictorOptions.options(), {}
    for key, value in asdict(config).items():
        if key != "name" and value != getattr(ModelConfig, key):
            if key not in known:
                allowed = ", ".join(known)
                raise ValueError(
                    f"model.{key} is {value!r}, but a link predictor has no such setting; allowed: {allowed}"
                )
            settings[key] = value
    with _named_as_settings(asdict(config)):
        options = LinkPredictorOptions(**settings)
        settings = {name: value for name, value in options.changes().items() if options.applies(name)}
        return LinkPredictor(num_entities, num_relations, typed=typed, **settings)


def model_class(config: Config) -> type[Model]:
    """What a run of this config saves."""
    if config.task.name == "link_prediction":
        return LinkPredictor
    return MODELS[config.model.name] if config.model.members == 1 else Ensemble


def _settings(config: ModelConfig, kind: type[Single], name: str) -> dict[str, Any]:
    """The settings that a model takes; another one must stay at its default."""
    settings = asdict(config)
    del settings["name"]
    takes = {"hidden_channels", "num_layers", *kind.defaults()}
    for key, value in settings.items():
        if key not in takes and value != getattr(ModelConfig, key):
            allowed = ", ".join(setting for setting in settings if setting in takes)
            raise ValueError(f"model.{key} is {value!r}, but {name} has no such setting; allowed: {allowed}")
    settings = {key: value for key, value in settings.items() if key in takes}
    if kind is MAGNA:
        try:
            settings = {key: value for key, value in MAGNAOptions(**settings).flat().items() if key in settings}
        except ArgumentError as error:
            raise error.renamed(f"model.{error.name}") from None
    return settings


@contextmanager
def _named_as_settings(settings: dict[str, Any]) -> Iterator[None]:
    """What a layer refuses by the names of its own arguments is refused by those of a recipe.

    >>> make_model(ModelConfig(heads=7), 16, 3)
    Traceback (most recent call last):
    ValueError: model.hidden_channels is 64, model.heads is 7; allowed: heads that divide the channels
    """
    try:
        yield
    except ValueError as error:
        argument = str(error).partition(" ")[0]
        if argument in settings:
            raise ValueError(f"model.{error}") from error
        if argument == "out_channels" and settings.get("head_form") != "full":
            raise ValueError(
                f"model.hidden_channels is {settings['hidden_channels']}, model.heads is {settings['heads']}; "
                "allowed: heads that divide the channels"
            ) from error
        raise ValueError(f"the settings of [model] do not go together: {error}") from error
