"""Public names, and the cost of importing them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import magna
from magna.graph import Graph


def test_every_public_name_exists() -> None:
    for name in magna.__all__:
        assert getattr(magna, name) is not None
        assert name in dir(magna)
    assert magna.Graph is Graph


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(magna, "MAGMA")


def test_the_import_pays_neither_for_torch_nor_for_triton() -> None:
    code = "import sys, magna; assert not {'torch', 'triton', 'huggingface_hub'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_layer_imports_neither_the_compiler_nor_an_extra() -> None:
    """The compiler takes as long to import as torch itself."""
    heavy = {"scipy", "sklearn", "torch_geometric", "huggingface_hub", "optuna", "torch._dynamo", "sympy"}
    code = f"import sys; from magna import MAGNAConv; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_layer_works_without_triton_and_the_extras() -> None:
    code = """
import sys
for name in ("triton", "scipy", "sklearn", "torch_geometric", "huggingface_hub", "optuna", "pyarrow", "pandas"):
    sys.modules[name] = None
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
    assert len(magna.predict("runs/digits", [3]).ids) == 1
    assert magna.plan(magna.load_recipe("digits"), settings=small, measure=False)["time"]["epochs"] == 1
    graph = Path(__file__).parents[1] / "examples" / "own_graph"
    assert magna.train(graph, recipe="cora", settings=small, device="cpu")["runs"][0]["run_dir"] == "runs/own_graph"


def test_a_number_of_seeds_that_nobody_means_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seeds is 1000000000; allowed: 1 to 10,000"):
        magna.train("digits", seeds=10**9)
