"""Trainings that leave run folders: one seed or several, in turn or together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from magna.config.schema import Config
from magna.data import from_anywhere
from magna.errors import Diverged
from magna.tasks import NodeClassification, Task, make_task
from magna.tasks.models import Model
from magna.training.capture import matmul_precision, own_stream
from magna.training.loop import Epoch, Progress, fit
from magna.training.run_folder import RunFolder, pick_device
from magna.training.schedule import check_loss
from magna.training.tensorboard import Board
from magna.training.trials import train_trials


def train(
    config: Config,
    *,
    run_dir: str | Path,
    seeds: int = 1,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    tensorboard: bool = False,
    together: bool | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_start: Callable[[Task, torch.device], None] = lambda task, device: None,
) -> dict[str, Any]:
    """Train a config with several seeds and return what `magna train --json` prints.

    One seed leaves its run folder at `run_dir`, several leave theirs at `run_dir/seed-0` and so on.

    Args:
        config: what to train; its seed is the first one.
        run_dir: where the run folder is made.
        seeds: how many seeds.
        data_dir: the data folder.
        device: "auto", "cpu" or "cuda".
        resume: go on with what is there; a run that has ended is reported as it is.
        tensorboard: each run folder holds TensorBoard's event files as well.
        together: several seeds of node classification in one batch, without checkpoints; None: on a GPU, where it is
            many times faster.
        on_epoch: called after each epoch.
        on_start: called once the data is loaded.

    Raises:
        Diverged: the loss of a seed was no number any more; the other seeds have left their results.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; allowed: 1 or more")
    if together and config.task.name == "link_prediction":
        raise ValueError("--together is given for link prediction, whose seeds train in turn; try without it")
    _check_folder(RunFolder(run_dir), seeds)
    if tensorboard:
        Board(Path(run_dir))  # where it is missing, say so before anything is read
    where = pick_device(device)
    config = replace(config, data=from_anywhere(config.data))  # the run folder is read from anywhere
    configs = [config.with_seed(seed) for seed in range(config.train.seed, config.train.seed + seeds)]
    folders = [Path(run_dir) if seeds == 1 else Path(run_dir) / f"seed-{each.train.seed}" for each in configs]
    for folder in folders:
        if resume and RunFolder(folder).exists():
            hint = "allowed: the same data in the same place; try to move it back, or to put a link there"
            RunFolder.open(folder).check_data(hint)
    task = make_task(config, data_dir, where)
    on_start(task, where)
    ended: dict[int, dict[str, Any]] = {}
    diverged: dict[int, str] = {}
    if isinstance(task, NodeClassification) and shares_batch(seeds, where, together):
        ended = _run_together(configs, folders, task, resume, tensorboard, on_epoch, diverged)
    for index, (each, folder) in enumerate(zip(configs, folders, strict=True)):
        if index in ended or index in diverged:
            continue
        with (
            _told(on_epoch, folder if tensorboard else None, index, seeds) as tell,
            own_stream(where),
            matmul_precision(each.train.precision),
        ):
            try:
                ended[index] = _run(each, task, folder, resume, tell)
            except Diverged as error:
                diverged[index] = str(error)
    if diverged:
        raise Diverged(_without_result({configs[index].train.seed: diverged[index] for index in diverged}, seeds))
    runs = [ended[index] for index in range(seeds)]
    keep = ("seed", "run_dir", "seconds", "epochs", "valid", "test")
    return {
        "task": config.task.name,
        "dataset": task.dataset,
        "recipe": config.recipe,
        "device": where.type,
        "runs": [{key: run[key] for key in keep} for run in runs],
        "mean": {split: _over([run[split] for run in runs], statistics.fmean) for split in ("valid", "test")},
        "std": {"test": _over([run["test"] for run in runs], _deviation)},
    }


def shares_batch(seeds: int, device: torch.device, together: bool | None = None) -> bool:
    """Whether seeds train in one batch: where they are asked to, else on a GPU."""
    return seeds > 1 and (device.type == "cuda" if together is None else together)


def _run(
    config: Config,
    task: Task,
    folder: Path,
    resume: bool,
    on_epoch: Callable[[Epoch], None],
) -> dict[str, Any]:
    run, goes_on = RunFolder(folder), resume and _started_alike(folder, config, task)
    if goes_on and run.is_done():
        assert run.summary is not None
        return {**run.summary, "run_dir": str(folder)}

    torch.manual_seed(config.train.seed)
    network = task.make_model(config.model).to(task.device)
    # Only now: settings that give no model leave no folder behind.
    with run.alone():
        if not goes_on:
            run.begin(config, task.device, task.schema)
        progress = fit(config, task, network, on_epoch, run)
        return _finish(run, config, task, network, progress)


def _run_together(
    configs: list[Config],
    folders: list[Path],
    task: NodeClassification,
    resume: bool,
    tensorboard: bool,
    on_epoch: Callable[[Epoch], None],
    diverged: dict[int, str],
) -> dict[int, dict[str, Any]]:
    """Train the seeds that have not begun in one batch; what each leaves is what a run of its own leaves.

    `diverged` gets the index of each that has no result, with the reason.
    """
    new = [
        index
        for index, (config, folder) in enumerate(zip(configs, folders, strict=True))
        if not (resume and _started_alike(folder, config, task)) or not RunFolder(folder).has_begun()
    ]
    if not new:
        return {}
    network = task.make_model(configs[0].model).to(task.device)
    runs = {index: RunFolder(folders[index]) for index in new}
    with ExitStack() as locks:
        for index, run in runs.items():
            locks.enter_context(run.alone())
            if not (resume and run.exists()):
                run.begin(configs[index], task.device, task.schema)
        return _fit_together(configs, runs, task, network, tensorboard, on_epoch, diverged)


