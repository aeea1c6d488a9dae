"""The numbers of this commit against those of the old one, bit for bit: `python -m tools.record fast|full`.

Both sides run the same probe on this machine, on one thread of the CPU. The old commit stands in a git worktree with an
environment of its own, made on the first run in `.record/` of the main checkout, or in the folder that `--old` or
MAGNA_OLD names. Its numbers are stored there for the same CPU flags, torch, kernels and probe.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OLD_COMMIT = "e9a406a"
TOLERANCE = 1e-5  # relative, for parts whose name starts with "~"
ROOT = Path(__file__).parents[1]
PROBE = ("sides.py", "record_probe.py")
KERNELS = "src/magna/ops/cpu/kernels"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.record", description=__doc__.partition("\n")[0])
    parser.add_argument("mode", choices=("fast", "full"))
    parser.add_argument("--old", type=Path, default=os.environ.get("MAGNA_OLD"), help="checkout of the old commit")
    python = os.environ.get("MAGNA_OLD_PYTHON")
    parser.add_argument("--old-python", type=Path, default=python, help="interpreter of the old commit")
    parser.add_argument("--keep", action="store_true", help="write both sides' values to .record/old.json and new.json")
    options = parser.parse_args()
    if stale := stale_sources(ROOT):
        print(f"the compiled kernels are older than {stale}; try: python setup.py build_ext --inplace")
        return 2
    store = storage()
    old_root, old_python = old_side(store, options.old, options.old_python)
    old, new = both_sides(options.mode, store, old_root, old_python)
    if options.keep:
        for name, side in (("old", old), ("new", new)):
            (store / f"{name}.json").write_text(json.dumps(side, indent=1))
    if old["kernels"] != new["kernels"] or old["torch"] != new["torch"]:
        print(f"not comparable: kernels {old['kernels']}, {new['kernels']}; torch {old['torch']}, {new['torch']}")
        return 2
    differing = report(old["items"], new["items"])
    total = len(old["items"].keys() | new["items"].keys())
    verdict = f"{differing} of {total} differ" if differing else f"all {total} are the same"
    print(f"record {options.mode}: {verdict} ({new['kernels']} kernels, torch {new['torch']}, one thread)")
    return 1 if differing else 0


def report(old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> int:
    """Print one line a comparison; return how many of them differ."""
    count = 0
    for name in [*old, *(name for name in new if name not in old)]:
        faults = differences(old.get(name, {}), new.get(name, {}))
        count += bool(faults)
        print(f"{'DIFFERS' if faults else 'same   '}  {name}" + "".join(f"\n    {fault}" for fault in faults))
    return count


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Differences between the parts of one comparison, a line each.

    >>> differences({"losses": [1.0, 2.0]}, {"losses": [1.0, 2.5]})
    ['losses: entry 1 is 2.0, now 2.5']
    >>> differences({"~losses": [1.0]}, {"~losses": [1.000001]})
    []
    """
    faults = [f"{side} failed: {parts['failed']}" for side, parts in (("old", old), ("new", new)) if "failed" in parts]
    if not faults and not (old and new):
        return ["is on one side only"]
    for name in [] if faults else [*old, *(name for name in new if name not in old)]:
        if name not in old or name not in new:
            faults.append(f"{name.lstrip('~')}: on one side only")
        elif fault := difference(old[name], new[name], TOLERANCE if name.startswith("~") else 0.0):
            faults.append(f"{name.lstrip('~')}: {fault}")
    return faults


def difference(old: Any, new: Any, tolerance: float) -> str | None:
    """The first difference between two values; None where they are the same."""
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return f"{len(old)} entries, now {len(new)}"
        each = ((i, difference(a, b, tolerance)) for i, (a, b) in enumerate(zip(old, new, strict=True)))
        return next((f"entry {i} {fault}" for i, fault in each if fault), None)
    if isinstance(old, float) and isinstance(new, float) and tolerance:
        same = math.isclose(old, new, rel_tol=tolerance)
    else:
        same = old == new
    return None if same else f"is {shortened(old)}, now {shortened(new)}"


def shortened(value: Any) -> str:
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)


def both_sides(mode: str, store: Path, old_root: Path, old_python: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of both sides, which run at the same time; the old ones from the store where they are known."""
    stored = store / f"{mode}-{key(old_root, old_python)}.json"
    with tempfile.TemporaryDirectory() as folder:
        files = {"new": Path(folder) / "new.json"} | ({} if stored.exists() else {"old": Path(folder) / "old.json"})
        sides = {"new": (ROOT, Path(sys.executable)), "old": (old_root, old_python)}
        running = {side: start(mode, *sides[side], file) for side, file in files.items()}
        for side, process in running.items():
            log = process.communicate()[0]
            if process.returncode:
                print(log[-4000:], file=sys.stderr)
                raise SystemExit(f"the probe of the {side} side ended with status {process.returncode}")
        old = json.loads(files.get("old", stored).read_bytes())
        if "old" in files and not any("failed" in parts for parts in old["items"].values()):
            stored.write_text(json.dumps(old))
        return old, json.loads(files["new"].read_bytes())


def start(mode: str, root: Path, python: Path, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-m", "tools.record_probe", mode, file],
        cwd=ROOT,
        env=environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def environment(root: Path) -> dict[str, str]:
    """One thread, and the package of a checkout before any that is installed."""
    path = os.pathsep.join([str(ROOT), str(root / "src")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def old_side(store: Path, root: Path | None, python: Path | None) -> tuple[Path, Path]:
    """Checkout and interpreter of the old commit; made in the store where they are not named."""
    if root is None:
        root = store / "old"
        if not root.exists():
            run("git", "-C", ROOT, "worktree", "add", "--detach", root, OLD_COMMIT)
    if python is None:
        python = store / "venv" / "bin" / "python"
        if not python.exists():
            run(sys.executable, "-m", "venv", store / "venv")
            run(python, "-m", "pip", "install", "-q", "-c", root / "constraints.txt", "-e", f"{root}[search]")
    return root.resolve(), python.absolute()


def storage() -> Path:
    """The folder of the record: `.record` of the main checkout, shared by all worktrees."""
    common = run("git", "-C", ROOT, "rev-parse", "--path-format=absolute", "--git-common-dir").strip()
    store = Path(common).parent / ".record"
    store.mkdir(exist_ok=True)
    return store


def key(root: Path, python: Path) -> str:
    """Hash of everything that the old side's numbers hang on."""
    code = "from tools import sides; import torch; print(torch.__version__, sides.kernel_name())"
    versions = subprocess.run([python, "-c", code], cwd=ROOT, env=environment(root), check=True, stdout=subprocess.PIPE)
    library = next((root / "src" / "magna").rglob("libmagna.so"), None)
    files = [ROOT / "tools" / name for name in PROBE] + ([library] if library else [])
    parts = [OLD_COMMIT.encode(), cpu_flags().encode(), versions.stdout, *(file.read_bytes() for file in files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def cpu_flags() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def stale_sources(root: Path) -> str | None:
    """A source of the kernels that is newer than the compiled library; None where none is, or none was compiled."""
    library = next((root / "src" / "magna").rglob("libmagna.so"), None)
    sources = (root / KERNELS).glob("*")
    built = math.inf if library is None else library.stat().st_mtime
    return next((source.name for source in sources if source.stat().st_mtime > built), None)


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
