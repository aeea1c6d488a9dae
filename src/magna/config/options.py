"""Frozen dataclasses of options, whose fields carry their help, range and conditions."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from magna.errors import ArgumentError, UnknownName

_KEY = "option"
Kind = TypeVar("Kind", bound="Options")
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}


class Needs(NamedTuple):
    """A condition without which an option would do nothing."""

    words: str  # such as "mode 'truncated'"
    holds: Callable[[Any], bool]  # of the options as a whole


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its name, type and default."""

    help: str
    low: float | None = None  # the least value
    high: float | None = None  # the largest value
    above: float | None = None  # the value must be larger than this
    below: float | None = None  # the value must be smaller than this
    per_trial: bool = False  # may differ between the trials of one batch
    in_recipes: bool = True  # false: the data or the calling module sets it
    needs: Needs | None = None
    was: tuple[str, ...] = ()  # former names

    @property
    def range(self) -> str:
        """The numbers that are allowed, in words.

        >>> Option("", low=0, below=1).range, Option("", above=0).range, Option("", low=1).range
        ('0 or more and below 1', 'above 0', '1 or more')
        """
        ends = []
        if self.above is not None:
            ends.append(f"above {self.above}")
        if self.low is not None and self.high is not None:
            return f"{self.low} to {self.high}"
        if self.low is not None:
            ends.append(f"{self.low} or more")
        if self.high is not None:
            ends.append(f"{self.high} or less" if not ends else f"at most {self.high}")
        if self.below is not None:
            ends.append(f"below {self.below}")
        return " and ".join(ends)

    def allows(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def option(default: Any, help: str, **info: Any) -> Any:
    """A dataclass field with an :class:`Option` in its metadata."""
    return field(default=default, metadata={_KEY: Option(help, **info)})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all option dataclasses: every field is checked by type and range when an instance is made.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Hops(Options):
    ...     K: int = option(6, "Number of hops.", low=0, per_trial=True)
    >>> Hops(K=-1)
    Traceback (most recent call last):
    magna.errors.ArgumentError: K is -1; allowed: 0 or more
    >>> Hops.from_flat({"k": 3})
    Traceback (most recent call last):
    magna.errors.UnknownName: option is 'k'; did you mean 'K'? allowed: 'K'
    """

    def __post_init__(self) -> None:
        for name, info in self.options().items():
            value = checked(name, getattr(self, name), self.types()[name])
            if isinstance(value, int | float) and not isinstance(value, bool) and not info.allows(value):
                raise ArgumentError(name, value, info.range)
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Every option by its name."""
        return _options(cls)  # type: ignore[arg-type]

    @classmethod
    def types(cls) -> dict[str, Any]:
        """The type of every option."""
        return hints(cls)  # type: ignore[arg-type]

    @classmethod
    def per_trial(cls) -> frozenset[str]:
        """The options that may differ between the trials of one batch."""
        return frozenset(name for name, info in cls.options().items() if info.per_trial)

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Options from keyword values; unknown names and values that would do nothing are refused."""
        for name in values:
            cls.check_name(name)
        options = cls(**values)
        for name in values:
            options.check_need(name)
        return options

    @classmethod
    def check_name(cls, name: str) -> None:
        """Refuse a name that is no option, naming its new name or the nearest one."""
        known = cls.options()
        if name in known:
            return
        moved = next((new for new, info in known.items() if name in info.was), None)
        if moved is not None:
            raise UnknownName("option", name, f"{moved}, its new name")
        raise UnknownName("option", name, list(known))

    def check_need(self, name: str) -> None:
        """Refuse a value that would do nothing."""
        need = self.options()[name].needs
        if need is not None and not need.holds(self):
            raise ArgumentError(name, getattr(self, name), f"only with {need.words}")

    def applies(self, name: str) -> bool:
        """True if the option does something beside the others."""
        need = self.options()[name].needs
        return need is None or need.holds(self)

    def changes(self) -> dict[str, Any]:
        """The values that differ from their defaults."""
        return {name: value for name in self.options() if (value := getattr(self, name)) != getattr(type(self), name)}

    def applied(self) -> dict[str, Any]:
        """The values of all options that do something beside the others."""
        return {name: getattr(self, name) for name in self.options() if self.applies(name)}

    def part(self, kind: type[Kind], **values: Any) -> Kind:
        """The options of a base class alone, some of them replaced."""
        return kind(**{name: getattr(self, name) for name in kind.options()} | values)

    def with_values(self, **values: Any) -> Self:
        """The same options with some values replaced; names are checked."""
        for name in values:
            self.check_name(name)
        return replace(self, **values)


@cache
def _options(kind: type[Options]) -> dict[str, Option]:
    return {entry.name: entry.metadata[_KEY] for entry in fields(kind) if _KEY in entry.metadata}


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The resolved annotations of a class."""
    return get_type_hints(kind)


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value as the type that its field asks for.

    >>> checked("alpha", 1, float), checked("top_k", "none", int | None)
    (1.0, None)
    """
    if get_origin(hint) in (Union, types.UnionType):
        kinds = get_args(hint)
        if type(None) in kinds and value in (None, "none"):
            return None
        # `bool | int`: the exact type, so that true stays true; a whole number is a number as well.
        kind = next((k for k in kinds if type(value) is k or (k is float and type(value) is int)), None)
        if kind is None and not any(get_origin(k) is Literal for k in kinds):
            raise ArgumentError(name, value, " or ".join(_WORDS[k] for k in kinds))
        return checked(name, value, kind or next(k for k in kinds if get_origin(k) is Literal))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ArgumentError(name, value, get_args(hint))
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    kind = get_origin(hint) or hint
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ArgumentError(name, value, _WORDS.get(kind, kind.__name__))
    if kind is float and not math.isfinite(value):
        raise ArgumentError(name, value, "a finite number")
    return value


def walk(kind: type[Options]) -> Iterator[tuple[str, Any, Any, Option]]:
    """(name, type, default, option) of every option that a recipe may set."""
    defaults = {entry.name: entry.default for entry in fields(kind)}
    for name, info in kind.options().items():
        if info.in_recipes:
            yield name, kind.types()[name], defaults[name], info
