"""Versions and machine that the numbers of a run depend on."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

from magna import __version__

_PACKAGES = ("magna", "torch", "numpy", "triton")  # that numbers depend on


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and machine that a run depends on besides its config."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "packages": {name: version for name in _PACKAGES if (version := package_version(name))},
    }


def package_version(package: str) -> str | None:
    """Version of an installed package, or None."""
    if package == "magna":
        return __version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed() -> dict[str, str]:
    """Versions of all installed packages."""
    versions = {each.name: each.version for each in metadata.distributions()}
    return dict(sorted((versions | {"magna": __version__}).items()))
