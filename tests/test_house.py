"""The house is built as `docs/floor_plan.md` says: rooms, sizes, names and examples."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "magna"
FILES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
# A file should read in one sitting.
LINES, KERNEL_LINES = 450, 600
ENTRIES = 16  # at the top of the package, dunders and py.typed not counted

_ENTRY = re.compile(r"^[├└]── (\S+?)/?\s")


def plan() -> dict[str, int]:
    """The place of every room in the plan's tree, from the top."""
    tree = (ROOT / "docs" / "floor_plan.md").read_text().split("```")[1]
    rooms = [entry[1] for line in tree.splitlines() if (entry := _ENTRY.match(line))]
    return {room: place for place, room in enumerate(rooms)}


PLAN = plan()


def is_kernel(file: Path) -> bool:
    return file.parts[:2] in {("ops", "cpu"), ("ops", "triton")}


@cache
def imports(file: Path) -> tuple[tuple[str, str], ...]:
    """(module, name) of every import, also of those inside functions."""
    pairs: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.Import):
            pairs += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            pairs += [(node.module or "", alias.name) for alias in node.names]
    return tuple(pairs)


def file_of(module: str, name: str) -> Path | None:
    """The file of this project that an import reads, or None for other packages."""
    if module.split(".")[0] != "magna":
        return None
    for parts in ([*module.split("."), name][1:], module.split(".")[1:]):
        for path in (Path(*parts, "__init__.py"), Path(*parts).with_suffix(".py") if parts else Path("__init__.py")):
            if path in FILES:
                return path
    raise AssertionError(f"there is no {module}.{name}")


def test_every_file_has_a_room_and_every_room_a_file() -> None:
    assert {file.parts[0] for file in FILES} - {"__main__.py"} == set(PLAN)


def test_few_entries_at_the_top() -> None:
    entries = [path.name for path in SOURCE.iterdir() if not path.name.startswith("__") and path.name != "py.typed"]
    assert len(entries) <= ENTRIES, sorted(entries)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_flow_one_way(file: Path) -> None:
    for module, name in imports(file):
        target = file_of(module, name)
        if target is None or file in (Path("__init__.py"), Path("__main__.py")):
            continue
        if target == Path("__init__.py"):
            assert name == "__version__", f"{file} takes {name} from magna; take it from the module where it lives"
            continue
        assert PLAN[target.parts[0]] <= PLAN[file.parts[0]], f"{file} imports {target}, a later room"


def test_no_circle_of_imports() -> None:
    graph = {
        file: {target for pair in imports(file) if (target := file_of(*pair)) not in (None, file)} for file in FILES
    }
    del graph[Path("__init__.py")]  # its names are looked up on first use
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(f"a circle: {' → '.join(map(str, error.args[1]))}") from None


def test_only_triton_files_import_triton() -> None:
    users = {file.parts[:2] for file in FILES for module, _ in imports(file) if module.split(".")[0] == "triton"}
    assert users == {("ops", "triton")}


def test_tests_mirror_the_source() -> None:
    folders = {file.parent for file in FILES}
    tests = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    assert [str(test) for test in tests if test.parent not in folders] == []


def test_files_read_in_one_sitting() -> None:
    sources = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.cpp"), *SOURCE.rglob("*.h")]
    lines = {path.relative_to(SOURCE): len(path.read_text().splitlines()) for path in sources}
    assert {file: n for file, n in lines.items() if n > (KERNEL_LINES if is_kernel(file) else LINES)} == {}


def test_no_drawer_for_everything() -> None:
    assert not {"utils", "helpers", "common", "misc"} & {part for file in FILES for part in file.with_suffix("").parts}


@pytest.mark.parametrize("package", ["magna", "magna.ops", "magna.nn", "magna.data"])
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
