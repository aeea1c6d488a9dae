"""The house is built as `docs/floor_plan.md` says: rooms, sizes, names and examples."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "magna"
FILES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
# A file should read in one sitting: a little room above the 300 lines of the plan, 600 for kernels.
LINES, KERNEL_LINES = 450, 600

_ENTRY = re.compile(r"^((?:[│ ]   )*)[├└]── (\S+)(?:\s+(\d+)  )?")


class Room(NamedTuple):
    number: int
    place: int  # in the plan, from the top


def plan() -> dict[str, Room]:
    """Every file of the plan's tree, by its path below src/magna; a folder's number is that of its files."""
    tree = (ROOT / "docs" / "floor_plan.md").read_text().split("```")[1]
    rooms: dict[str, Room] = {}
    folder, number = "", 0
    for place, line in enumerate(tree.splitlines()):
        entry = _ENTRY.match(line)
        if entry is None:
            continue
        indent, name, own = entry.groups()
        if not indent:
            folder, number = (name if name.endswith("/") else ""), int(own or 99)
            if folder:
                continue
        rooms[(folder if indent else "") + name] = Room(number, place)
    return rooms


PLAN = plan()


def is_kernel(file: Path) -> bool:
    return file.parent.name == "kernels" or file.name == "cpu_kernels.py" or file.name.startswith("triton_")


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import, also of those inside functions."""
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def file_of(module: str, name: str) -> str | None:
    """The file of this project that an import reads, or None for other packages."""
    if module.split(".")[0] != "magna":
        return None
    for path in ([*module.split("."), name][1:], module.split(".")[1:]):
        stem = "/".join(path)
        if path and f"{stem}.py" in PLAN:
            return f"{stem}.py"
        if path and f"{stem}/__init__.py" in PLAN:
            return f"{stem}/__init__.py"
    return "__init__.py"


def test_every_file_has_a_room_and_every_room_a_file() -> None:
    assert {str(file) for file in FILES} == {name for name in PLAN if name.endswith(".py")}
    assert all((SOURCE / name).exists() for name in PLAN)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_flow_one_way(file: Path) -> None:
    here = PLAN[str(file)]
    for module, name in imports(file):
        there = file_of(module, name)
        if there is None or str(file) == "__init__.py":
            continue
        if there == "__init__.py":
            assert name == "__version__", f"{file} takes {name} from magna; take it from the module where it lives"
            continue
        assert PLAN[there] < here, f"{file} (room {here.number}) imports {there} (room {PLAN[there].number})"


def test_only_triton_files_import_triton() -> None:
    users = {file.name for file in FILES for module, _ in imports(file) if module.split(".")[0] == "triton"}
    assert users and all(name.startswith("triton_") for name in users)


def test_files_read_in_one_sitting() -> None:
    sources = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.cpp"), *SOURCE.rglob("*.h")]
    lines = {path.relative_to(SOURCE): len(path.read_text().splitlines()) for path in sources}
    assert {file: n for file, n in lines.items() if n > (KERNEL_LINES if is_kernel(file) else LINES)} == {}


def test_no_drawer_for_everything() -> None:
    assert not {"utils", "helpers", "common", "misc"} & {part for file in FILES for part in file.with_suffix("").parts}


@pytest.mark.parametrize("package", ["magna", "magna.ops", "magna.nn", "magna.datasets"])
def test_public_names_are_exported_once(package: str) -> None:
    module = importlib.import_module(package)
    names = module.__all__
    assert len(names) == len(set(names))
    assert all(getattr(module, name) is not None for name in names)


MODULES = [".".join(["magna", *file.with_suffix("").parts]).removesuffix(".__init__") for file in FILES]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_examples_in_docstrings(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert failed == 0


def test_every_test_that_the_documents_name_exists() -> None:
    for page in ("math.md", "switches.md", "evaluation.md"):
        text = (ROOT / "docs" / page).read_text()
        for path, test in re.findall(r"`([\w/]*test_\w+\.py)(?:::(\w+))?`", text):
            found = [file for file in (ROOT / "tests").rglob(Path(path).name) if str(file).endswith(path)]
            assert found, f"docs/{page}: there is no {path}"
            if test:
                assert any(f"def {test}(" in file.read_text() for file in found), f"docs/{page}: no {test} in {path}"
        everything = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
        for test in re.findall(r"`(test_\w+)`", text):
            assert f"def {test}(" in everything, f"docs/{page}: there is no {test}"
