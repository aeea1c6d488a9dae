"""Records of measurements, each with its machine, date, commit and versions."""

from __future__ import annotations

import csv
import datetime
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from magna import bench

HERE = Path(__file__).parent
RECORDS = HERE / "records"
DOCS = HERE.parent / "docs" / "reference" / "benchmarks.md"

# fmt: off
COLUMNS = (
    "device", "date", "commit", "torch", "triton", "pyg", "magna", "op", "graph", "num_nodes", "num_edges", "heads",
    "width", "K", "dtype", "backend", "ms", "ms_spread", "peer", "peer_ms", "ratio", "peak_bytes", "saved_bytes",
    "error", "floor_ms", "floor_ratio", "floor_once_ms", "bandwidth", "other_cores", "note",
)
# fmt: on


def slug(device: torch.device) -> str:
    """The device's name as a file name: `nvidia-h200`, `amd-epyc-2-threads`."""
    return re.sub(r"[^a-z0-9]+", "-", bench.describe(device).lower()).strip("-")


def stamp(device: torch.device, commit: str | None) -> dict[str, Any]:
    """Device, date, commit and versions of a measurement."""
    versions = bench.versions()
    return {
        "device": bench.describe(device),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit or _commit(),
        "torch": torch.__version__,
        "triton": versions["triton"],
        "pyg": versions["torch-geometric"],
        "magna": versions["magna"],
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows to a CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows({name: _short(row.get(name)) for name in COLUMNS} for row in rows)


def _short(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_kernels() -> list[dict[str, str]]:
    """The rows of all devices, with the last of repeated measurements."""
    latest = {}
    for path in sorted(RECORDS.glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                latest[row["device"], row["graph"], row["dtype"], row["backend"]] = row
    return list(latest.values())


def read_json(study: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(RECORDS.glob(f"{study}-*.json"))]
