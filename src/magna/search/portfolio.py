"""The portfolio: members trained one after the other within a time, judged on validation, the best few averaged."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from magna.config.atomic_files import make_folder, write_whole
from magna.config.path_kind import SPLITS
from magna.config.schema import Config
from magna.config.tables import NodeDataOptions
from magna.data import NodeData, load_node_data
from magna.data.node_data import UNLABELLED
from magna.errors import DataError, Diverged
from magna.search.facts import Facts, read_facts
from magna.search.greedy import accuracy_then_loss, chosen_weights
from magna.search.members import Member, load_members
from magna.tasks import NodeClassification
from magna.training.capture import matmul_precision
from magna.training.loop import Epoch, fit
from magna.training.run_folder import RunFolder, pick_device
from magna.training.session import SeedRun, Session

FILE, PROBABILITIES = "portfolio.json", "probabilities.safetensors"
FOLDS = 3  # of the training nodes, where validation has few labels
MINUTES, LARGE_MINUTES, LARGE_EDGES = 5.0, 30.0, 1_000_000
# A member stops after a third of its epochs if it is worse than the best by this and three standard errors.
_BEHIND, _CHECK_AFTER = 0.03, 3

Say = Callable[[str], None]


class Step(NamedTuple):
    """A training of a member: on all training nodes, or without those of one fold."""

    member: Member
    fold: int | None = None

    @property
    def key(self) -> str:
        return self.member.name if self.fold is None else f"{self.member.name}, fold {self.fold + 1}"


@dataclass
class Result:
    """The end of a step: validation accuracy, and why it has none."""

    valid: float | None
    seconds: float
    epochs: int = 0
    fault: str = ""  # stopped early, or diverged


@dataclass(frozen=True)
class Plan:
    """Options of a portfolio.

    Args:
        minutes: time for training; None: as the size of the graph says.
        steps: number of steps of the list, in place of a time.
        single: keep the best member alone.
        test: score the test split once, at the end.
        seed: seed of starting values, dropout and folds.
    """

    minutes: float | None = None
    steps: int | None = None
    single: bool = False
    test: bool = True
    seed: int = 0

    def seconds(self, facts: Facts) -> float:
        if self.steps is not None:
            return math.inf
        minutes = self.minutes or (LARGE_MINUTES if facts.edges > LARGE_EDGES else MINUTES)
        return 60 * minutes


class _Late(Exception):
    """The time is over during a step; its result is not used."""


class _Behind(Exception):
    """A member is too far behind the best one."""


@dataclass
class Portfolio:
    """The members of a run, their results so far, and the files that keep them."""

    folder: Path
    options: NodeDataOptions
    data: NodeData  # as read, without scaling
    facts: Facts
    members: Sequence[Member]
    plan: Plan
    device: torch.device
    say: Say
    results: dict[str, Result] = field(default_factory=dict)
    _tasks: dict[tuple[Any, ...], NodeClassification] = field(default_factory=dict)

    def steps(self) -> Iterator[Step]:
        """Every step in its order, which depends on the data alone."""
        for member in self.members:
            yield Step(member)
            if self.facts.few_validation_labels:
                yield from (Step(member, fold) for fold in range(FOLDS))

    def config(self, member: Member) -> Config:
        return member.config(self.options, self.facts.feature_kind, member.name, self.plan.seed)

    def path(self, member: Member) -> Path:
        return self.folder / "members" / f"{self.members.index(member) + 1:02d}-{member.name}"

    def task(self, step: Step) -> NodeClassification:
        """The task of a step: the features in its scaling, and its training nodes."""
        config = self.config(step.member)
        assert isinstance(config.data, NodeDataOptions)
        key = step.member.scaling_for(self.facts.feature_kind), config.data.edge_types, step.fold
        if key not in self._tasks:
            data = self.data if step.fold is None else replace(self.data, train=self.kept(step.fold))
            scaled = data.with_standardised_features() if config.data.standardise_features else data
            self._tasks = {other: task for other, task in self._tasks.items() if other[-1] is None}
            self._tasks[key] = NodeClassification(scaled, config, self.device, ("train", "valid"))
        return self._tasks[key]

    def held_out(self, fold: int) -> Tensor:
        """The training nodes of a fold, drawn class by class by the seed."""
        draw = torch.Generator().manual_seed(self.plan.seed)
        parts = []
        for label in range(self.data.num_classes):
            nodes = self.data.train[self.data.y[self.data.train] == label]
            parts.append(nodes[torch.randperm(nodes.numel(), generator=draw)][fold::FOLDS])
        return torch.cat(parts).sort().values

    def kept(self, fold: int) -> Tensor:
        train = self.data.train
        return train[~torch.isin(train, self.held_out(fold))]

    def run(self) -> None:
        """Train step by step until the time or the number of steps is over; the first step always ends."""
        deadline = time.monotonic() + self.plan.seconds(self.facts)
        for number, step in enumerate(self.steps()):
            if self.plan.steps is not None and number >= self.plan.steps:
                break
            if step.key in self.results:
                continue
            if self.results and time.monotonic() >= deadline:
                break
            if step.fold is not None and self.results[step.member.name].fault:
                continue
            started = time.monotonic()
            try:
                valid, epochs = self._train(step, deadline if self.results else math.inf)
                result = Result(valid, 0.0, epochs)
            except _Late:
                break
            except (_Behind, Diverged) as error:
                result = Result(None, 0.0, fault="stopped early" if isinstance(error, _Behind) else "diverged")
            result.seconds = round(time.monotonic() - started, 2)
            self.results[step.key] = result
            self.save({"state": "running"})
            shown = result.fault or f"validation {100 * (result.valid or 0):.1f} %"
            left = max(0.0, deadline - time.monotonic())
            in_time = f", {left:.0f} s left" if math.isfinite(left) else ""
            self.say(
                f"{step.key}: {shown} after {result.seconds:.0f} s, best so far {100 * self.best_valid:.1f} %{in_time}"
            )

    @property
    def best_valid(self) -> float:
        return max((result.valid for result in self.results.values() if result.valid is not None), default=0.0)

    def _train(self, step: Step, deadline: float) -> tuple[float, int]:
        """Train a step and store the probabilities of all nodes; the accuracy on validation, and its epochs."""
        config, task = self.config(step.member), self.task(step)
        folder = self.path(step.member)

        def on_epoch(epoch: Epoch) -> None:
            if time.monotonic() >= deadline:
                raise _Late
            if epoch.best is not None and step.fold is None and epoch.number == epoch.of // _CHECK_AFTER:
                self._check(epoch.best[task.METRIC])

        if step.fold is None:
            run = RunFolder(folder)
            session = Session([SeedRun(config, run, run.exists())], task, False, False, on_epoch)
            if run.exists():
                RunFolder.open(folder)
            session.train_in_turn()
            if session.diverged:
                raise Diverged(session.diverged[0])
            summary = session.ended[0]
            model, valid, epochs = RunFolder.open(folder).load_model(), summary["valid"], summary["epochs"]
        else:
            torch.manual_seed(config.train.seed)
            model = task.make_model(config.model).to(self.device)
            progress = fit(config, task, model, on_epoch)
            assert progress.best is not None
            valid, epochs = progress.best, progress.epoch
        with matmul_precision(config.train.precision):
            probabilities = task.finite_scores(model.to(self.device)).softmax(1).cpu().contiguous()
        name = PROBABILITIES if step.fold is None else f"fold-{step.fold + 1}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"probabilities": probabilities}, folder / name)
        return float(valid[task.METRIC]), epochs

    def _check(self, accuracy: float) -> None:
        size, best = max(1, self.data.valid.numel()), self.best_valid
        if accuracy < best - _BEHIND - 3 * math.sqrt(best * (1 - best) / size):
            raise _Behind

    def complete(self) -> list[Member]:
        """The members with all their steps."""
        folds = range(FOLDS) if self.facts.few_validation_labels else ()

        def has(step: Step) -> bool:
            return step.key in self.results and not self.results[step.key].fault

        every = [member for member in self.members if has(Step(member))]
        whole = [member for member in every if all(has(Step(member, fold)) for fold in folds)]
        return whole or every

    def judged(self, member: Member, folds: bool) -> Tensor:
        """Probabilities of the nodes that judge a member, none of which trained it."""
        probabilities = self.probabilities(member)
        parts = [probabilities[self.data.valid]]
        for fold in range(FOLDS) if folds else ():
            file = self.path(member) / f"fold-{fold + 1}.safetensors"
            parts.append(load_file(file)["probabilities"][self.held_out(fold)])
        return torch.cat(parts)

    def probabilities(self, member: Member) -> Tensor:
        return load_file(self.path(member) / PROBABILITIES)["probabilities"]

    def save(self, content: dict[str, Any]) -> None:
        results = {key: vars(result) for key, result in self.results.items()}
        plan = {"minutes": self.plan.minutes, "seed": self.plan.seed, "single": self.plan.single}
        text = json.dumps(
            {"format": 1, "plan": plan, "facts": self.facts.to_dict(), "steps": results} | content, indent=1
        )
        write_whole(self.folder / FILE, (text + "\n").encode(), again="the same command with --resume")

    def resume(self) -> None:
        """Take the finished steps of an earlier call."""
        try:
            stored = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            steps, facts = stored["steps"], stored["facts"]
        except (OSError, ValueError, KeyError):
            raise DataError(self.folder / FILE, "it is no portfolio", hint="another run_dir") from None
        if facts != json.loads(json.dumps(self.facts.to_dict())) or stored["plan"]["seed"] != self.plan.seed:
            raise DataError(self.folder, "it was started on other data or with another seed", hint="another run_dir")
        self.results = {key: Result(**result) for key, result in steps.items()}


def train_portfolio(
    options: NodeDataOptions,
    plan: Plan,
    folder: str | Path,
    *,
    members: Sequence[Member] | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Train the members on a graph, choose by validation, and leave a run folder with the best and their weights."""
    data = load_node_data(replace(options, standardise_features=False), data_dir)
    facts = read_facts(data)
    for line in facts.lines():
        say(line)
    where = Path(folder)
    if (not resume and (where / FILE).exists()) or ((where / "config.toml").exists() and not (where / FILE).exists()):
        raise DataError(where, "it holds a run already", hint="resume, or another run_dir")
    portfolio = Portfolio(
        make_folder(where, "run_dir"), options, data, facts, members or load_members(), plan, pick_device(device), say
    )
    with RunFolder(where).alone():
        if resume:
            portfolio.resume()
        portfolio.run()
        return _finished(portfolio)


