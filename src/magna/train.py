"""The one training loop, top to bottom."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from magna.board import Board
from magna.capture import captured, matmul_precision, own_stream, step_precision
from magna.config import Config, TrainConfig
from magna.models import Model
from magna.run import RunFolder, pick_device
from magna.tasks import NodeClassification, Task, make_task
from magna.trials import train_trials

CHECKPOINT_SECONDS = 10.0
CHECKPOINT_WRITE = 0.5  # seconds; a model that takes longer to save is saved less often in proportion
# Its advice on matrix products is `train.precision` here.
logging.getLogger("lightning.fabric").setLevel(logging.WARNING)


class Diverged(RuntimeError):
    """The loss is no number any more."""


@dataclass(frozen=True)
class Epoch:
    """What a progress display gets after each epoch: number `number` of `of`, in run `run` (from 0) of `runs`."""

    label: str
    number: int
    of: int
    loss: float | None
    valid: dict[str, float] | None  # None: not looked at in this epoch
    best: dict[str, float] | None
    run: int = 0
    runs: int = 1


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
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; allowed: 1 or more")
    if tensorboard:
        Board(Path(run_dir))  # where it is missing, say so before anything is read
    fabric = Fabric(accelerator=pick_device(device), devices=1)
    task = make_task(config, data_dir, fabric.device)
    on_start(task, fabric.device)
    configs = [config.with_seed(seed) for seed in range(config.train.seed, config.train.seed + seeds)]
    folders = [Path(run_dir) if seeds == 1 else Path(run_dir) / f"seed-{each.train.seed}" for each in configs]
    ended: dict[int, dict[str, Any]] = {}
    if isinstance(task, NodeClassification) and shares_batch(seeds, fabric.device, together):
        ended = _run_together(configs, folders, task, resume, tensorboard, on_epoch)
    for index, (each, folder) in enumerate(zip(configs, folders, strict=True)):
        if index not in ended:
            with (
                _told(on_epoch, folder if tensorboard else None, index, seeds) as tell,
                own_stream(fabric.device),
                matmul_precision(each.train.precision),
            ):
                ended[index] = _run(each, task, fabric, folder, resume, tell)
    runs = [ended[index] for index in range(seeds)]
    keep = ("seed", "run_dir", "seconds", "epochs", "valid", "test")
    return {
        "task": config.task.name,
        "dataset": task.dataset,
        "recipe": config.recipe,
        "device": str(fabric.device.type),
        "runs": [{key: run[key] for key in keep} for run in runs],
        "mean": {split: _over([run[split] for run in runs], statistics.fmean) for split in ("valid", "test")},
        "std": {"test": _over([run["test"] for run in runs], _deviation)},
    }


def shares_batch(seeds: int, device: torch.device, together: bool | None = None) -> bool:
    """Whether seeds train in one batch: where they are asked to, else on a GPU."""
    return seeds > 1 and (device.type == "cuda" if together is None else together)


def cosine_lr(config: TrainConfig, epoch: float) -> float:
    """The rate of a step, so many epochs from the start: from `lr` down to `min_lr` along half a cosine."""
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * epoch / config.epochs)) / 2


def _run(
    config: Config,
    task: Task,
    fabric: Fabric,
    folder: Path,
    resume: bool,
    on_epoch: Callable[[Epoch], None],
) -> dict[str, Any]:
    run, goes_on = RunFolder(folder), resume and _started_alike(folder, config)
    if goes_on and run.summary is not None:
        return {**run.summary, "run_dir": str(folder)}

    torch.manual_seed(config.train.seed)
    network = task.make_model(config.model).to(fabric.device)
    if not goes_on:
        # Only now: settings that give no model leave no folder behind.
        run = RunFolder.create(folder, config, fabric.device, task.schema)
    with run.alone():
        progress = fit(config, task, fabric, network, on_epoch, run)
        return _finish(run, config, task, network, progress)


def fit(
    config: Config,
    task: Task,
    fabric: Fabric,
    network: Model,
    on_epoch: Callable[[Epoch], None],
    run: RunFolder | None = None,
) -> Progress:
    """Train a network, going on from the checkpoint of its run; it ends with the weights that validation chose."""
    on_gpu = fabric.device.type == "cuda"
    rate = torch.tensor(config.train.lr, device=fabric.device) if on_gpu else config.train.lr
    adam = torch.optim.Adam(
        network.parameters(),
        rate,
        betas=(config.train.beta1, config.train.beta2),
        weight_decay=config.train.weight_decay,
        capturable=on_gpu,
        fused=on_gpu,  # one pass over the weights instead of a dozen
    )
    model, optimiser = fabric.setup(network, adam)
    best_weights = _copy(network)
    progress = Progress()
    if run is not None:
        progress = _restore(run, network, adam, best_weights, fabric.device) or progress
        run.keep_metrics(progress.epoch)

    epoch = torch.tensor(progress.epoch, device=fabric.device)

    def step(batch: Tensor) -> Tensor:
        with step_precision(config.train.precision, fabric.device):
            loss = task.loss(model, batch, epoch)
        optimiser.zero_grad()
        fabric.backward(loss)
        if config.train.clip > 0:
            fabric.clip_gradients(model, optimiser, max_norm=config.train.clip, error_if_nonfinite=False)
        optimiser.step()
        return loss.detach()

    model.train()
    step = captured(step, [next(task.batches())], adam, network.parameters())
    started, save_at = time.perf_counter() - progress.seconds, time.perf_counter() + CHECKPOINT_SECONDS
    while progress.epoch < config.train.epochs and progress.epoch - progress.best_epoch <= config.train.patience:
        epoch.fill_(progress.epoch)
        model.train()
        losses = []
        for number, batch in enumerate(task.batches(progress.epoch, config.train.seed)):
            _set_rate(adam, cosine_lr(config.train, progress.epoch + number / task.num_batches))
            losses.append(step(batch).clone())  # a captured step gives the same tensor each time
        train_loss = float(torch.stack(losses).mean())
        _check_loss(train_loss, progress.epoch)

        valid = None
        row: dict[str, Any] = {"epoch": progress.epoch, "loss": train_loss}
        if (progress.epoch + 1) % config.train.eval_every == 0 or progress.epoch + 1 == config.train.epochs:
            row["valid"] = valid = task.evaluate(model, "valid")
            if progress.best is None or task.score(valid) > task.score(progress.best):
                progress.best, progress.best_epoch = valid, progress.epoch
                best_weights = _copy(network)
        if run is not None:
            run.log(row)
        progress.epoch += 1
        progress.seconds = time.perf_counter() - started
        label = f"seed {config.train.seed}"
        on_epoch(Epoch(label, progress.epoch, config.train.epochs, train_loss, valid, progress.best))
        if run is not None and (now := time.perf_counter()) >= save_at:
            _save(run, network, adam, best_weights, progress, fabric.device)
            taken = time.perf_counter() - now
            save_at = now + taken + CHECKPOINT_SECONDS * max(1.0, taken / CHECKPOINT_WRITE)

    if run is not None:
        _save(run, network, adam, best_weights, progress, fabric.device)
    # The weights that validation chose are the ones that are tested and saved; nothing has seen the test split before.
    network.load_state_dict(best_weights)
    return progress


def _run_together(
    configs: list[Config],
    folders: list[Path],
    task: NodeClassification,
    resume: bool,
    tensorboard: bool,
    on_epoch: Callable[[Epoch], None],
) -> dict[int, dict[str, Any]]:
    """Train the seeds that have not begun in one batch; what each leaves is what a run of its own leaves."""
    new = [
        index
        for index, (config, folder) in enumerate(zip(configs, folders, strict=True))
        if not (resume and _started_alike(folder, config)) or not RunFolder(folder).has_begun()
    ]
    if not new:
        return {}
    network = task.make_model(configs[0].model).to(task.device)
    runs = {}
    for index in new:
        runs[index] = RunFolder(folders[index])
        if not (resume and runs[index].exists()):
            RunFolder.create(folders[index], configs[index], task.device, task.schema)
    with ExitStack() as locks:
        for run in runs.values():
            locks.enter_context(run.alone())
        return _fit_together(configs, runs, task, network, tensorboard, on_epoch)


def _fit_together(
    configs: list[Config],
    runs: dict[int, RunFolder],
    task: NodeClassification,
    network: Model,
    tensorboard: bool,
    on_epoch: Callable[[Epoch], None],
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
        rows = [_logged(epoch, row) for epoch, row in enumerate(result.history)]
        run.keep_metrics(0)
        run.log(*rows)
        if tensorboard:
            with Board(run.path) as curves:
                for row in rows:
                    curves.write(row["epoch"] + 1, _curves(row["loss"], row.get("valid", {})))
        assert result.weights is not None
        network.load_state_dict(result.weights)
        progress = Progress(result.epochs, result.best_epoch, result.seconds)
        with matmul_precision(configs[index].train.precision):
            ended[index] = _finish(run, configs[index], task, network, progress, together=len(runs))
    return ended


def _logged(epoch: int, row: dict[str, float]) -> dict[str, Any]:
    _check_loss(row["loss"], epoch)
    logged = {"epoch": epoch, "loss": row["loss"]}
    if "valid_loss" not in row:
        return logged
    return logged | {"valid": {"accuracy": row["valid_accuracy"], "loss": row["valid_loss"]}}


def _check_loss(loss: float, epoch: int) -> None:
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss} after epoch {epoch}; try a smaller train.lr")


def _started_alike(folder: Path, config: Config) -> bool:
    """Whether the folder holds a run, which then must be of the same settings."""
    run = RunFolder(folder)
    if not run.exists():
        return False
    run.check_format()
    if run.config != config:
        raise ValueError(f"{folder} was started with other settings; leave out the recipe and --set, or start anew")
    return True


def _finish(
    run: RunFolder, config: Config, task: Task, network: Model, progress: Progress, together: int = 1
) -> dict[str, Any]:
    """Test and save the chosen weights."""
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
        **task.calibrate(network),
        "valid": task.evaluate(network, "valid"),
        "test": task.evaluate(network, "test"),
    }
    run.finish(network, summary)
    return {**summary, "run_dir": str(run.path)}


def _set_rate(adam: torch.optim.Adam, rate: float) -> None:
    for group in adam.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # a captured step reads this very tensor
        else:
            group["lr"] = rate


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
