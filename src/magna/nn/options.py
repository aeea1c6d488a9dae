"""Options that one module hands on to the next: written once, in the signature of the module that uses them."""

from __future__ import annotations

import inspect
from typing import Any


def defaults(*modules: type) -> dict[str, Any]:
    """The keyword-only options of some modules and their defaults."""
    parameters = [p for module in modules for p in inspect.signature(module.__init__).parameters.values()]  # type: ignore[misc]
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
