"""Versions, devices, kernels, data folders and disk of this machine, as `magna doctor` prints them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from magna.bench import processor
from magna.data import DATASETS, data_folder
from magna.data.store import ENVIRONMENT_VARIABLE, cache_folder
from magna.errors import distribution
from magna.ops.backend.registry import MODULES, why_not
from magna.ops.self_check import KernelCheck, check_kernels, devices
from magna.training.environment import package_version

_PACKAGES = ("torch", "triton", "numpy", "safetensors", "rich", "typer")
_LITTLE_DISK = 1 << 30  # bytes; a run on the larger graphs leaves a few hundred MB
_EXTRA = re.compile(r"""^([\w.-]+).*;.*extra\s*==\s*["'](\w+)["']""")


def examine(data_dir: str | Path | None = None) -> dict[str, Any]:
    """State of this installation and machine.

    Every kernel that can run is compared with the definition, on a graph of five nodes.

    Returns:
        {"versions", "extras", "devices", "backends", "kernels", "data", "disk", "faults", "notes", "seconds"}. `faults`
        has a sentence for each kernel that differs, and is empty on a machine where all is well.
    """
    started = time.perf_counter()
    checks = list(check_kernels())
    backends = [_backend(name, device) for device in devices() for name in MODULES]
    data, disk = _data(data_dir), _disk(data_dir)
    return {
        "versions": {"magna": package_version("magna"), "python": platform.python_version()}
        | {name: package_version(name) for name in _PACKAGES}
        | {"platform": platform.platform()},
        "extras": _extras(_requirements()),
        "devices": {"cpu": _cpu(), "gpus": _gpus(), "auto": devices()[-1].type},
        "backends": backends,
        "kernels": [check._asdict() for check in checks],
        "data": data,
        "disk": disk,
        "faults": [_fault(check) for check in checks if not check.agrees],
        "notes": [*_notes_on_backends(backends), *_notes_on_disk(disk)],
        "seconds": round(time.perf_counter() - started, 3),
    }


def _fault(check: KernelCheck) -> str:
    """Sentence on a kernel that differs or raises."""
    name = f"{check.kernel} ({check.direction}) of backend {check.backend} on {check.device}"
    return f"{name}: {check.fault}" if check.error is None else f"{name} is off by {check.error:.1e}"


def _backend(name: str, device: torch.device) -> dict[str, Any]:
    reason = why_not(name, device)
    return {"backend": name, "device": str(device), "runs": reason is None, "reason": reason}


def _cpu() -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone
    return {
        "name": processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity is not None else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_set": _instruction_set(),
        "memory_bytes": _memory(),
    }


def _instruction_set() -> str | None:
    """Instruction set of the compiled kernels, or None without them."""
    try:
        from magna.ops.cpu import bindings
    except ImportError:  # kernels of another version
        return None
    return bindings.isa or None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[dict[str, Any]]:
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        gpus.append({"index": index, "name": name, "memory_bytes": total, "free_bytes": free})
    return gpus


def _requirements() -> list[str]:
    """Requirements of the installed package; none for a folder of sources on the path."""
    try:
        return metadata.requires(distribution()) or []
    except metadata.PackageNotFoundError:
        return []


def _extras(requirements: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """Versions of the packages of each extra, None for a missing one.

    >>> _extras(["rich>=13", 'no-such-package>=5; extra == "search"'])
    {'search': {'no-such-package': None}}
    """
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in requirements:
        if match := _EXTRA.match(requirement):
            extras.setdefault(match[2], {})[match[1]] = package_version(match[1])
    return dict(sorted(extras.items()))


def _data(data_dir: str | Path | None) -> dict[str, Any]:
    """The places where data is looked for, in their order, and the data sets that are complete in the first one."""
    places = [("--data-dir", data_dir), (ENVIRONMENT_VARIABLE, os.environ.get(ENVIRONMENT_VARIABLE) or None)]
    chosen = next((source for source, path in places if path), "cache")
    folders = {source: data_folder(path) if path else None for source, path in places}
    folders["cache"] = cache_folder()
    return {
        "folder": str(data_folder(data_dir)),
        "order": [
            {"from": source, "folder": None if path is None else str(path), "chosen": source == chosen}
            for source, path in folders.items()
        ],
        "datasets": [
            {"name": name, "files": len(each.files), "missing": sum(f.present(data_dir) is None for f in each.files)}
            for name, each in DATASETS.items()
        ],
    }


def _disk(data_dir: str | Path | None) -> list[dict[str, Any]]:
    """Free bytes where data and runs are written."""
    rows = []
    for purpose, folder in (("data", data_folder(data_dir)), ("runs", Path("runs").absolute())):
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
        rows.append(
            {
                "for": purpose,
                "folder": str(folder),
                "free_bytes": shutil.disk_usage(existing).free,
                "writable": os.access(existing, os.W_OK),
            }
        )
    return rows


def _notes_on_backends(backends: list[dict[str, Any]]) -> Iterator[str]:
    by_device: dict[str, list[dict[str, Any]]] = {}
    for row in backends:
        by_device.setdefault(row["device"], []).append(row)
    for device, rows in by_device.items():
        if not any(row["runs"] for row in rows):
            yield f"no fused kernels run on {device}: the plain PyTorch definition serves, which is slower"


def _notes_on_disk(disk: list[dict[str, Any]]) -> Iterator[str]:
    for row in disk:
        if row["free_bytes"] < _LITTLE_DISK:
            yield f"{row['folder']} has {row['free_bytes'] / 1e6:,.0f} MB left for {row['for']}"
        if row["for"] == "runs" and not row["writable"]:
            yield f"{row['folder']} cannot be written; train elsewhere or with --run-dir"
