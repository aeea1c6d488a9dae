"""Private names of torch, in one place."""

from __future__ import annotations

from typing import TypeVar

F = TypeVar("F")


def constant_result(function: F) -> F:
    """`torch.compiler.assume_constant_result`, without the import of the compiler, which takes as long as torch's."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
