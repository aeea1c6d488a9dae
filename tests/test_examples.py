"""The examples run, and stay short enough to read."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {
    "diffusion.py": "hops for 1 %: 51",
    "link_prediction.py": "test MRR after two epochs: 0.",
    "layer_in_pyg.py": "accuracy outside the four labels: 0.",
    "model_files.py": "the loaded model agrees: True; K=4, alpha=0.2",
    "typed_edges.py": "mean attention",
}


def test_every_example_has_its_answer():
    assert {path.name for path in EXAMPLES} == SAYS.keys()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path):
    assert len(path.read_text().splitlines()) <= 40
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert SAYS[path.name] in ran.stdout
