"""The public data sets and the page that lists them."""

from __future__ import annotations

from pathlib import Path

from magna.data import DATASETS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "data.md"


def test_the_page_lists_every_data_set_as_the_registry_does() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    listed = {row[0].strip("| `"): (row[2], row[3].removesuffix(" |")) for row in rows if row[1] in ("nodes", "links")}
    assert listed == {name: (each.size.split(";")[0], each.licence) for name, each in DATASETS.items()}
