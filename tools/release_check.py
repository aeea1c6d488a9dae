"""Build the wheel and the sdist, install each in a fresh environment, and try it: `python -m tools.release_check`.

The wheel is built from the sdist, so an sdist that lacks a source fails here. The files are checked against those that
git tracks. Both packages are then installed with the versions of constraints.txt and must import the layer, run the
compiled kernels, and train `digits` for one epoch.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".ci/", ".github/", ".gitignore", ".pre-commit-config.yaml")  # tracked, and of no use without git
PLACEHOLDER = "PLACEHOLDER"
LIBRARY = "magna/ops/cpu/libmagna.so"

LAYER = "from magna import MAGNAConv; print(MAGNAConv(4, 8))"
KERNELS = """
import torch
from magna.ops.backend.registry import choose
backend = choose("auto", torch.device("cpu"))
assert backend == "cpu", f"the compiled kernels do not run: {backend}"
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release_check", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the wheel and the sdist")
    parser.add_argument("--tag", help="tag of the release, such as v0.1.0, which must be the version")
    options = parser.parse_args()
    if options.tag and (faults := tag_faults(ROOT, options.tag)):
        print("\n".join(faults))
        return 1
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        sdist, wheel = build(scratch)
        faults = sdist_faults(names_in(sdist), tracked_files(ROOT)) + wheel_faults(names_in(wheel))
        print("\n".join(faults) or f"{sdist.name} and {wheel.name} hold what they must")
        if faults:
            return 1
        for package in (wheel, sdist):
            try_package(package, scratch)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            for package in (wheel, sdist):
                shutil.copy(package, options.out)
    return 0


def version_of(root: Path) -> str:
    """The version that the package states."""
    match = re.search(r'^__version__ = "(.+)"$', (root / "src/magna/__init__.py").read_text(), flags=re.MULTILINE)
    assert match
    return match[1]


def tag_faults(root: Path, tag: str) -> list[str]:
    """Reasons why a commit must not be released under a tag, such as v0.1.0."""
    version, faults = version_of(root), []
    if tag != f"v{version}":
        faults.append(f"the tag is {tag}; allowed: v{version}, the version in src/magna/__init__.py")
    if not re.search(
        rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.M
    ):
        faults.append(f"CHANGELOG.md has no dated section {version}; try: ## {version} - YYYY-MM-DD")
    if f"version: {version}\n" not in (root / "CITATION.cff").read_text():
        faults.append(f"CITATION.cff has another version; allowed: {version}")
    if PLACEHOLDER in (root / "pyproject.toml").read_text():
        faults.append(f"pyproject.toml has a {PLACEHOLDER}; try the address of the repository")
    return faults


def tracked_files(root: Path) -> list[str]:
    """Files of the checkout that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (root / name).exists()]


def sdist_faults(names: Iterable[str], tracked: Sequence[str]) -> list[str]:
    """Tracked files that an sdist lacks."""
    inside = {name.partition("/")[2] for name in names}
    wanted = {name for name in tracked if not name.startswith(LEFT_OUT)}
    return [f"the sdist lacks {name}; try a line in MANIFEST.in" for name in sorted(wanted - inside)]


def wheel_faults(names: Iterable[str]) -> list[str]:
    """Files that a wheel must not hold, and those that it lacks."""
    inside = set(names)
    extra = sorted(name for name in inside if not re.match(r"magna/|magna_gnn-[^/]+\.dist-info/", name))
    sources = sorted(name for name in inside if name.endswith((".cpp", ".h")))
    wanted = {LIBRARY, "magna/py.typed", "magna/data/digits.npz", "magna/config/recipes/cora.toml"}
    faults = [f"the wheel holds {name}; allowed: the package and its metadata" for name in extra + sources]
    return faults + [f"the wheel lacks {name}" for name in sorted(wanted - inside)]


def names_in(package: Path) -> list[str]:
    """Files in a wheel or an sdist."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as file:
            return [name for name in file.namelist() if not name.endswith("/")]
    with tarfile.open(package) as archive:
        return [member.name for member in archive if member.isfile()]


def build(scratch: Path) -> tuple[Path, Path]:
    """The sdist and the wheel of the tracked files, built outside the checkout."""
    source = scratch / "source"
    for name in tracked_files(ROOT):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    python = fresh_environment(scratch / "build")
    run(python, "-m", "pip", "install", "--quiet", "build", folder=scratch)
    run(python, "-m", "build", "--outdir", str(scratch / "dist"), str(source), folder=scratch)
    (sdist,), (wheel,) = (scratch / "dist").glob("*.tar.gz"), (scratch / "dist").glob("*.whl")
    return sdist, wheel


def try_package(package: Path, scratch: Path) -> None:
    """Install a package in a fresh environment and run it in an empty folder."""
    place = scratch / f"try-{package.suffix[1:]}"
    python = fresh_environment(place / "venv")
    constraints = str(ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, str(package), folder=place)
    run(python, "-c", LAYER, folder=place)
    run(python, "-c", KERNELS, folder=place)
    magna = python.with_name("magna")
    run(magna, "train", "digits", "--set", "train.epochs=1", "--device", "cpu", folder=place)
    run(magna, "evaluate", "runs/digits", "--device", "cpu", folder=place)
    shutil.rmtree(place)


def fresh_environment(folder: Path) -> Path:
    """The interpreter of a new virtual environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def run(program: Path, *arguments: str, folder: Path) -> None:
    """Run a program in a folder, without the checkout on its path."""
    print("$", program.name, *arguments, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(program), *arguments], cwd=folder, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{program.name} {' '.join(arguments)} failed")


if __name__ == "__main__":
    sys.exit(main())
