"""Options that one module hands on to the next: written once, in the signature of the module that uses them."""

from __future__ import annotations

import difflib
import inspect
from typing import Any


def defaults(*modules: type) -> dict[str, Any]:
    """The keyword-only options of some modules and their defaults."""
    parameters = [p for module in modules for p in inspect.signature(module.__init__).parameters.values()]  # type: ignore[misc]
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def complete(given: dict[str, Any], *modules: type) -> dict[str, Any]:
    """The given options over the defaults of the modules that take them; an unknown name is an error."""
    known = defaults(*modules)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(sorted(known))}"
            raise ValueError(f"{name!r} is no option of {' or '.join(m.__name__ for m in modules)}; {hint}")
    return known | given
