"""The one training loop, top to bottom."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from magna.config import Config, TrainConfig
from magna.run import RunFolder, pick_device
from magna.tasks import NodeClassification, make_task

CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True)
class Epoch:
    """What a progress display gets after each epoch."""

    seed: int
    number: int
    of: int
    loss: float
    valid: dict[str, float]
    best: dict[str, float]


@dataclass
class Progress:
    """How far a run has come; with the tensors, all that a checkpoint holds."""

    epoch: int = 0
    best_epoch: int = -1
    seconds: float = 0.0
    best: dict[str, float] | None = None


def train(
    config: Config,
    *,
    run_dir: str | Path,
    seeds: int = 1,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_start: Callable[[NodeClassification, torch.device], None] = lambda task, device: None,
) -> dict[str, Any]:
    """Train a config with `seeds` seeds in a row and return what `magna train --json` prints.

    One seed leaves its run folder at `run_dir`, several leave theirs at `run_dir/seed-0` and so on.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; allowed: 1 or more")
    fabric = Fabric(accelerator=pick_device(device), devices=1)
    task = make_task(config, data_dir, fabric.device)
    on_start(task, fabric.device)
    runs = []
    for seed in range(config.train.seed, config.train.seed + seeds):
        folder = Path(run_dir) if seeds == 1 else Path(run_dir) / f"seed-{seed}"
        runs.append(_run(config.with_seed(seed), task, fabric, folder, resume, on_epoch))
    keep = ("seed", "run_dir", "seconds", "epochs", "valid", "test")
    return {
        "task": config.task.name,
        "dataset": config.data.name,
        "recipe": config.recipe,
        "device": str(fabric.device.type),
        "runs": [{key: run[key] for key in keep} for run in runs],
        "mean": {split: _over([run[split] for run in runs], statistics.fmean) for split in ("valid", "test")},
        "std": {"test": _over([run["test"] for run in runs], _deviation)},
    }


def evaluate(
    run_dir: str | Path, split: str = "test", *, data_dir: str | Path | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Score a finished run again from its files: what `magna evaluate --json` prints."""
    if split not in ("valid", "test"):
        raise ValueError(f"split is {split!r}; allowed: valid, test")
    run = RunFolder.open(run_dir)
    config, model = run.config, run.load_model()
    fabric = Fabric(accelerator=pick_device(device), devices=1)
    task = make_task(config, data_dir, fabric.device)
    metrics = task.evaluate(model.to(fabric.device), split)
    return {"task": config.task.name, "dataset": config.data.name, "split": split, "metrics": metrics}


def cosine_lr(config: TrainConfig, epoch: int) -> float:
    """The rate of an epoch: from `lr` down to `min_lr` along half a cosine."""
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * epoch / config.epochs)) / 2


def _run(
    config: Config,
    task: NodeClassification,
    fabric: Fabric,
    folder: Path,
    resume: bool,
    on_epoch: Callable[[Epoch], None],
) -> dict[str, Any]:
    run = RunFolder(folder)
    goes_on = resume and run.exists()
    if goes_on:
        if run.config != config:
            raise ValueError(f"{folder} was started with other settings; leave out the recipe and --set, or start anew")
        if run.summary is not None:
            return {**run.summary, "run_dir": str(folder)}

    torch.manual_seed(config.train.seed)
    network = task.make_model(config.model).to(fabric.device)
    if not goes_on:
        # Only now: settings that give no model leave no folder behind.
        run = RunFolder.create(folder, config, fabric.device)
    adam = torch.optim.Adam(network.parameters(), lr=config.train.lr, weight_decay=config.train.weight_decay)
    model, optimiser = fabric.setup(network, adam)
    best_weights = _copy(network)
    progress = _restore(run, network, adam, best_weights, fabric.device) or Progress()
    run.keep_metrics(progress.epoch)

    started, saved = time.perf_counter() - progress.seconds, time.perf_counter()
    while progress.epoch < config.train.epochs and progress.epoch - progress.best_epoch <= config.train.patience:
        for group in adam.param_groups:
            group["lr"] = cosine_lr(config.train, progress.epoch)
        losses = []
        model.train()
        for batch in task.batches():
            loss = task.loss(model, batch)
            optimiser.zero_grad()
            fabric.backward(loss)
            if config.train.clip > 0:
                fabric.clip_gradients(model, optimiser, max_norm=config.train.clip, error_if_nonfinite=False)
            optimiser.step()
            losses.append(loss.detach())
        train_loss = float(torch.stack(losses).mean())
        if not math.isfinite(train_loss):
            raise RuntimeError(f"the loss is {train_loss} after epoch {progress.epoch}; try a smaller train.lr")

        valid = task.evaluate(model, "valid")
        if progress.best is None or task.score(valid) > task.score(progress.best):
            progress.best, progress.best_epoch = valid, progress.epoch
            best_weights = _copy(network)
        run.log({"epoch": progress.epoch, "loss": train_loss, "valid": valid})
        progress.epoch += 1
        progress.seconds = time.perf_counter() - started
        on_epoch(Epoch(config.train.seed, progress.epoch, config.train.epochs, train_loss, valid, progress.best))
        if time.perf_counter() - saved >= CHECKPOINT_SECONDS:
            _save(run, network, adam, best_weights, progress, fabric.device)
            saved = time.perf_counter()

    _save(run, network, adam, best_weights, progress, fabric.device)

    # The weights that validation chose are the ones that are tested and saved; nothing has seen the test split before.
    network.load_state_dict(best_weights)
    summary = {
        "recipe": config.recipe,
        "task": config.task.name,
        "dataset": config.data.name,
        "device": fabric.device.type,
        "seed": config.train.seed,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": progress.seconds,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "valid": task.evaluate(model, "valid"),
        "test": task.evaluate(model, "test"),
    }
    run.finish(network, summary)
    return {**summary, "run_dir": str(folder)}


def _save(
    run: RunFolder,
    network: nn.Module,
    adam: torch.optim.Optimizer,
    best_weights: dict[str, Tensor],
    progress: Progress,
    device: torch.device,
) -> None:
    moments = {f"{i}.{name}": value for i, state in adam.state_dict()["state"].items() for name, value in state.items()}
    groups = {"model": network.state_dict(), "best": best_weights, "adam": moments, "random": _random_states(device)}
    tensors = {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}
    run.save_checkpoint({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, vars(progress))


def _restore(
    run: RunFolder,
    network: nn.Module,
    adam: torch.optim.Optimizer,
    best_weights: dict[str, Tensor],
    device: torch.device,
) -> Progress | None:
    """Put everything back as it was when the last checkpoint was written."""
    found = run.load_checkpoint()
    if found is None:
        return None
    tensors, state = found
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "adam": {}, "random": {}}
    for key, value in tensors.items():
        group, name = key.split("/", 1)
        groups[group][name] = value
    network.load_state_dict(groups["model"])
    for name, value in groups["best"].items():
        best_weights[name].copy_(value)
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in groups["adam"].items():
        index, name = key.split(".", 1)
        moments.setdefault(int(index), {})[name] = value
    adam.load_state_dict({"state": moments, "param_groups": adam.state_dict()["param_groups"]})
    torch.set_rng_state(groups["random"]["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(groups["random"]["cuda"], device)
    return Progress(**state)


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _over(metrics: list[dict[str, float]], statistic: Callable[[list[float]], float]) -> dict[str, float]:
    return {name: statistic([each[name] for each in metrics]) for name in metrics[0]}


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
