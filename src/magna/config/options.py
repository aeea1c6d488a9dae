"""Frozen dataclasses of options, whose fields carry their help, range and conditions."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from magna.errors import ArgumentError, UnknownName

_KEY = "option"
HUGE = 1 << 24  # more channels, epochs or queries than anyone can mean
Kind = TypeVar("Kind", bound="Options")
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}


class Needs(NamedTuple):
    """A condition without which an option would do nothing."""

    words: str  # such as "mode 'truncated'"
    holds: Callable[[Any], bool]  # of the options as a whole


@dataclass(frozen=True)
class Option:
    """Help, range and conditions of an option."""

    help: str
    low: float | None = None  # the least value
    high: float | None = None  # the largest value
    above: float | None = None  # the value must be larger than this
    below: float | None = None  # the value must be smaller than this
    per_trial: bool = False  # may differ between the trials of one batch
    in_recipes: bool = True  # false: the data or the calling module sets it
    names: Callable[[], Collection[str]] | None = None  # the registered names that a text may be
    needs: Needs | None = None  # condition on the options beside it
    model_needs: Needs | None = None  # condition on the model's options
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
            return f"{self.low:,} to {self.high:,}"
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


def with_default(base: type[Options], name: str, default: Any) -> Any:
    """The field of a base class with another default."""
    return field(default=default, metadata={_KEY: base.options()[name]})


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
        for name in self.options():
            object.__setattr__(self, name, self.checked_value(name, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""

    @classmethod
    def checked_value(cls, name: str, value: Any) -> Any:
        """The value of one option, checked by type and range."""
        value, info = checked(name, value, cls.types()[name]), cls.options()[name]
        if isinstance(value, int | float) and not isinstance(value, bool) and not info.allows(value):
            raise ArgumentError(name, value, info.range)
        if info.names is not None and value not in (names := info.names()):
            raise UnknownName(name, value, list(names))
        return value

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Every option by its name."""
        return _options(cls)  # type: ignore[arg-type]

    @classmethod
    def types(cls) -> dict[str, Any]:
        """The type of every option."""
        return hints(cls)  # type: ignore[arg-type]

    @classmethod
    def in_recipes(cls) -> list[str]:
        """The options that a recipe may set."""
        return [name for name, info in cls.options().items() if info.in_recipes]

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
        if (words := self.unmet(name)) is not None:
            raise ArgumentError(name, getattr(self, name), f"only with {words}")

    def unmet(self, name: str) -> str | None:
        """The condition, in words, that the option would need to do something; None if it does."""
        need = self.options()[name].needs
        return None if need is None or need.holds(self) else need.words

    def applied(self) -> dict[str, Any]:
        """The values of all options that do something beside the others."""
        return {name: getattr(self, name) for name in self.options() if self.unmet(name) is None}

    def recipe_values(self) -> dict[str, Any]:
        """The applied values of the options that a recipe may set."""
        return {name: value for name, value in self.applied().items() if self.options()[name].in_recipes}

    def changes(self) -> dict[str, Any]:
        """The values that differ from their defaults."""
        return {name: value for name in self.options() if (value := getattr(self, name)) != getattr(type(self), name)}

    def part(self, kind: type[Kind], **values: Any) -> Kind:
        """The options of a base class alone, some of them replaced."""
        return kind(**{name: getattr(self, name) for name in kind.options()} | values)

    def with_defaults(self, names: Collection[str]) -> Self:
        """The same options with some of them at their defaults."""
        defaults = {
            name: getattr(type(self), name) for name in names if getattr(self, name) != getattr(type(self), name)
        }
        return replace(self, **defaults) if defaults else self


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
