"""The examples run, stay short, and print the numbers that they claim."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
# The printed numbers, as a pattern, and the least of each.
CLAIMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "diffusion.py": (r"exact: node 0 listens to \[0.241, 0.312, 0.213, 0.161, (0.073)\]", (0.073,)),
    "layer_in_pyg.py": (r"accuracy outside the four labels: (\S+)", (0.5,)),  # the largest group has 38 %
    "link_prediction.py": (r"test MRR after two epochs: (\S+)", (0.03,)),  # of random scores about 0.01
    "model_files.py": (r"the loaded model agrees: True; K=(4), alpha=(0.2)", (4, 0.2)),
    "own_model.py": (r"test accuracy: (\S+), from the run folder: (\S+)", (0.5, 0.5)),
    "typed_edges.py": (r"mean attention: (\S+) on edges of type 0, (\S+) on edges of type 1", (0.0, 0.0)),
}


def test_the_page_has_one_line_for_each_example() -> None:
    folder = Path(__file__).parents[1] / "examples"
    names = {path.name for path in folder.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name[0] != "_")}
    assert sorted(re.findall(r"^\| \[\S+\]\((\S+)\) \|", (folder / "README.md").read_text(), re.MULTILINE)) == sorted(
        names
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    pattern, least = CLAIMS[path.name]
    match = re.search(pattern, run.stdout)
    assert match, run.stdout
    numbers = [float(number) for number in match.groups()]
    assert all(number >= bound for number, bound in zip(numbers, least, strict=True)), run.stdout
    if path.name == "own_model.py":
        assert numbers[0] == numbers[1], "the saved model is the trained one"
    if path.name == "typed_edges.py":
        assert numbers[0] > 3 * numbers[1], "the useful edges get more attention"