def _finished(portfolio: Portfolio) -> dict[str, Any]:
    """Choose, copy the best member to the root of the run folder, and return what `magna train` prints."""
    data, complete = portfolio.data, portfolio.complete()
    if not complete:
        raise Diverged("no member was trained to its end; try smaller features, or more minutes")
    folds = portfolio.facts.few_validation_labels and len(portfolio.results) > len(complete)
    folds = folds and all((portfolio.path(member) / f"fold-{FOLDS}.safetensors").is_file() for member in complete)
    nodes = torch.cat([data.valid, *(portfolio.held_out(fold) for fold in range(FOLDS))]) if folds else data.valid
    truth = data.y[nodes]

    judged = [portfolio.judged(member, folds) for member in complete]
    scores = [accuracy_then_loss(each, truth) for each in judged]
    best = max(range(len(complete)), key=lambda index: (scores[index], -index))
    weights = [float(index == best) for index in range(len(complete))]
    if not portfolio.plan.single:
        weights = chosen_weights(judged, truth)
    together = sum(w * portfolio.probabilities(m) for w, m in zip(weights, complete, strict=True) if w)
    assert isinstance(together, Tensor)
    rows = _rows(portfolio, complete, judged, weights, truth)
    winner = complete[best]
    _copy_run(portfolio.path(winner), portfolio.folder)
    splits = ("valid", "test") if portfolio.plan.test and data.test.numel() else ("valid",)
    metrics = {split: _measured(together, data, split) for split in splits}
    chosen = [
        {"run": str(portfolio.path(member).relative_to(portfolio.folder)), "weight": weight}
        for member, weight in zip(complete, weights, strict=True)
        if weight
    ]
    portfolio.save({"state": "done", "best": winner.name, "members": chosen, "table": rows} | metrics)
    _write_recipe(portfolio, winner)
    _write_predictions(portfolio, together)
    seconds = round(sum(result.seconds for result in portfolio.results.values()), 2)
    run: dict[str, Any] = {"seed": portfolio.plan.seed, "run_dir": str(portfolio.folder), "seconds": seconds}
    run |= {"epochs": sum(result.epochs for result in portfolio.results.values()), "test": None} | metrics
    test = metrics.get("test")
    return {
        "task": "node_classification",
        "dataset": data.name,
        "recipe": "portfolio",
        "device": portfolio.device.type,
        "runs": [run],
        "mean": {split: run[split] for split in ("valid", "test")},
        "std": {"test": None if test is None else dict.fromkeys(test, 0.0)},
        "facts": portfolio.facts.to_dict(),
        "judged_on": truth.numel(),
        "members": rows,
        "best": winner.name,
        "steps": len(portfolio.results),
        "advice": _advice(portfolio, rows),
        "notes": list(data.notes),
    }


