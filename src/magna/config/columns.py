"""Columns of a user's tables as settings name them: new names, and columns that are left out."""

from __future__ import annotations

import csv

from magna.errors import ArgumentError

ROLES = ("id", "label", "split", "source", "target", "type", "weight")
LABEL, FEATURE = "label:", "feature:"  # prefixes of one of several labels, and of an edge feature
_ALLOWED = f"{', '.join(ROLES)}, {LABEL}NAME or {FEATURE}NAME"


def listed_names(setting: str, text: str) -> tuple[str, ...]:
    """Names between commas; one with a comma in it stands in double quotes.

    >>> listed_names("ignore", 'note, "last, first"')
    ('note', 'last, first')
    """
    try:
        names = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error:
        raise ArgumentError(setting, text, "names with commas between them, such as note,date") from None
    return tuple(name.strip() for name in names if name.strip())


def new_names(text: str) -> dict[str, str]:
    """The meaning of a column by its name in the file.

    >>> new_names("id=worker, label=team")
    {'worker': 'id', 'team': 'label'}
    """
    meanings: dict[str, str] = {}
    for entry in listed_names("columns", text):
        meaning, equals, name = (part.strip() for part in entry.partition("="))
        if not (equals and name):
            raise ArgumentError("columns", entry, "MEANING=COLUMN with commas between, such as id=worker,label=team")
        if meaning not in ROLES and not (meaning.startswith((LABEL, FEATURE)) and not meaning.endswith(":")):
            raise ArgumentError("columns", entry, f"before the = one of {_ALLOWED}")
        if name in meanings or meaning in meanings.values():
            raise ArgumentError("columns", entry, "each meaning and each column once")
        meanings[name] = meaning
    return meanings
