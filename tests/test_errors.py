"""Messages of refusals: one line below 600 characters that names value, alternatives and cure."""

from __future__ import annotations

import pickle
import time
from importlib import metadata

import pytest
import torch

from magna.errors import ArgumentError, DataError, MissingExtra, UnknownName, similar

HOSTILE = "a\x1b[2J\n" + "x" * 5_000


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError(HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        ArgumentError("name", HOSTILE, [HOSTILE] * 50),
        ArgumentError("x", torch.zeros(100, 100), "a number"),
        DataError(HOSTILE, HOSTILE, line=3, allowed=HOSTILE, hint=HOSTILE),
        UnknownName("option", "alpa", [f"option_{i}" for i in range(1_000)]),
    ],
    ids=["argument", "list", "tensor", "file", "name"],
)
def test_a_message_is_one_short_line(error: ValueError) -> None:
    assert len(str(error)) < 600 and str(error).isprintable()


def test_values_lists_and_places_in_messages() -> None:
    words = "x is torch.float32 [2, 2] on cpu; allowed: a number"
    assert str(ArgumentError("x", torch.zeros(2, 2), "a number")) == words
    words = str(ArgumentError("data", "x", [f"set{i}" for i in range(20)]))
    assert words.endswith("'set10', 'set11', and 8 others") and "did you mean" not in words
    error = UnknownName("dropout", 2, "0 to 1", "a half").renamed("model.dropout")
    assert type(error) is UnknownName and str(error) == "model.dropout is 2; allowed: 0 to 1; try a half"
    assert str(DataError("a.parquet", "no id", line=3)) == "a.parquet, row 3: no id"


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError("K", -1, "0 or more", "6"),
        UnknownName("key", "a", ["b"]),
        DataError("nodes.csv", "no id", 3, allowed="an id", hint="another file"),
        MissingExtra("Parquet", "pyarrow", "parquet"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error: ValueError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("installed", "name"),
    [({}, "magna-gnn"), ({"magna": ["magna-gnn", "magna"]}, "magna-gnn"), ({"magna": ["magna-lab"]}, "magna-lab")],
)
def test_a_missing_extra_names_the_distribution(
    installed: dict[str, list[str]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "packages_distributions", lambda: installed)
    words = f'a search needs optuna, which is not installed; try pip install "{name}[search]"'
    assert str(MissingExtra("a search", "optuna", "search")) == words


def test_similar_names_in_another_case_or_a_longer_form() -> None:
    assert similar("BERLIN", ["Berlin", "Paris"]) == similar("BERLLIN", ["Paris", "Berlin"]) == ["Berlin"]
    assert similar("straße", ["STRASSE", "street"])[0] == "STRASSE"
    states = [f"Federal Republic of {name}" for name in ("Nigeria", "Yugoslavia", "Somalia", "Brazil")]
    assert similar("Federal Republic of Germany", [*states, "Paris", "Germany", "of"])[0] == "Germany"
    assert similar("germany", [*states, "Norway", "Federal_Republic_of_Germany"])[0] == "Federal_Republic_of_Germany"
    # Among so many that not all are compared in full.
    many = [f"Federal Republic of {number}" for number in range(500)]
    assert similar("Federal Republic of Germany", [*many, "Germany"])[0] == "Germany"
    assert similar("+", ["a", "b c"]) == [] and similar("Rome", ["Berlin", "Paris"]) == []


def test_similar_names_come_fast_among_many() -> None:
    names = [f"{number * 2_417 % 10**8:08d}" for number in range(40_000)]
    wanted = names[31_415]
    start = time.process_time()
    near = similar(wanted[:3] + "x" + wanted[4:], names)
    assert near[0] == wanted and len(near) == 3
    assert time.process_time() - start < 2  # about 0.1 s; comparing all of them in full takes several