def _rows(
    portfolio: Portfolio, complete: Sequence[Member], judged: Sequence[Tensor], weights: Sequence[float], truth: Tensor
) -> list[dict[str, Any]]:
    """The table of the end: accuracy with its standard error, time and weight of each member."""
    rows = []
    for member in portfolio.members:
        result = portfolio.results.get(member.name)
        if result is None:
            continue
        row: dict[str, Any] = {"member": member.name, "accuracy": None, "error": None, "weight": 0.0}
        row |= {"seconds": result.seconds, "fault": result.fault}
        if member in complete:
            index = complete.index(member)
            right = float((judged[index].argmax(1) == truth).double().mean())
            row |= {"accuracy": right, "error": math.sqrt(right * (1 - right) / max(1, truth.numel()))}
            row |= {"weight": weights[index]}
        rows.append(row)
    return rows


def _measured(probabilities: Tensor, data: NodeData, split: str) -> dict[str, float]:
    nodes = data.split(split)
    truth, rows = data.y[nodes], probabilities[nodes].double()
    loss = -rows[torch.arange(truth.numel()), truth].clamp(min=1e-12).log().mean()
    return {"accuracy": float((rows.argmax(1) == truth).double().mean()), "loss": float(loss)}


def _copy_run(source: Path, target: Path) -> None:
    """Copy the files of a finished run, without its checkpoint; the summary comes last."""
    for name in ("environment.json", "schema.json", "metrics.jsonl", "SHA256SUMS", "config.toml"):
        write_whole(target / name, (source / name).read_bytes())
    shutil.rmtree(target / "model", ignore_errors=True)
    shutil.copytree(source / "model", target / "model")
    write_whole(target / "summary.json", (source / "summary.json").read_bytes())


