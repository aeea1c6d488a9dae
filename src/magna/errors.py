"""Errors that teach: the name and value that came, the values that are allowed, and a hint."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

_LONGEST = 600  # characters of a message
_LONGEST_VALUE = 120
_MOST_WORDS = 12  # of a list of alternatives
_SIMILAR = 0.5  # less similar names are not offered
_CONTAINED = 0.5
_BETWEEN_WORDS = re.compile(r"[\W_]+")
_DISTRIBUTION = "magna-gnn"  # unless the metadata has another name


class _Portable:
    """An error that pickle builds again from its fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **vars(self)), ()


class ArgumentError(_Portable, ValueError):
    """A value that is refused; `allowed` is words or a list of alternatives, `hint` follows "try".

    >>> str(ArgumentError("K", -1, "0 or more"))
    'K is -1; allowed: 0 or more'
    >>> str(ArgumentError("mode", "exakt", ["truncated", "exact"]))
    "mode is 'exakt'; did you mean 'exact'? allowed: 'truncated', 'exact'"
    """

    def __init__(self, name: str, value: Any, allowed: str | Sequence[str], hint: str = "") -> None:
        self.name, self.value, self.allowed, self.hint = name, value, allowed, hint
        super().__init__(_sentence(f"{name} is {shortened(value)}", _alternatives(value, allowed), hint))

    def renamed(self, name: str) -> ArgumentError:
        """The same refusal under another name, such as that of a setting."""
        return type(self)(name, self.value, self.allowed, self.hint)


class UnknownName(ArgumentError):
    """A name that nothing has, with the nearest valid one.

    >>> str(UnknownName("option", "allpha", ["alpha", "heads"]))
    "option is 'allpha'; did you mean 'alpha'? allowed: 'alpha', 'heads'"
    """


class DataError(_Portable, ValueError):
    """A file or folder that cannot be used; lines, and the rows of a Parquet file, count from 1.

    >>> str(DataError("nodes.csv", "the id 'a' appears twice", line=3, hint="another id"))
    "nodes.csv, line 3: the id 'a' appears twice; try another id"
    """

    def __init__(
        self, file: str | Path, fault: str, line: int | None = None, *, allowed: str = "", hint: str = ""
    ) -> None:
        self.file, self.fault, self.line, self.allowed, self.hint = file, fault, line, allowed, hint
        unit = "row" if str(file).endswith(".parquet") else "line"
        place = f"{file}, {unit} {line}" if line is not None else str(file)
        super().__init__(_sentence(f"{place}: {fault}", f"allowed: {allowed}" if allowed else "", hint))


class MissingExtra(_Portable, ImportError, ValueError):
    """A package that a feature needs and that is not installed; an extra of this distribution installs it.

    >>> print(MissingExtra("Parquet", "pyarrow", "parquet"))
    Parquet needs pyarrow, which is not installed; try pip install "...[parquet]"
    """

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.feature, self.package, self.extra = feature, package, extra
        hint = f'pip install "{distribution()}[{extra}]"'
        super().__init__(_sentence(f"{feature} needs {package}, which is not installed", "", hint))


class Diverged(RuntimeError):
    """A loss that is not finite any more."""


def distribution() -> str:
    """Name under which pip knows the installed package."""
    from importlib import metadata  # which takes long to import

    names = metadata.packages_distributions().get("magna", [])
    return names[0] if names and _DISTRIBUTION not in names else _DISTRIBUTION


def shortened(value: Any) -> str:
    """Value as one line of a message, cut in the middle if it is long; a tensor as its type, shape and device.

    >>> shortened("x" * 500)[:5], len(shortened("x" * 500)) <= 120
    ("'xxxx", True)
    """
    if all(hasattr(value, part) for part in ("dtype", "shape", "device")):
        return f"{value.dtype} {list(value.shape)} on {value.device}"
    text = repr(value)
    if not isinstance(value, str):
        text = " ".join(text.split())  # a table prints several lines
    if len(text) <= _LONGEST_VALUE:
        return text
    half = (_LONGEST_VALUE - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def listed(words: Iterable[Any]) -> str:
    """Alternatives as one line, cut if they are many.

    >>> listed(["a", "b"])
    "'a', 'b'"
    """
    words = [shortened(word) for word in words]
    others = f", and {len(words) - _MOST_WORDS:,} others" if len(words) > _MOST_WORDS else ""
    return ", ".join(words[:_MOST_WORDS]) + others


def nearest(word: Any, words: Iterable[str]) -> str | None:
    """The most similar word, or None.

    >>> nearest("alpa", ["alpha", "heads"])
    'alpha'
    """
    return next(iter(similar(word, words, 1)), None)


def similar(word: Any, words: Iterable[str], count: int = 3) -> list[str]:
    """The most similar words in any case of letters, best first; fast among tens of thousands.

    >>> similar("anna-21", ["anna-12", "anna-2", "bert-21"], count=2)
    ['anna-2', 'anna-12']
    >>> similar("Republic of MALTA", ["Malta", "Mali", "Republic of Yemen"])
    ['Malta', 'Republic of Yemen']
    """
    wanted, wanted_pairs = _letter_pairs(str(word))

    def likeness(other: str) -> float:
        """Dice's coefficient of the letter pairs, and more if one name contains the other, word for word."""
        plain, pairs = _letter_pairs(other)
        dice = 2 * len(wanted_pairs & pairs) / (len(wanted_pairs) + len(pairs))
        return dice + (_CONTAINED if plain in wanted or wanted in plain else 0.0)

    best = heapq.nlargest(count, ((likeness(other), -place, other) for place, other in enumerate(words)))
    return [other for score, _, other in best if score >= _SIMILAR]


def nearest_path(path: str | Path, file: str = "") -> str | None:
    """A folder or file beside `path` with a similar name, and with this `file` in it; None if there is none."""
    path = Path(path)
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    near = nearest(path.name, sorted(each.name for each in siblings if not file or (each / file).is_file()))
    return None if near is None else str(path.with_name(near))


def clean(message: str) -> str:
    r"""Message as one line without control characters, cut if it is too long.

    >>> clean("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message[:_LONGEST])
    return line if len(line) < _LONGEST else f"{line[: _LONGEST - 4]}..."


def _sentence(fault: str, allowed: str, hint: str) -> str:
    return clean("; ".join(part for part in (fault, allowed, f"try {hint}" if hint else "") if part))


def _letter_pairs(name: str) -> tuple[str, set[str]]:
    """Words of a name in small letters between blanks, and their pairs of letters."""
    plain = f" {_BETWEEN_WORDS.sub(' ', name.casefold()).strip()} "
    return plain, {plain[at : at + 2] for at in range(len(plain) - 1)}


def _alternatives(value: Any, allowed: str | Sequence[str]) -> str:
    if isinstance(allowed, str):
        return f"allowed: {allowed}" if allowed else ""
    near = nearest(value, allowed) if isinstance(value, str) else None
    hint = "" if near is None else f"did you mean {near!r}? "
    return f"{hint}allowed: {listed(allowed)}"
