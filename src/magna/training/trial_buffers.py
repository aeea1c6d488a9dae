"""Buffers for the options in which the models of a batch differ, and hops that read a tensor-valued K."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from magna.config.layers import EncoderOptions
from magna.config.options import Options
from magna.nn import MAGNAConv
from magna.nn.dropout import Dropout, is_zero
from magna.nn.hops import Hops
from magna.ops import geometric_weights


def register_differences(models: Sequence[nn.Module]) -> None:
    """Make each number in which models of one structure differ a non-persistent buffer of its module.

    These are the options that may differ from trial to trial, under their own names, and the rates of dropout layers.
    `stack_module_state` then stacks them and `functional_call` swaps them.

    >>> models = [Dropout(0.2), Dropout(0.5)]
    >>> register_differences(models)
    >>> torch.func.stack_module_state(models)[1]
    {'p': tensor([0.2000, 0.5000])}
    """
    free, most = EncoderOptions.per_trial(), max(_most_hops(model) for model in models)
    device = next((p.device for p in models[0].parameters()), None)
    for alike in zip(*map(_parts, models), strict=True):
        # A model may have further options than those of the layers.
        named = {"p"} if isinstance(alike[0], Dropout) else free | _options(alike[0]).per_trial()
        for name in sorted(named & vars(alike[0]).keys()):
            values = [getattr(module, name) for module in alike]
            if any(value != values[0] for value in values):
                for module, value in zip(alike, values, strict=True):
                    delattr(module, name)
                    module.register_buffer(name, torch.tensor(value, device=device), persistent=False)
    for model in models:
        for conv in model.modules():
            if isinstance(conv, MAGNAConv) and isinstance(conv.hops.K, Tensor):
                conv.hops = TrialHops(conv.hops, most, conv.heads)


def _options(module: nn.Module) -> type[Options]:
    options = getattr(module, "options", None)
    return type(options) if isinstance(options, Options) else EncoderOptions


class TrialModel:
    """A module with the parameters and buffers of one trial: its call and its methods, as pure functions.

    >>> double = TrialModel(nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[2.0]])})
    >>> double(torch.ones(1, 1)).item(), double.extra_repr()
    (2.0, 'in_features=1, out_features=1, bias=False')
    """

    def __init__(self, module: nn.Module, state: dict[str, Tensor]) -> None:
        self._module, self._state = module, state

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return functional_call(self._module, self._state, inputs, named)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        getattr(self._module, name)  # an error if the module has no such method
        state = {f"module.{key}": value for key, value in self._state.items()}
        return partial(self._called, _Method(self._module, name), state)

    @staticmethod
    def _called(method: _Method, state: dict[str, Tensor], *inputs: Any) -> Any:
        return functional_call(method, state, inputs)


class _Method(nn.Module):
    """A method of a module as a module, for `functional_call`."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module, self.name = module, name

    def forward(self, *inputs: Any) -> Any:
        return getattr(self.module, self.name)(*inputs)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and all below it, without the holders of PyG's edge masks, of which each hop has one."""
    yield module
    for child in module.children():
        yield from _parts(child)


def _most_hops(model: nn.Module) -> int:
    return max((module.K for module in model.modules() if isinstance(module, Hops)), default=0)


class TrialHops(Hops):
    """Hops of a trial whose K is a tensor: weights and rates over the most hops that a trial of the batch walks."""

    def __init__(self, hops: Hops, most: int, heads: int) -> None:
        nn.Module.__init__(self)
        self.options, self.most, self.heads = hops.options, most, heads
        self.alpha_logit, self.theta_logit = hops.alpha_logit, hops.theta_logit
        for name in ("K", "alpha", "feature_dropout"):
            if name in dict(hops.named_buffers()):
                self.register_buffer(name, getattr(hops, name), persistent=False)
            else:
                setattr(self, name, getattr(hops, name))

    def forward(self) -> dict[str, Any]:
        schedule = super().forward()
        if "K" not in schedule:  # the exact mode has none
            return schedule
        K: Any = schedule["K"]
        # Not `as_tensor`: a number copied to a GPU cannot be part of a CUDA graph.
        alpha, rate = schedule["alpha"] * torch.ones(self.heads, device=K.device), schedule["feature_dropout"]
        if not is_zero(rate):
            # Where K is smaller, the first hops only bring the features to its start: nothing is dropped there.
            rate = torch.where(torch.arange(self.most, 0, -1, device=K.device) <= K, rate, 0.0)[:, None]
        theta = geometric_weights(alpha, K, self.most)
        return {"memory": schedule["memory"], "theta": theta, "feature_dropout": rate}
