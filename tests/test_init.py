"""The public names, and what importing them costs."""

import subprocess
import sys

import magna
from magna.graph import Graph


def test_every_public_name_is_there():
    for name in magna.__all__:
        assert getattr(magna, name) is not None
        assert name in dir(magna)
    assert magna.Graph is Graph


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(magna, "MAGMA")


def test_import_pays_neither_for_torch_nor_for_triton():
    code = "import sys, magna; assert not {'torch', 'triton', 'huggingface_hub'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_layer_does_not_import_the_compiler_or_an_extra():
    """The compiler takes as long to import as torch itself; `benchmarks.md` has the measured ratio."""
    extras = "scipy", "sklearn", "torch_geometric", "huggingface_hub", "torch._dynamo", "sympy"
    code = f"import sys; from magna import MAGNAConv; assert not set({extras}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_modules_work_without_triton():
    code = """
import sys
sys.modules["triton"] = None
import torch, magna
assert magna.MAGNAConv(4, 4)(torch.ones(2, 4), torch.tensor([[0], [1]])).shape == (2, 4)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
