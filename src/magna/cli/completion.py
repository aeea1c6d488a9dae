"""Words that a shell completes: recipes, run folders and experiments; without torch, as each Tab waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_RUNS = Path("runs")
_CONFIG = "config.toml"


def complete_recipe(incomplete: str) -> list[str]:
    """Names of recipes; a shell adds files and folders where none begins like that."""
    from magna.config.schema import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_experiment(incomplete: str) -> list[str]:
    """Names of the paper's tables and figures."""
    from magna.paper.registry import entry_names

    return [name for name in entry_names() if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Run folders below the folder that has been typed, or below `runs`."""
    typed = Path(incomplete)
    folder = _RUNS if not incomplete else typed if incomplete.endswith("/") else typed.parent
    return [str(run) for run in _runs(folder) if str(run).startswith(incomplete)]


def _runs(folder: Path) -> Iterator[Path]:
    """Runs in a folder, also those of several seeds."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if (entry / _CONFIG).is_file():
            yield entry
        elif entry.is_dir():
            yield from (seed.parent for seed in sorted(entry.glob(f"*/{_CONFIG}")))
