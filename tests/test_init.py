"""Public names, and the cost of importing them."""

from __future__ import annotations

import subprocess
import sys

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
