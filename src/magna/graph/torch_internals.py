"""Every private name of torch that this package uses; pyproject.toml bounds torch because of them.

`tests/graph/test_torch_internals.py` looks up each name, so an upgrade of torch fails there with the name that went.
The file is in the room of the graph because that is the first room which needs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves

F = TypeVar("F")


def constant_result(function: F) -> F:
    """`torch.compiler.assume_constant_result`, without the import of the compiler, which takes as long as torch's."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def unwatched() -> bool:
    """True outside of compilers, tracers, transforms of `torch.func`, dispatch modes and forward-mode derivatives."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and forward_ad._current_level < 0


def takes_gradient() -> bool:
    """True inside `torch.func.grad` and its kin."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        return False
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Grad for level in stack)


def in_forward_mode() -> bool:
    return forward_ad._current_level >= 0


def levels(tensor: Tensor) -> list[Tensor]:
    """A tensor and those that it wraps under transforms: the last has all entries, and knows whether they learn."""
    wrapped = [tensor]
    if not torch.compiler.is_compiling():
        while torch._C._functorch.is_functorch_wrapped_tensor(wrapped[-1]):
            wrapped.append(torch._C._functorch.get_unwrapped(wrapped[-1]))
    return wrapped


def is_batched(tensor: Tensor) -> bool:
    """True if `torch.vmap` runs over an axis of the tensor."""
    return torch._C._functorch.is_batchedtensor(tensor)


def is_stacked_gradient(tensor: Tensor) -> bool:
    """True for a gradient that `torch.autograd.grad(is_grads_batched=True)` stacked."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def durable() -> AbstractContextManager[None]:
    """A context for tensors that outlive it, also inside inference mode and transforms of `torch.func`."""
    # A compiler cannot trace the questions, and keeps nothing.
    return nullcontext() if torch.compiler.is_compiling() else _outside()


@contextmanager
def _outside() -> Iterator[None]:
    leaves = torch.is_inference_mode_enabled()
    with temporarily_clear_interpreter_stack(), torch.inference_mode(False) if leaves else nullcontext():
        yield


def version(tensor: Tensor) -> int:
    """Number of changes in place that torch has counted."""
    return tensor._version


def keeps_graph() -> bool:
    """True in a backward pass with `retain_graph`."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def storage_key(storage: torch.UntypedStorage) -> int:
    """The same number for the same memory."""
    key: int = storage._cdata
    return key


def affine_relu(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """ReLU(x @ weight + bias), on a GPU in one call of cuBLAS."""
    return torch._addmm_activation(bias, x, weight)


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into tensors, on a GPU in one kernel."""
    torch._foreach_copy_(list(targets), list(sources))


def scale_each(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply tensors by a number in place, on a GPU in one kernel."""
    torch._foreach_mul_(list(tensors), factor)


def is_plain_call(module: nn.Module) -> bool:
    """True if calling a module is its forward and nothing else: no hook and no compiled form."""
    hooks: tuple[Any, ...] = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    watched = any(hooks) or torch_module._has_any_global_hook()
    return not watched and module._compiled_call_impl is None
