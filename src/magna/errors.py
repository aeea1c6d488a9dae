"""Errors that teach: the name and value that came, the values that are allowed, and a hint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_LONGEST = 600  # characters of a message
_LONGEST_VALUE = 120
_MOST_WORDS = 12  # of a list of alternatives


class ArgumentError(ValueError):
    """A value that is refused.

    Args:
        name: the argument or setting, such as `K` or `train.lr`.
        value: the value that came.
        allowed: the values that are accepted, as words or as a list of alternatives.
        hint: what to try.

    >>> str(ArgumentError("K", -1, "0 or more"))
    'K is -1; allowed: 0 or more'
    >>> str(ArgumentError("mode", "exakt", ["truncated", "exact"]))
    "mode is 'exakt'; did you mean 'exact'? allowed: 'truncated', 'exact'"
    """

    def __init__(self, name: str, value: Any, allowed: str | Sequence[str], hint: str = "") -> None:
        self.name, self.value, self.allowed, self.hint = name, value, allowed, hint
        words = f"{name} is {shortened(value)}; {_alternatives(value, allowed)}"
        super().__init__(clean(f"{words}; try {hint}" if hint else words))

    def renamed(self, name: str) -> ArgumentError:
        """The same refusal under another name, such as that of a setting."""
        return type(self)(name, self.value, self.allowed, self.hint)

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[Any, ...]]:
        return type(self), (self.name, self.value, self.allowed, self.hint)


class UnknownName(ArgumentError):
    """A name that nothing has, with the nearest valid one.

    >>> str(UnknownName("option", "allpha", ["alpha", "heads"]))
    "option is 'allpha'; did you mean 'alpha'? allowed: 'alpha', 'heads'"
    """


class DataError(ValueError):
    """A file that cannot be used, with the place in it.

    >>> str(DataError("nodes.csv", "id 'a' is there twice", line=3, hint="other ids"))
    "nodes.csv, line 3: id 'a' is there twice; try other ids"
    """

    def __init__(
        self, file: str | Path, fault: str, *, line: int | None = None, allowed: str = "", hint: str = ""
    ) -> None:
        self.file, self.fault, self.line, self.allowed, self.hint = file, fault, line, allowed, hint
        words = f"{file}, line {line}: {fault}" if line is not None else f"{file}: {fault}"
        words += f"; allowed: {allowed}" if allowed else ""
        super().__init__(clean(f"{words}; try {hint}" if hint else words))


class Diverged(RuntimeError):
    """A loss that is not finite any more."""


def shortened(value: Any) -> str:
    """A value as one line of a message, long ones cut in the middle.

    >>> shortened("x" * 500)[:5], len(shortened("x" * 500)) <= 120
    ("'xxxx", True)
    """
    text = repr(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    half = (_LONGEST_VALUE - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def listed(words: Iterable[Any]) -> str:
    """Alternatives as a list, long ones cut.

    >>> listed(["a", "b"])
    "'a', 'b'"
    """
    words = [repr(word) for word in words]
    more = f", and {len(words) - _MOST_WORDS} others" if len(words) > _MOST_WORDS else ""
    return ", ".join(words[:_MOST_WORDS]) + more


def nearest(word: Any, words: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The word that looks most like another one, or None.

    >>> nearest("alpa", ["alpha", "heads"])
    'alpha'
    """
    by_case = {known.casefold(): known for known in words}
    near = difflib.get_close_matches(str(word).casefold(), list(by_case), n=1, cutoff=cutoff)
    return by_case[near[0]] if near else None


def clean(message: str) -> str:
    r"""A message as one line without control characters, cut where it is too long.

    >>> clean("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)
    return line if len(line) < _LONGEST else f"{line[: _LONGEST - 4]}..."


def _alternatives(value: Any, allowed: str | Sequence[str]) -> str:
    if isinstance(allowed, str):
        return f"allowed: {allowed}"
    near = nearest(value, allowed) if isinstance(value, str) else None
    hint = "" if near is None else f"did you mean {near!r}? "
    return f"{hint}allowed: {listed(allowed)}"