def _fit_together(
    configs: list[Config],
    runs: dict[int, RunFolder],
    task: NodeClassification,
    network: Model,
    tensorboard: bool,
    on_epoch: Callable[[Epoch], None],
    diverged: dict[int, str],
) -> dict[int, dict[str, Any]]:
    """Train the runs, which are some of the configs, in one batch; the network lends its form to each of them."""

    def on_report(number: int, which: list[int], best: list[float]) -> Collection[int]:
        if best:  # not all have stopped
            mean = {"accuracy": statistics.fmean(best)}
            on_epoch(Epoch(f"{len(runs)} seeds together", number, configs[0].train.epochs, None, None, mean))
        return ()

    results = train_trials(
        [configs[index] for index in runs], task, keep_weights=True, report_every=10, on_report=on_report
    )
    ended = {}
    for (index, run), result in zip(runs.items(), results, strict=True):
        rows = [_logged(epoch, row) for epoch, row in enumerate(result.finite_history)]
        run.keep_metrics(0)
        run.log(*rows)
        if tensorboard:
            with Board(run.path) as curves:
                for row in rows:
                    curves.write(row["epoch"] + 1, _curves(row["loss"], row.get("valid", {})))
        try:
            result.check()
        except Diverged as error:
            diverged[index] = str(error)
            continue
        assert result.weights is not None
        network.load_state_dict(result.weights)
        progress = Progress(result.epochs, result.seconds, [result.best_epoch])
        with matmul_precision(configs[index].train.precision):
            ended[index] = _finish(run, configs[index], task, network, progress, together=len(runs))
    return ended


def _logged(epoch: int, row: dict[str, float]) -> dict[str, Any]:
    logged = {"epoch": epoch, "loss": row["loss"]}
    if "valid_loss" not in row:
        return logged
    return logged | {"valid": {"accuracy": row["valid_accuracy"], "loss": row["valid_loss"]}}


def _check_folder(run: RunFolder, seeds: int) -> None:
    """Refuse several seeds in the folder of one run, and one run in a folder of several."""
    single, several = run.exists(), any(run.path.glob("seed-*/config.toml"))
    if seeds > 1 and single and not several:
        raise ValueError(f"{run.path} holds one run, not several seeds; try without --seeds, or another --run-dir")
    if seeds == 1 and several and not single:
        raise ValueError(
            f"{run.path} holds runs of several seeds; try --seeds with the number it was started with, or another "
            "--run-dir"
        )


def _started_alike(folder: Path, config: Config, task: Task) -> bool:
    """Whether the folder holds a run, which then must be of the same settings and data."""
    run = RunFolder(folder)
    if not run.exists():
        return False
    run.check_format()
    if replace(run.config, data=from_anywhere(run.config.data)) != config:
        raise ValueError(f"{folder} was started with other settings; leave out the recipe and --set, or start anew")
    run.check_schema(task.schema)
    return True


def _without_result(reasons: dict[int, str], seeds: int) -> str:
    """Which seeds diverged and why the first of them did; of a single run that is all there is to say."""
    first = next(iter(reasons.values()))
    if seeds == 1:
        return first
    others = "" if len(reasons) == seeds else "; the other seeds have left their results"
    return f"seed{'s' * (len(reasons) > 1)} {', '.join(map(str, reasons))}: {first}{others}"


def _finish(
    run: RunFolder, config: Config, task: Task, network: Model, progress: Progress, together: int = 1
) -> dict[str, Any]:
    """Test and save the chosen weights."""
    calibrated = task.calibrate(network)
    for value in calibrated.values():
        check_loss(value, progress.best_epoch)  # the step after the last loss may have diverged
    summary = {
        "recipe": config.recipe,
        "task": config.task.name,
        "dataset": task.dataset,
        "device": task.device.type,
        "seed": config.train.seed,
        # Chance depends on it: seeds that share a batch draw from one generator.
        "together": together,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": progress.seconds,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        **calibrated,
        "valid": task.evaluate(network, "valid"),
        "test": task.evaluate(network, "test"),
    }
    run.finish(network, summary)
    return {**summary, "run_dir": str(run.path)}


@contextmanager
def _told(
    on_epoch: Callable[[Epoch], None], board: Path | None, run: int, runs: int
) -> Iterator[Callable[[Epoch], None]]:
    """A listener that knows which run of how many this is and, where asked, keeps the curves for TensorBoard."""
    with Board(board) if board is not None else nullcontext() as curves:

        def tell(epoch: Epoch) -> None:
            if curves is not None:
                curves.write(epoch.number, _curves(epoch.loss, epoch.valid or {}))
            on_epoch(replace(epoch, run=run, runs=runs))

        yield tell


def _curves(loss: float | None, valid: dict[str, float]) -> dict[str, float | None]:
    return {"loss/train": loss} | {f"{name}/valid": value for name, value in valid.items()}


def _over(metrics: list[dict[str, float]], statistic: Callable[[list[float]], float]) -> dict[str, float]:
    return {name: statistic([each[name] for each in metrics]) for name in metrics[0]}


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
