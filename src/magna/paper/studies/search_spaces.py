"""The published search spaces beside those of the `-paper` recipes, which `magna sweep` runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magna.config.schema import Config, load_recipe
from magna.config.spaces import split_key
from magna.config.toml import Range
from magna.errors import ArgumentError
from magna.paper.published import PAPER_SPACES, PublishedSpace
from magna.paper.render import TextTable
from magna.paper.study import Outcome, StudyJob

_CAPTION = (
    "Search spaces of Tables 8, 9 and 10 of the paper, and of the recipes that magna sweep RECIPE runs. Rates and "
    "decays are drawn evenly in the logarithm here; the paper does not say how it draws them. The optimiser is Adam."
)
_HEADER = ["published in", "recipe", "hyper-parameter", "published", "setting", "in the recipe", "same"]


def compare_spaces(job: StudyJob) -> Outcome:
    """One line for each hyper-parameter of each recipe; `same` is yes where it is searched as published."""
    recipes = [recipe for space in PAPER_SPACES for recipe in space.recipes]
    names = {load_recipe(recipe).data.name: recipe for recipe in recipes}
    for dataset in job.datasets or ():
        if dataset not in names:
            raise ArgumentError("data set of search-spaces", dataset, list(names))
    chosen = {names[dataset] for dataset in job.datasets or names}
    rows = [
        [space.table, recipe, *line]
        for space in PAPER_SPACES
        for recipe in space.recipes
        if recipe in chosen
        for line in _lines(space, load_recipe(recipe))
    ]
    return Outcome(TextTable(_HEADER, rows), _CAPTION)


def _lines(space: PublishedSpace, config: Config) -> Iterator[list[str]]:
    """Hyper-parameter, published values, setting, values of the recipe, and yes or no."""
    values = config.to_dict()
    searched = {name: values for key, values in config.search.items() for name in split_key(key)}
    for word, (key, value) in space.fixed.items():
        ours = searched.get(key, _setting(values, key))
        yield [word, f"{value}, fixed", f"`{key}`", _text(ours), _yes(ours == value)]
    for word, (keys, published) in space.searched.items():
        for key in keys:
            ours = searched.get(key, _setting(values, key))
            yield [word, _text(published), f"`{key}`", _text(ours), _yes(_values(ours) == _values(published))]


def _setting(values: Mapping[str, Any], key: str) -> Any:
    table, _, name = key.partition(".")
    return values[table][name]


def _values(space: Any) -> Any:
    """A choice as a tuple; a range of whole numbers as the choice of all of them; other ranges as their bounds."""
    if isinstance(space, Range):
        whole = isinstance(space.low, int) and isinstance(space.high, int) and space.step is None
        return tuple(range(int(space.low), int(space.high) + 1)) if whole else (space.low, space.high)
    return tuple(space) if isinstance(space, list | tuple) else space


def _text(space: Any) -> str:
    if isinstance(space, Range) and not isinstance(space.low, int):
        return f"{space.low:g} to {space.high:g}" + (", logarithmic" if space.log else "")
    values = _values(space)
    if isinstance(space, tuple):
        return f"{space[0]:g} to {space[1]:g}"
    return ", ".join(map(str, values)) if isinstance(values, tuple) else f"{values}, fixed"


def _yes(same: bool) -> str:
    return "yes" if same else "no"
