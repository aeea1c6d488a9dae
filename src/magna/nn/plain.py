"""Modules whose call may be left out."""

from __future__ import annotations

from typing import TypeGuard, TypeVar

from torch import nn
from torch.nn.modules import module as torch_module

Kind = TypeVar("Kind", bound=nn.Module)


def is_plain(module: nn.Module, *kinds: type[Kind]) -> TypeGuard[Kind]:
    """Whether calling a module is its forward and nothing else: no hook, no compiled form, no other class in its place.

    Then what it does may be done for it, in one pass with what stands before or behind it.
    """
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    watched = any(hooks) or torch_module._has_any_global_hook()
    return type(module) in kinds and not watched and module._compiled_call_impl is None
