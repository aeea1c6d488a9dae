"""Models as files: config.json and model.safetensors."""

from __future__ import annotations

import contextlib
import io
from typing import Any, Self

from huggingface_hub import PyTorchModelHubMixin


class Saved(PyTorchModelHubMixin):
    """`save_pretrained(folder)` writes a model, `from_pretrained(folder)` reads it."""

    @classmethod
    def _from_pretrained(cls, *, strict: bool = True, **arguments: Any) -> Self:
        # The mixin prints a line of its own; stdout is for results alone.
        with contextlib.redirect_stdout(io.StringIO()):
            return super()._from_pretrained(strict=strict, **arguments)
