"""Public data sets in tests."""

from __future__ import annotations

import pytest

from magna.data import DATASETS


def needs(name: str) -> None:
    """Skip the test if the data folder does not have the files of a data set."""
    if not DATASETS[name].is_present():
        pytest.skip(f"{name} is not in the data folder (MAGNA_DATA_DIR)")
