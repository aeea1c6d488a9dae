"""Memory of a traced training step, tensor by tensor."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from magna.graph.torch_internals import TorchDispatchMode, storage_key, tree_leaves


class MemoryLedger(TorchDispatchMode):
    """Live and peak bytes of all tensors that are made while it is on, and those saved for the backward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.saved: dict[int, int] = {}
        self._known: set[int] = set()
        self._weights: set[int] = set()

    def count_saved_from_here(self) -> None:
        """Leave the tensors so far, the weights, out of the saved ones."""
        self._weights = set(self._known)

    def save(self, tensor: Tensor) -> Tensor:
        """Count a tensor that the backward pass will read; the data is not counted."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key in self._known and key not in self._weights:
            self.saved[key] = storage.nbytes()
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._enter(leaf.untyped_storage())
        return out

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key, size = storage_key(storage), storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._leave, key, size).atexit = False

    def _leave(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
