"""The private names of torch stand in one file, and this torch has each of them."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src" / "magna" / "graph" / "torch_internals.py"
# Attributes of values, by the value that the file reads them from.
VALUES = {
    "tensor": torch.zeros(1),
    "storage": torch.zeros(1).untyped_storage(),
    "module": torch.nn.Identity(),
    "forward_ad": torch.autograd.forward_ad,
    "torch_module": torch.nn.modules.module,
    "torch": torch,
}


def private_names(file: Path) -> set[str]:
    """Private names that a file takes from torch: imports, and attributes after `torch` or another value."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and re.search(r"^torch\b.*\._", f"{node.module}."):
            names |= {f"{node.module}:{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if re.search(r"^torch\b.*\._", alias.name)}
        if isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            if re.fullmatch(r"\w+(\.\w+)*\._\w+(\.\w+)*", chain) and chain.split(".")[0] in VALUES:
                names.add(chain)
    return names


@pytest.mark.parametrize("name", sorted(private_names(FILE)))
def test_this_torch_has_the_name(name: str) -> None:
    module, _, path = name.partition(":")
    try:
        value = importlib.import_module(module) if path else VALUES[name.split(".")[0]]
        for part in (path or name.partition(".")[2]).split("."):
            value = getattr(value, part)
    except (AttributeError, ImportError):
        if name.endswith("_dynamo_marked_constant"):  # set, not read
            return
        pytest.fail(
            f"torch {torch.__version__} has no {name} any more. Change {FILE.name}, which is the only file to use it, "
            "and only then raise the upper bound of torch in pyproject.toml."
        )


def test_no_other_file_uses_one() -> None:
    others = {
        str(path.relative_to(ROOT)): names
        for path in (ROOT / "src").rglob("*.py")
        if path != FILE and (names := {name for name in private_names(path) if re.match(r"torch\b", name)})
    }
    assert others == {}


def test_torch_is_bounded_because_of_them() -> None:
    """A newer minor version of torch may lack a name, so that none is installed before this file has run with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = (line for line in project["dependencies"] if re.match(r"torch\b[^-]", line))
    bound = re.search(r"<(\d+)\.(\d+)", requirement)
    assert bound, f"{requirement} has no upper bound; allowed: the next minor version after the tested one"
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    assert (int(bound[1]), int(bound[2])) == (major, minor + 1)
