"""Files for the host of the repository: forms, workflow, hooks, metadata, and the check of a release."""

from __future__ import annotations

import re
import subprocess
import tarfile
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tools.release_check import names_in, sdist_faults, tag_faults, tracked_files, version_of, wheel_faults

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
needs_host_files = pytest.mark.skipif(not (ROOT / ".github").exists(), reason="an sdist has no files for a host")


def read_yaml(path: Path) -> Any:
    # Not an import statement: the package has no types.
    return import_module("yaml").safe_load(path.read_text(encoding="utf-8"))


def pinned(package: str) -> str:
    match = re.search(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert match
    return match[1]


@needs_host_files
def test_there_are_forms_for_bugs_ideas_and_questions() -> None:
    assert [path.stem for path in FORMS] == ["bug", "config", "idea", "question"]


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_an_issue_form_is_complete_and_names_the_doctor(path: Path) -> None:
    form = read_yaml(path)
    assert form.keys() == {"name", "description", "labels", "body"}
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names) and "doctor" in names
    for field in form["body"]:
        assert field["type"] in {"textarea", "checkboxes"} and field["attributes"]["label"]
        assert field.keys() <= {"type", "id", "attributes", "validations"}
    (doctor,) = [field for field in form["body"] if field["id"] == "doctor"]
    assert doctor["attributes"]["label"] == "Output of `magna doctor --json`"


@needs_host_files
def test_a_pull_request_names_the_doctor_and_the_page() -> None:
    text = (ROOT / ".github" / "pull_request_template.md").read_text()
    assert "magna doctor --json" in text and "../CONTRIBUTING.md#numbers" in text


@needs_host_files
def test_the_workflow_checks_every_python_and_both_packages() -> None:
    workflow = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")
    jobs = workflow["jobs"]
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    classified = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert versions == classified == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    steps = {name: job["steps"] for name, job in jobs.items()}
    commands = {name: [step["run"] for step in job if "run" in step] for name, job in steps.items()}
    assert {"ruff check .", "ruff format --check .", "mypy src tests"} <= set(commands["lint"])
    assert commands["package"] == ["python -m tools.release_check --out dist"]
    assert "python -m sphinx -W -b html docs docs/_build" in commands["docs"]
    for step in (step for job in steps.values() for step in job if "uses" in step):
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]), "an action has a major version"
    # Nothing of the workflow belongs to one host, one account or one machine.
    assert {job["runs-on"] for job in jobs.values()} == {"ubuntu-latest"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


@needs_host_files
def test_hooks_have_the_version_of_the_constraints() -> None:
    ruff, local = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert ruff["rev"] == f"v{pinned('ruff')}"
    assert [hook["id"] for hook in ruff["hooks"]] == ["ruff-check", "ruff-format"]
    assert [(hook["entry"], hook["stages"]) for hook in local["hooks"]] == [("mypy src tests", ["manual"])]


def test_versions_agree() -> None:
    version = version_of(ROOT)
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - (unreleased|\d{4}-\d\d-\d\d)", name) for name in sections[1:])
    assert sections[1].startswith(f"{version} - ")


def test_authors_are_those_of_the_licence_and_the_citation() -> None:
    (author,) = PROJECT["authors"]
    assert author["name"] in (ROOT / "LICENSE").read_text() and author["name"] in (ROOT / "CITATION.cff").read_text()


def release_files(folder: Path, *, version: str = "0.2.0", date: str = "2027-01-31", address: str = "real") -> Path:
    """A project that may be released as v0.2.0 unless an argument differs."""
    (folder / "src/magna").mkdir(parents=True)
    (folder / "src/magna/__init__.py").write_text(f'__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(f"## Unreleased\n\n## 0.2.0 - {date}\n")
    (folder / "CITATION.cff").write_text("version: 0.2.0\n")
    (folder / "pyproject.toml").write_text(f"# {address}\n")
    return folder


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        ({}, []),
        ({"version": "0.3.0"}, ["the tag is v0.2.0", "no dated section 0.3.0", "CITATION.cff has another version"]),
        ({"date": "unreleased"}, ["CHANGELOG.md has no dated section 0.2.0"]),
        ({"address": "PLACEHOLDER"}, ["pyproject.toml has a PLACEHOLDER"]),
    ],
)
def test_a_commit_that_is_not_ready_gets_no_tag(tmp_path: Path, change: dict[str, str], faults: list[str]) -> None:
    actual = tag_faults(release_files(tmp_path, **change), "v0.2.0")
    assert len(actual) == len(faults) and all(part in line for part, line in zip(faults, actual, strict=True))


def test_an_sdist_holds_every_tracked_file(tmp_path: Path) -> None:
    archive = tmp_path / "magna_gnn-0.1.0.tar.gz"
    (tmp_path / "setup.py").write_text("")
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "setup.py", "magna_gnn-0.1.0/setup.py")
    tracked = ["setup.py", "tests/test_a.py", ".ci/run", ".gitignore"]
    assert sdist_faults(names_in(archive), tracked) == ["the sdist lacks tests/test_a.py; try a line in MANIFEST.in"]


def test_a_wheel_holds_the_package_and_nothing_else() -> None:
    wheel = ["magna/py.typed", "magna/data/digits.npz", "magna/config/recipes/cora.toml", "magna/ops/cpu/libmagna.so"]
    wheel += ["magna_gnn-0.1.0.dist-info/METADATA"]
    assert wheel_faults(wheel) == []
    faults = wheel_faults([*wheel[1:], "tests/test_a.py", "magna/ops/cpu/kernels/edges.cpp"])
    assert [fault.split(";")[0] for fault in faults] == [
        "the wheel holds tests/test_a.py",
        "the wheel holds magna/ops/cpu/kernels/edges.cpp",
        "the wheel lacks magna/py.typed",
    ]


def test_tracked_files_are_those_of_git(tmp_path: Path) -> None:
    for name in ("a.py", "b c.py"):
        (tmp_path / name).write_text("")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "b c.py"], cwd=tmp_path, check=True)
    assert tracked_files(tmp_path) == ["b c.py"]
