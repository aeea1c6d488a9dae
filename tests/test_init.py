"""Public names, and the cost of importing them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import magna
from magna.graph import Graph

EXTRAS = {"triton", "scipy", "sklearn", "torch_geometric", "huggingface_hub", "optuna", "pyarrow", "pandas"}


def test_every_public_name_exists() -> None:
    assert all(getattr(magna, name) is not None and name in dir(magna) for name in magna.__all__)
    assert magna.Graph is Graph and not hasattr(magna, "MAGMA")


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import magna", {"torch", *EXTRAS}),
        # The compiler takes as long to import as torch itself.
        (
            "from magna import MAGNAConv; list(MAGNAConv(4, 4).modules())",
            {"torch._dynamo", "sympy", *EXTRAS} - {"triton"},
        ),
    ],
)
def test_an_import_pays_for_no_extra(statement: str, heavy: set[str]) -> None:
    code = f"import sys; {statement}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_layer_works_without_triton_and_the_extras() -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))
import torch, magna
assert magna.MAGNAConv(4, 4)(torch.ones(2, 4), torch.tensor([[0], [1]])).shape == (2, 4)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_functions_of_the_root_are_those_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"train.epochs": 1, "model.hidden_channels": 8}
    result = magna.train("digits", settings=small, device="cpu")
    assert result["recipe"] == "digits" and result["runs"][0]["run_dir"] == "runs/digits"
    assert magna.evaluate("runs/digits")["metrics"] == result["runs"][0]["test"]
    assert magna.predict("runs/digits", [3]).columns()["id"] == ["3"]
    assert magna.plan(magna.load_recipe("digits"), settings=small, measure=False)["time"]["epochs"] == 1
    graph = Path(__file__).parents[1] / "examples" / "own_graph"
    assert magna.train(graph, recipe="cora", settings=small, device="cpu")["runs"][0]["run_dir"] == "runs/own_graph"


def test_a_number_of_seeds_that_nobody_means_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seeds is 1000000000; allowed: 1 to 10,000"):
        magna.train("digits", seeds=10**9)
