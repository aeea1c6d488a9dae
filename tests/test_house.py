"""The house is built as `docs/explanation/floor_plan.md` says: rooms, sizes, names and examples."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "magna"
FILES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
TESTS = sorted(path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py"))
# A file reads in one sitting, a function on one screen.
FILE_LINES, KERNEL_FILE_LINES, TEST_FILE_LINES = 300, 450, 600
FUNCTION_LINES, KERNEL_LINES = 50, 90  # without the docstring
BACKENDS = ("ops/reference.py", "ops/cpu/", "ops/triton/", "ops/gpu/")  # one operator has one name in each
VAGUE = {"own", "found", "there", "given", "kept", "here", "beside"}  # a local says what it contains
ASKS = re.compile(r"(What|Whether|Where|How|Why|Who)\b")
ENTRIES = 16  # at the top of the package, dunders and py.typed not counted

_ENTRY = re.compile(r"^[├└]── (\S+?)/?\s")


def plan() -> dict[str, int]:
    """The place of every room in the plan's tree, from the top."""
    tree = (ROOT / "docs" / "explanation" / "floor_plan.md").read_text().split("```")[1]
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
    """A test stands in the folder of its source, and its name begins with that of a file or says what it joins."""
    folders = {file.parent for file in FILES}
    tests = [test for test in TESTS if test.name.startswith("test_")]
    assert [str(test) for test in tests if test.parent not in folders] == []


def test_files_read_in_one_sitting() -> None:
    sources = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.cpp"), *SOURCE.rglob("*.h")]
    lines = {path.relative_to(SOURCE): len(path.read_text().splitlines()) for path in sources}
    assert {str(f): n for f, n in lines.items() if n > (KERNEL_FILE_LINES if is_kernel(f) else FILE_LINES)} == {}
    tests = {str(file): len((ROOT / "tests" / file).read_text().splitlines()) for file in TESTS}
    assert {file: n for file, n in tests.items() if n > TEST_FILE_LINES} == {}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function)]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_functions_fit_one_screen(file: Path) -> None:
    long = {}
    for function in functions(SOURCE / file):
        documented = ast.get_docstring(function) is not None
        doc = function.body[0].end_lineno - function.body[0].lineno + 1 if documented else 0  # type: ignore[operator]
        lines = function.end_lineno - function.lineno + 1 - doc  # type: ignore[operator]
        if lines > (KERNEL_LINES if is_kernel(file) else FUNCTION_LINES):
            long[function.name] = lines
    assert long == {}


def test_one_name_for_one_thing() -> None:
    """Public functions and classes of different files have different names; twins in the backends share theirs."""
    homes: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.parse((SOURCE / file).read_text()).body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(file))
    twins = {name: [f for f in files if not f.startswith(BACKENDS)] for name, files in homes.items()}
    # The functions of the root and the verbs of the command line have the names that users type.
    doors = {
        name: [f for f in files if f != "__init__.py" and not f.startswith("cli/")] for name, files in twins.items()
    }
    assert {name: homes[name] for name, files in doors.items() if len(files) > 1} == {}


@pytest.mark.parametrize(
    "path",
    [path for folder in ("src", "tests", "benchmarks", "examples", "tools") for path in (ROOT / folder).rglob("*.py")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_words_name_things(path: Path) -> None:
    """Docstrings tell instead of asking, and locals are named after what they contain."""
    faults = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ASKS.match(ast.get_docstring(node) or ""):
            faults.append(f"line {getattr(node, 'lineno', 1)}: the docstring asks")
        name = getattr(node, "arg", None) if isinstance(node, ast.arg) else None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name in VAGUE:
            faults.append(f"line {getattr(node, 'lineno', 1)}: {name} says nothing")
    assert faults == []


def test_no_drawer_for_everything() -> None:
    assert not {"utils", "helpers", "common", "misc"} & {part for file in FILES for part in file.with_suffix("").parts}


@pytest.mark.parametrize("package", ["magna", "magna.ops", "magna.nn", "magna.data"])
def test_public_names_are_exported_once(package: str) -> None:
    module = importlib.import_module(package)
    names = module.__all__
    assert len(names) == len(set(names))
    assert all(getattr(module, name) is not None for name in names)


def test_the_wheel_has_every_data_file() -> None:
    """Package data is named in pyproject.toml; a clone has files that an installed package would lack."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["magna"]
    made = {".py", ".pyc", ".so", ".cpp", ".h"}  # modules, and what setup.py builds
    named = {file for pattern in patterns for file in SOURCE.glob(pattern) if file.suffix not in made}
    assert {file for file in SOURCE.rglob("*") if file.is_file() and file.suffix not in made} == named


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
    for page in ("math.md", "switches.md", "scores.md"):
        text = (ROOT / "docs" / "explanation" / page).read_text()
        for path, test in re.findall(r"`([\w/]*test_\w+\.py)(?:::(\w+))?`", text):
            files = [file for file in (ROOT / "tests").rglob(Path(path).name) if str(file).endswith(path)]
            assert files, f"{page}: there is no {path}"
            if test:
                assert any(f"def {test}(" in file.read_text() for file in files), f"{page}: no {test} in {path}"
        everything = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
        for test in re.findall(r"`(test_\w+)`", text):
            assert f"def {test}(" in everything, f"{page}: there is no {test}"
