"""`magna reproduce`: trains the cells of a table, one file each, and goes on where it was stopped."""

from __future__ import annotations

import datetime
import json
import subprocess
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from magna.config import REPORT_SEEDS, Config
from magna.experiments import Cell, cells, same_training
from magna.metrics import spread
from magna.published import DATASETS
from magna.run import environment, pick_device, write_whole
from magna.tasks import NodeClassification, make_task
from magna.trials import TrialResult, structure, train_trials

# Report seeds of a cell, and of each random split.
SEEDS, SPLIT_SEEDS = 20, 10
QUICK_SEEDS, QUICK_EPOCHS = 2, 3
# At most one line in so many seconds about a batch that is still training.
SAY_SECONDS = 10


def reproduce(
    name: str,
    *,
    out: str | Path,
    seeds: int | None = None,
    quick: bool = False,
    datasets: Sequence[str] = DATASETS,
    data_dir: str | Path | None = None,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train every cell of a table that is not yet in `out`, and say which files hold it.

    Args:
        name: table1, ablations, switches or random-splits.
        out: results folder.
        seeds: report seeds of each cell, 0, 1, …; 20 where none are given, 10 for each random split.
        quick: 2 seeds and 3 epochs, to see the form of the table.
        datasets: some of cora, citeseer, pubmed.
        say: gets a line about what happens.
    """
    chosen = [_quick(cell) if quick else cell for cell in cells(name, datasets)]
    count = seeds if seeds is not None else _usual_seeds(name, quick)
    if not 1 <= count <= len(REPORT_SEEDS):
        raise ValueError(f"seeds is {count}; allowed: 1 to {len(REPORT_SEEDS)}")
    out, where = Path(out), torch.device(pick_device(device))
    missing = [cell for cell in chosen if not is_done(out / cell.path, cell.config, count)]
    each = "1 seed" if count == 1 else f"{count} seeds"
    say(f"{name}: {len(chosen)} figures of {each} each, {len(chosen) - len(missing)} of them done before")
    groups: dict[Hashable, list[Cell]] = {}
    for cell in missing:
        groups.setdefault(structure(cell.config), []).append(cell)
    stamp = _stamp(where)
    task, done = None, len(chosen) - len(missing)
    for members in groups.values():
        rows = list(dict.fromkeys(cell.row for cell in members))
        words = f"{rows[0]} and {len(rows) - 1} more" if len(rows) > 1 else rows[0]
        say(f"{members[0].dataset}, {words}: training")
        task = _task(members[0].config, data_dir, where, task)
        started = time.perf_counter()
        _train(members, count, task[1], out, stamp, say)
        done += len(members)
        say(f"{done} of {len(chosen)}: {members[0].dataset}, {words} ({time.perf_counter() - started:.0f} s)")
    return {
        "table": name,
        "out": str(out),
        "seeds": count,
        "device": stamp["environment"]["device"],
        "trained": len(missing),
        "files": list(dict.fromkeys(cell.path for cell in chosen)),
    }


def _usual_seeds(name: str, quick: bool) -> int:
    if quick:
        return QUICK_SEEDS
    return SPLIT_SEEDS if name == "random-splits" else SEEDS


def is_done(path: Path, config: Config, seeds: int) -> bool:
    """Whether a file holds this cell: trained with these settings and at least so many seeds."""
    if not path.is_file():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        before = Config.from_dict(found["config"])
        return same_training(before, config.with_seed(before.train.seed)) and len(found["runs"]) >= seeds
    except (ValueError, KeyError, TypeError):
        return False


def _quick(cell: Cell) -> Cell:
    return replace(cell, config=cell.config.with_values([f"train.epochs={QUICK_EPOCHS}"]))


Placed = tuple[Hashable, NodeClassification]


def _task(config: Config, data_dir: str | Path | None, device: torch.device, before: Placed | None) -> Placed:
    """The task of a config; that of the group before where its data is the same but for the split."""
    data = replace(config.data, split_seed=0)
    if before is not None and before[0] == data:
        return before
    # The tables are of node classification alone.
    return data, cast(NodeClassification, make_task(config, data_dir, device))


def _train(
    members: Sequence[Cell],
    seeds: int,
    task: NodeClassification,
    out: Path,
    stamp: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    """Train cells of one structure together and write each to its file."""
    said = time.monotonic()

    def on_report(epoch: int, running: list[int], scores: list[float]) -> Collection[int]:
        nonlocal said
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            say(f"  epoch {epoch} of {members[0].config.train.epochs}, {len(running)} runs at once")
        return ()

    configs = [cell.config.with_seed(seed) for cell in members for seed in REPORT_SEEDS[:seeds]]
    results = train_trials(configs, task, read_test=True, on_report=on_report)
    for number, cell in enumerate(members):
        trained = results[number * seeds : (number + 1) * seeds]
        _write(out / cell.path, _record(cell, trained) | stamp)


def _record(cell: Cell, results: Collection[TrialResult]) -> dict[str, Any]:
    runs = [
        {
            "seed": result.config.train.seed,
            "epochs": result.epochs,
            "best_epoch": result.best_epoch,
            "seconds": round(result.seconds, 3),
            "valid": result.valid,
            "test": result.test,
        }
        for result in results
    ]
    accuracy = {split: spread([run[split]["accuracy"] for run in runs]) for split in ("valid", "test")}  # type: ignore[index]
    return {
        "dataset": cell.dataset,
        "row": cell.row,
        "recipe": cell.config.recipe,
        "changes": list(cell.changes),
        "split": cell.split,
        "mean": {split: {"accuracy": found.mean} for split, found in accuracy.items()},
        "std": {split: {"accuracy": found.std} for split, found in accuracy.items()},
        "runs": runs,
        "config": {part: value for part, value in cell.config.to_dict().items() if part in _TRAINED},
    }


# Of a config, what a cell keeps: the recipe itself tells the rest.
_TRAINED = ("recipe", "data", "model", "task", "train")


def _stamp(device: torch.device) -> dict[str, Any]:
    """Where and when."""
    return {
        "environment": environment(device),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
    }


def _commit() -> str | None:
    """The commit of this source, None where it is installed without its history."""
    here = Path(__file__)
    try:
        # Installed into a folder of somebody's repository, it is none of its files.
        _git("ls-files", "--error-unmatch", here.name, cwd=here.parent)
        return _git("describe", "--always", "--dirty", cwd=here.parent)
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str, cwd: Path) -> str:
    return subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()


def _write(path: Path, record: dict[str, Any]) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, text.encode(), again="the same command")
