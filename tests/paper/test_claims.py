"""One process at a time works on a cell, and a killed one blocks nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from magna.paper.claims import claimed

CLAIMING = """
import sys
from pathlib import Path
from magna.paper.claims import claimed
with claimed(Path(sys.argv[1])) as free:
    print(free, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["ends", "killed"])
def test_a_claim_ends_with_its_process(tmp_path: Path, way: str) -> None:
    cell = tmp_path / "table1" / "cora" / "gat.json"
    command = [sys.executable, "-c", CLAIMING, str(cell)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "True\n"
        with claimed(cell) as free:
            assert not free
        with claimed(cell.with_name("gcn.json")) as free:
            assert free
        if way == "killed":
            other.kill()
        other.communicate()
    assert [path.name for path in cell.parent.iterdir()] == ([".gat.json.lock"] if way == "killed" else [])
    with claimed(cell) as free:
        assert free
    assert list(cell.parent.iterdir()) == []


def test_a_claim_ends_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(tmp_path / "cell.json"):
        raise KeyboardInterrupt
    with claimed(tmp_path / "cell.json") as free:
        assert free
