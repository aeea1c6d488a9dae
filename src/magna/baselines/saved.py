"""What the baselines share: they are saved and loaded as `MAGNA` is, and list their options as it does."""

from __future__ import annotations

from typing import Any, ClassVar

from magna.nn.hub import Saved
from magna.nn.options import defaults


class Baseline(Saved):
    """A model with config.json and model.safetensors; what its subclass takes as arguments is its config."""

    # Settings that may differ between the trials of one batch.
    BATCHED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every keyword option of the model with its default."""
        return defaults(cls)
