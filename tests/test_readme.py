"""The example, the commands, the links and the tables of the README."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from tools.report import speed_table, with_tables

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tables_are_generated_from_the_files() -> None:
    assert with_tables(README, ROOT) == README, "run python -m tools.report"


@pytest.mark.slow
def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 16
    exec(compile(example, "README.md", "exec"), {})
    assert float(capsys.readouterr().out.partition("%")[0]) > 90


def test_the_two_commands_are_there() -> None:
    assert "python -m pip install -c constraints.txt . && magna train" in README
    assert 'python -m pip install -c constraints.txt ".[test]" && python -m pytest' in README


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        if not link.startswith(("http", "#")):
            assert (ROOT / link).exists(), link


def test_speed_table_takes_the_median_of_the_last_commit(tmp_path: Path) -> None:
    columns = ["device", "graph", "dtype", "backend", "commit", "ms", "peer", "peer_ms", "ratio"]
    rows = [
        ["A CPU", "cora", "float32", "cpu", "old", "20", "pyg", "200", "10"],
        ["A CPU", "cora", "float32", "cpu", "new", "10.25", "pyg", "1234", "120.4"],
        ["A CPU", "cora", "float32", "cpu", "new", "11", "pyg", "1100", "100"],
        ["A CPU", "cora", "float32", "cpu", "new", "9", "pyg", "1800", "200"],
        ["A CPU", "cora", "bfloat16", "cpu", "new", "1", "pyg", "1", "1"],
        ["A CPU", "cora", "float32", "pyg", "new", "1234", "", "", ""],
    ]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    assert speed_table(tmp_path).rows == [["A CPU", "cora", "cpu", "10.2", "1,234", "120.4 ×", "3"]]


def test_a_readme_without_a_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no single place for the headline-nodes table"):
        with_tables("nothing", tmp_path)
