"""What the baselines share: they are saved and loaded as `MAGNA` is, and list their options as it does."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from magna.nn.hub import Saved
from magna.nn.options import defaults

_CARD = """---
{{ card_data }}
---

A node-classification model ({{ paper_url }}) written by magna; `config.json` holds every setting.
"""


class Baseline(nn.Module, Saved, library_name="magna", license="mit", model_card_template=_CARD):
    """A model with config.json and model.safetensors; what its subclass takes as arguments is its config."""

    # Settings that may differ between the trials of one batch.
    BATCHED: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every keyword option of the model with its default."""
        return defaults(cls)