def _write_recipe(portfolio: Portfolio, winner: Member) -> None:
    """The best member as a recipe with a search space around its values, for `magna sweep`."""
    config = portfolio.config(winner)
    space: dict[str, Any] = {
        "train.lr": {"low": config.train.lr / 4, "high": config.train.lr * 4, "log": True},
        "train.weight_decay": {"low": 1e-5, "high": 1e-2, "log": True},
    }
    for name in ("embed_dropout", "input_dropout", "dropout"):
        if name in config.model.in_recipes() and config._unmet("model", name) is None:
            space[f"model.{name}"] = {"low": 0.0, "high": 0.8}
    tables = config.to_dict() | {"search": space}
    recipe = replace(Config.from_dict(tables), recipe=portfolio.folder.name)
    write_whole(portfolio.folder / "recipe.toml", recipe.to_toml().encode())


def _write_predictions(portfolio: Portfolio, probabilities: Tensor) -> None:
    """Label, probabilities, split and true label of every node."""
    data, text = portfolio.data, io.StringIO(newline="")
    classes = [data.class_name(label) for label in range(data.num_classes)]
    splits = {node: split for split in SPLITS for node in data.split(split).tolist()}
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "label", "probability", *(f"probability_{name}" for name in classes), "split", "true_label"])
    for node, row in enumerate(probabilities.tolist()):
        label, truth = max(range(len(row)), key=row.__getitem__), int(data.y[node])
        shares = [f"{share:.6g}" for share in (row[label], *row)]
        known = "" if truth == UNLABELLED else classes[truth]
        writer.writerow([data.id_of(node), classes[label], *shares, splits.get(node, ""), known])
    write_whole(portfolio.folder / "predictions.csv", text.getvalue().encode())


def _advice(portfolio: Portfolio, rows: Sequence[dict[str, Any]]) -> list[str]:
    """What would help most, where the results show it."""
    facts, advice = portfolio.facts, []
    known = {row["member"]: row["accuracy"] for row in rows if row["accuracy"] is not None}
    alone = max((value for name, value in known.items() if name.startswith("mlp")), default=None)
    joined = max((value for name, value in known.items() if not name.startswith("mlp")), default=None)
    if alone is not None and joined is not None:
        error = max(row["error"] or 0.0 for row in rows)
        if joined <= alone + error:
            advice.append("the edges bring nothing over the features alone: look at what they mean")
    if facts.smallest_class < 10:
        advice.append(f"a class has {facts.smallest_class} training labels: more labels would help most")
    if facts.feature_kind == "none":
        advice.append("features of the nodes would help: columns of numbers or words in nodes.csv")
    return advice
