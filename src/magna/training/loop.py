"""The one training loop, top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from magna.config.schema import Config, TrainConfig
from magna.errors import Diverged
from magna.nn.dropout import seeds_at_once
from magna.tasks import Task
from magna.tasks.models import Model, members_of
from magna.training.capture import captured, step_precision
from magna.training.run_folder import RunFolder

CHECKPOINT_SECONDS = 10.0
CHECKPOINT_WRITE = 0.5  # seconds; a model that takes longer to save is saved less often in proportion


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
    best: dict[str, float] | None = None  # of an ensemble the mean over its members, and above the last of their epochs
    best_epochs: list[int] = field(default_factory=list)  # of each member
    bests: list[dict[str, float] | None] = field(default_factory=list)


def fit(
    config: Config,
    task: Task,
    network: Model,
    on_epoch: Callable[[Epoch], None],
    run: RunFolder | None = None,
) -> Progress:
    """Train a network, going on from the checkpoint of its run; it ends with the weights that validation chose, of an
    ensemble for each member by itself.
    """
    device = task.device
    adam = torch.optim.Adam(
        _groups(network, config.train, device),
        betas=(config.train.beta1, config.train.beta2),
        weight_decay=config.train.weight_decay,
        capturable=device.type == "cuda",
        fused=True,  # one pass over the weights instead of a dozen
    )
    best_weights = _copy(network)
    progress = Progress()
    if run is not None:
        progress = _restore(run, network, adam, best_weights, device) or progress
        run.keep_metrics(progress.epoch)

    members = members_of(network)
    if not progress.bests:
        progress.bests, progress.best_epochs = [progress.best] * len(members), [progress.best_epoch] * len(members)
    epoch = torch.tensor(progress.epoch, device=device)

    def step(batch: Tensor) -> Tensor:
        with step_precision(config.train.precision, device, network), seeds_at_once():
            loss = task.loss(network, batch, epoch)
        adam.zero_grad()
        loss.backward()
        if config.train.clip > 0:
            for group in adam.param_groups:  # each by itself, as each has a loss of its own
                nn.utils.clip_grad_norm_(group["params"], config.train.clip)
        adam.step()
        return loss.detach()

    network.train()
    changed = [*network.parameters(), *network.buffers()]
    step = captured(step, [next(iter(task.batches()))], adam, changed, config.model)
    batches = task.batches(progress.epoch, config.train.seed)
    started, save_at = time.perf_counter() - progress.seconds, time.perf_counter() + CHECKPOINT_SECONDS
    while progress.epoch < config.train.epochs and progress.epoch - progress.best_epoch <= config.train.patience:
        epoch.fill_(progress.epoch)
        network.train()
        losses = []
        for number, batch in enumerate(batches):
            _set_rates(adam, config.train, progress.epoch + number / task.num_batches)
            losses.append(step(batch).clone())  # a captured step gives the same tensor each time
        # Drawn while the device is still at work on this epoch.
        batches = task.batches(progress.epoch + 1, config.train.seed)
        train_loss = float(torch.stack(losses).mean())
        check_loss(train_loss, progress.epoch)

        valid = None
        row: dict[str, Any] = {"epoch": progress.epoch, "loss": train_loss}
        if (progress.epoch + 1) % config.train.eval_every == 0 or progress.epoch + 1 == config.train.epochs:
            each = [task.evaluate(member, "valid") for member in members]
            row["valid"] = valid = _mean(each)
            check_loss(valid.get("loss", train_loss), progress.epoch)  # the step after the last loss may have diverged
            for number, found in enumerate(each):
                best, waited = progress.bests[number], progress.epoch - progress.best_epochs[number]
                if waited <= config.train.patience and (best is None or task.score(found) > task.score(best)):
                    progress.bests[number], progress.best_epochs[number] = found, progress.epoch
                    part = "" if len(members) == 1 else f"members.{number}."
                    best_weights |= _copy(network, part)
            progress.best, progress.best_epoch = _mean(progress.bests), max(progress.best_epochs)
        if run is not None:
            run.log(row)
        progress.epoch += 1
        progress.seconds = time.perf_counter() - started
        label = f"seed {config.train.seed}"
        on_epoch(Epoch(label, progress.epoch, config.train.epochs, train_loss, valid, progress.best))
        if run is not None and (now := time.perf_counter()) >= save_at:
            _save(run, network, adam, best_weights, progress, device)
            taken = time.perf_counter() - now
            save_at = now + taken + CHECKPOINT_SECONDS * max(1.0, taken / CHECKPOINT_WRITE)

    if run is not None:
        _save(run, network, adam, best_weights, progress, device)
    # The weights that validation chose are the ones that are tested and saved; nothing has seen the test split before.
    network.load_state_dict(best_weights)
    return progress


def cosine_lr(lr: float, config: TrainConfig, epoch: float) -> float:
    """The rate of a step, so many epochs from the start: from `lr` down to `min_lr` along half a cosine."""
    return config.min_lr + (lr - config.min_lr) * (1 + math.cos(math.pi * epoch / config.epochs)) / 2


def _mean(each: Sequence[dict[str, float] | None]) -> dict[str, float]:
    """The mean over the members of an ensemble; of one alone what it has."""
    found = [metrics for metrics in each if metrics is not None]
    return found[0] if len(found) == 1 else {name: fmean(one[name] for one in found) for name in found[0]}


def _groups(network: nn.Module, config: TrainConfig, device: torch.device) -> list[dict[str, Any]]:
    """What Adam trains and the rates it starts from: the network, or each member of an ensemble, and embeddings past
    its encoder by themselves.
    """
    skip = getattr(network, "skip", None)
    past = [] if skip is None else list(skip.parameters())
    groups: list[dict[str, Any]] = []
    for part in members_of(network):
        rest = [parameter for parameter in part.parameters() if all(parameter is not other for other in past)]
        groups.append({"params": rest, "start": config.lr})
    if past:
        groups.append({"params": past, "start": config.lr if config.skip_lr is None else config.skip_lr})
    for group in groups:
        # A captured step reads a tensor.
        group["lr"] = torch.tensor(group["start"], device=device) if device.type == "cuda" else group["start"]
    return groups


def check_loss(loss: float, epoch: int) -> None:
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss} after epoch {epoch}; try a smaller train.lr")


def _set_rates(adam: torch.optim.Adam, config: TrainConfig, epoch: float) -> None:
    for group in adam.param_groups:
        rate = cosine_lr(group["start"], config, epoch)
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
    try:
        return _put_back(*found, network, adam, best_weights, device)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"{run.checkpoint} is of another model, or damaged ({str(error).splitlines()[0]}); delete it and --resume "
            "starts this run from the beginning"
        ) from error


def _put_back(
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    network: nn.Module,
    adam: torch.optim.Optimizer,
    best_weights: dict[str, Tensor],
    device: torch.device,
) -> Progress:
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
    if device.type == "cuda" and "cuda" in groups["random"]:  # a run that comes from a CPU has none
        torch.cuda.set_rng_state(groups["random"]["cuda"], device)
    progress = Progress(**state)
    for name in ("epoch", "best_epoch"):
        if not isinstance(getattr(progress, name), int):
            raise ValueError(f"its {name} is {getattr(progress, name)!r}")
    return progress


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _copy(network: nn.Module, part: str = "") -> dict[str, Tensor]:
    """The weights whose names begin so."""
    state = network.state_dict()
    return {name: value.detach().clone() for name, value in state.items() if name.startswith(part)}
