"""Trials that train side by side are the trainings they would be alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
import torch
from tests.support.graphs import ring_triples
from tests.support.measuring import Capturable
from tests.support.running import node_task
from torch import nn

from magna import MAGNAConv
from magna.config.registry import model_settings
from magna.config.schema import Config, load_recipe
from magna.config.spaces import keys
from magna.data import KnowledgeGraph
from magna.data.triples import triples_from
from magna.errors import Diverged
from magna.nn.ensemble import Ensemble
from magna.nn.hops import Hops
from magna.nn.link_model import LinkModel
from magna.tasks import LinkPrediction, NodeClassification
from magna.tasks.link_objective import LinkObjective
from magna.training.run_folder import RunFolder
from magna.training.step_memory import forecast
from magna.training.train import train
from magna.training.trial_batch import Batch
from magna.training.trial_buffers import register_differences
from magna.training.trials import _batch_size, structure, train_trials

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "model": {"hidden_channels": 8, "num_layers": 1, "heads": 2, "K": 2},
    "train": {"epochs": 6, "lr": 0.01},
}


def config(**settings: Any) -> Config:
    return Config.from_dict(SMALL).with_settings({key.replace("__", "."): value for key, value in settings.items()})


@pytest.fixture(scope="module")
def task() -> NodeClassification:
    return node_task(config(), None, torch.device("cpu"))


@pytest.mark.parametrize("members", [1, 2])
def test_without_chance_a_batch_is_the_ordinary_loop(task: NodeClassification, tmp_path: Path, members: int) -> None:
    configs = [
        config(train__seed=1, train__lr=0.02, model__K=1, model__alpha=0.3),
        config(train__seed=2, train__lr=0.005, model__K=4, train__weight_decay=0.1, train__clip=0.01),
        config(train__seed=3, model__negative_slope=0.6),
    ]
    configs = [each.with_settings({"model.members": members}) for each in configs]
    together = train_trials(configs, task, read_test=True)
    for number, (each, result) in enumerate(zip(configs, together, strict=True)):
        alone = train(each, run_dir=tmp_path / str(number), device="cpu")["runs"][0]
        assert result.test is not None
        assert result.valid["accuracy"] == pytest.approx(alone["valid"]["accuracy"], abs=0.005)
        assert result.test["loss"] == pytest.approx(alone["test"]["loss"], rel=1e-3)
        lines = [json.loads(line) for line in (tmp_path / str(number) / "metrics.jsonl").read_text().splitlines()]
        assert [row["loss"] for row in result.history] == pytest.approx([line["loss"] for line in lines], rel=1e-3)


def test_the_weights_are_those_of_the_result(task: NodeClassification) -> None:
    drops = {"model__input_dropout": 0.5, "model__dropout": 0.3, "task__consistency": 1.0}
    configs = [config(train__seed=s, model__K=2 + s, model__node_dropout=0.2 * s, **drops) for s in range(3)]
    for each, result in zip(configs, train_trials(configs, task, read_test=True, keep_weights=True), strict=True):
        model = task.make_model(each.model)
        assert result.weights is not None and result.test is not None
        model.load_state_dict(result.weights)
        assert task.evaluate(model, "valid")["accuracy"] == pytest.approx(result.valid["accuracy"])
        assert task.evaluate(model, "test")["loss"] == pytest.approx(result.test["loss"], rel=1e-4)


def test_batch_norm_takes_its_statistics_in_each_trial(task: NodeClassification, tmp_path: Path) -> None:
    form = {"model__norm": "batch", "model__final_norm": "batch", "model__residual": False}
    form |= {"model__input_projection": False, "model__feed_forward": False}
    configs = [config(train__seed=s, train__lr=0.1, model__K=1 + s, **form) for s in range(2)]
    for each, result in zip(configs, train_trials(configs, task), strict=True):
        folder = tmp_path / str(each.train.seed)
        train(each, run_dir=folder, device="cpu")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["loss"] for row in result.history] == pytest.approx([line["loss"] for line in lines], rel=1e-3)


def test_a_member_of_an_ensemble_trains_as_it_would_alone(task: NodeClassification) -> None:
    # With a small bound on the gradient and much decay: what members had in common would show in their steps.
    one = config(train__clip=0.01, train__weight_decay=0.1, task__consistency=1.0)
    two = one.with_values(["model.members=2"])
    (alone,), (ensemble,) = (train_trials([each], task, keep_weights=True) for each in (one, two))
    assert alone.weights is not None and ensemble.weights is not None
    # At its own best epoch, whatever the other one's is.
    for name, value in alone.weights.items():
        torch.testing.assert_close(ensemble.weights[f"members.0.{name}"], value, rtol=1e-3, atol=1e-5)
    assert len(ensemble.weights) == 2 * len(alone.weights)


def test_every_member_keeps_its_own_best_epoch(task: NodeClassification, tmp_path: Path) -> None:
    two = config(model__members=2, model__input_dropout=0.3, train__lr=0.1, train__epochs=12)
    seen: list[list[float]] = [[], []]
    measured = NodeClassification.evaluate
    with pytest.MonkeyPatch.context() as patch:

        def evaluate(self: NodeClassification, model: torch.nn.Module, split: str, *more: Any) -> dict[str, float]:
            metrics = measured(self, model, split, *more)
            if not isinstance(model, Ensemble):
                min(seen, key=len).append(metrics["accuracy"])
            return metrics

        patch.setattr(NodeClassification, "evaluate", evaluate)
        train(two, run_dir=tmp_path / "run", device="cpu")
    model = RunFolder.open(tmp_path / "run").load_model()
    assert isinstance(model, Ensemble) and all(len(each) == 12 for each in seen)
    accuracies = [measured(task, member, "valid")["accuracy"] for member in model.members]
    assert accuracies == [max(each) for each in seen]


@pytest.mark.parametrize("model", ["magna", "gat"])
def test_the_same_trials_give_the_same_numbers(task: NodeClassification, model: str) -> None:
    sizes: dict[str, Any] = {"hidden_channels": 8, "num_layers": 1, "heads": 2, "dropout": 0.4}
    same = replace(config(), model=model_settings(name=model, **sizes))
    configs = [same.with_seed(seed) for seed in range(3)]
    first, second = (train_trials(configs, task) for _ in range(2))
    assert [r.history for r in first] == [r.history for r in second]


def test_what_changes_a_shape_splits_the_batch() -> None:
    base = structure(config())
    free = {"model__alpha": 0.5, "model__K": 5, "train__lr": 0.1, "train__seed": 7, "data__split_seed": 3}
    free |= {"model__feature_dropout": 0.5}
    assert all(structure(config(**{key: value})) == base for key, value in free.items())
    fixed = {"model__heads": 4, "model__feed_forward": False, "train__epochs": 7, "task__consistency": 1.0}
    assert all(structure(config(**{key: value})) != base for key, value in fixed.items())
    theta = {"model__hop_weights": "theta"}
    assert structure(config(**theta)) != structure(config(**theta, model__K=3))


def test_feature_dropout_meets_no_trial_before_its_first_hop(task: NodeClassification) -> None:
    # Without hops there is no dropout after them: this trial has nothing of chance, whoever trains beside it.
    still = config(model__K=0, model__feature_dropout=0.5)
    (alone,) = train_trials([still], task)
    paired, _ = train_trials([still, config(model__K=3, model__feature_dropout=0.5)], task)
    assert [row["loss"] for row in paired.history] == pytest.approx([row["loss"] for row in alone.history], rel=1e-3)


@pytest.mark.parametrize("hops", range(4))
def test_feature_dropout_follows_every_hop_of_a_trial(hops: int) -> None:
    conv, other = (MAGNAConv(4, 4, heads=2, K=K, feature_dropout=0.999999) for K in (hops, 3 if hops < 3 else 2))
    register_differences([conv, other])
    out = conv(torch.ones(5, 4), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]))
    assert bool((out == 0).all()) == (hops > 0)


def test_what_differs_is_a_buffer_of_the_batch_alone(task: NodeClassification) -> None:
    drops = {"model__input_dropout": 0.5, "model__dropout": 0.3, "model__edge_dropout": 0.2}
    configs = [config(model__K=3, **drops), config(model__negative_slope=0.6, model__alpha=0.5, model__K=1)]
    lone = task.make_model(configs[0].model)
    before = task.evaluate(lone, "valid")
    batch = Batch(configs, [0, 1], task)
    differing = {name.rpartition(".")[2] for name in batch.buffers}
    assert differing == {"K", "alpha", "negative_slope", "dropout", "edge_dropout", "p"}
    assert all(len(values) == 2 for values in batch.buffers.values())
    batch.step()
    batch.look()
    # Nothing of a trial is left behind: tensors are plain, and the batch's network works by itself.
    state = [*batch.network.parameters(), *batch.network.buffers()]
    assert all(isinstance(tensor.detach().sum().item(), int | float) for tensor in state)
    assert batch.network.state_dict().keys() == lone.state_dict().keys()
    assert task.scores(batch.network).isfinite().all()
    hops = [module for module in lone.modules() if isinstance(module, Hops)]
    assert hops and all((type(each.K), type(each.alpha)) == (int, float) for each in hops)
    assert task.evaluate(lone, "valid") == before


def test_several_structures_come_back_in_order(task: NodeClassification) -> None:
    configs = [config(model__hidden_channels=width, train__epochs=1) for width in (8, 4, 8, 4)]
    batches: list[dict[int, Any]] = []
    results = train_trials(configs, task, on_results=batches.append)
    assert [result.config for result in results] == configs
    assert [list(batch) for batch in batches] == [[0, 2], [1, 3]]
    assert all(batch[index] is results[index] for batch in batches for index in batch)


@pytest.mark.parametrize("members", [1, 2])
def test_stopped_trials_stop_and_the_others_go_on(task: NodeClassification, members: int) -> None:
    configs = [config(train__seed=s, model__input_dropout=0.1, model__members=members) for s in range(4)]
    seen: list[tuple[int, list[int]]] = []

    def stop(epoch: int, running: list[int], scores: list[float]) -> list[int]:
        seen.append((epoch, running))
        assert len(scores) == len(running) and all(0 <= score <= 1 for score in scores)
        return {2: [1], 4: [0, 3]}.get(epoch, [])

    def keep(ended: dict[int, Any]) -> None:
        seen.append((-1, list(ended)))

    results = train_trials(configs, task, report_every=2, on_report=stop, on_results=keep)
    # Those that have ended are handed over when the batch goes on without them, so that a stop does not cost them.
    assert seen == [(2, [0, 1, 2, 3]), (4, [0, 2, 3]), (-1, [0, 1, 3]), (6, [2]), (-1, [2])]
    assert [result.epochs for result in results] == [4, 4, 6, 4]
    untouched = train_trials(configs, task, report_every=2)
    assert [row["loss"] for row in results[2].history[:4]] == [row["loss"] for row in untouched[2].history[:4]]


def test_what_comes_after_patience_does_not_count(task: NodeClassification, tmp_path: Path) -> None:
    long = config(train__epochs=60, train__lr=0.03, train__patience=60)
    short = replace(long, train=replace(long.train, patience=1))
    result, other = train_trials([short, long], task, report_every=60)
    assert other.best_epoch > result.best_epoch, "it would have become better later"
    train(short, run_dir=tmp_path / "alone", device="cpu")
    summary = RunFolder(tmp_path / "alone").summary
    assert summary is not None
    assert (result.best_epoch, result.epochs) == (summary["best_epoch"], summary["epochs"])
    assert result.valid["accuracy"] == summary["valid"]["accuracy"]


def test_a_trial_that_diverges_has_no_score(task: NodeClassification, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = NodeClassification.loss

    def diverging(self: NodeClassification, model: Any, nodes: Any, epoch: Any, settings: Any) -> torch.Tensor:
        late = torch.where(epoch == 4, torch.nan, 0.0)
        return loss(self, model, nodes, epoch, settings) + late * self.scores(model).sum()

    configs = [config(train__seed=1), config(train__seed=2)]
    assert all(result.valid["accuracy"] > 0 for result in train_trials(configs, task))
    monkeypatch.setattr(NodeClassification, "loss", diverging)
    for result in train_trials(configs, task):
        assert result.best_epoch in range(4) and result.history[result.best_epoch]["valid_accuracy"] > 0
        assert result.valid["accuracy"] == 0
        with pytest.raises(Diverged):
            result.check()


def test_the_test_split_stays_behind_its_door(task: NodeClassification) -> None:
    results = train_trials([config()], task)
    assert results[0].test is None
    poisoned = node_task(config(), None, torch.device("cpu"))
    poisoned._y[poisoned.nodes("test")] = -1
    again = train_trials([config()], poisoned)
    assert again[0].history == results[0].history


def test_trials_on_several_random_splits(task: NodeClassification) -> None:
    configs = [config(data__split="random", data__split_seed=seed) for seed in (0, 1, 2)]
    for each, result in zip(configs, train_trials(configs, task, read_test=True), strict=True):
        split = node_task(each, None, torch.device("cpu"))
        alone = train_trials([each], split, read_test=True)[0]
        assert result.history[0]["loss"] == pytest.approx(alone.history[0]["loss"], rel=1e-5)
        assert result.test is not None and alone.test is not None
        assert result.test["loss"] == pytest.approx(alone.test["loss"], rel=1e-3)


def test_learnt_alpha_and_theta(task: NodeClassification) -> None:
    for hop_weights in ("alpha", "theta"):
        configs = [config(train__seed=s, model__hop_weights=hop_weights) for s in range(2)]
        assert all(result.valid["accuracy"] > 0.1 for result in train_trials(configs, task))


# Settings whose next value has to be chosen, with what it needs beside it to be allowed or to be felt.
OTHER: dict[str, dict[str, Any]] = {
    "model.hidden_channels": {"model.hidden_channels": 16},
    "model.heads": {"model.heads": 4},
    "model.top_k": {"model.top_k": 2},
    "model.top_k_shared": {"model.top_k_shared": True, "model.top_k": 2},
    "model.norm_eps": {"model.norm_eps": 0.3},
    "model.tolerance": {"model.tolerance": 0.3, "model.mode": "exact"},
    "model.relation_channels": {"model.relation_channels": 3},
    "model.ffn_multiplier": {"model.ffn_multiplier": 2},
    "task.passes": {"task.passes": 3, "task.consistency": 1.0},
    "task.temperature": {"task.temperature": 0.2, "task.consistency": 1.0, "model.input_dropout": 0.5},
    "task.confidence": {"task.confidence": 0.3, "task.consistency": 1.0, "model.input_dropout": 0.5},
    "task.ramp": {"task.ramp": 2, "task.consistency": 1.0, "model.input_dropout": 0.5},
    "train.patience": {"train.patience": 1, "train.lr": 0.0},
    "train.eval_every": {"train.eval_every": 4},
    "train.clip": {"train.clip": 0.01},
    "train.epochs": {"train.epochs": 4},
    "train.precision": {"train.precision": "bfloat16"},
}
# Other draws or another way to compute the same: nothing to compare.
UNFELT = {"model.memory", "model.backend", "model.edge_pairs", "model.edge_dropout_shared"}
OF_THE_TASK = ("task.name", "task.metric")  # all trials of a batch share the task
KEYS = [k for k in keys(Config()) if k.startswith(("model.", "task.", "train.")) and k not in OF_THE_TASK]


def another(key: str) -> dict[str, Any]:
    """Settings that differ from the small config in one key."""
    if key in OTHER:
        return OTHER[key]
    table, name = key.split(".")
    value = getattr(getattr(config(), table), name)
    hint = getattr(config(), table).types()[name]
    if isinstance(value, str):
        return {key: next(choice for choice in get_args(hint) if choice != value)}
    if isinstance(value, bool):
        return {key: not value}
    return {key: value + 1 if isinstance(value, int) else 0.4}


def with_and_without(key: str, base: Config, task: NodeClassification) -> tuple[Config, Config] | None:
    """Two configs that differ in one key, the second with another value than the base; None where that is refused."""
    try:
        changed = base.with_settings(another(key))
        task.make_model(changed.model)
    except ValueError as error:
        if key in str(error):
            return None
        raise
    table, name = key.split(".")
    return changed.with_settings({key: getattr(getattr(base, table), name)}), changed


@pytest.fixture
def rounded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train.precision` on a CPU as on a GPU, so that its products are looked at here, too."""

    @contextmanager
    def step_precision(precision: str, device: torch.device, network: nn.Module | None = None) -> Iterator[None]:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False):
            yield

    for module in ("training.loop", "training.trial_batch"):
        monkeypatch.setattr(f"magna.{module}.step_precision", step_precision)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.usefixtures("rounded_here")
def test_no_setting_is_lost_in_a_batch(key: str, tmp_path: Path) -> None:
    """Beside another trial each setting is what it is alone, or it draws, and then the trials differ."""
    base = Config.from_dict(SMALL | {"data": {"name": str(ROOT / "examples" / "own_graph")}})
    task = node_task(base, None, torch.device("cpu"))
    if (pair := with_and_without(key, base, task)) is None:  # refused, so not lost either
        return
    start, changed = pair
    plain, result = train_trials([start, changed], task, report_every=1)
    assert (plain.history, plain.best_epoch) != (result.history, result.best_epoch) or key in UNFELT
    if not key.endswith("dropout") and not changed.model.input_dropout:
        train(changed, run_dir=tmp_path / "alone", device="cpu")
        lines = [json.loads(line) for line in (tmp_path / "alone" / "metrics.jsonl").read_text().splitlines()]
        close = 0.2 if changed.train.precision == "bfloat16" else 2e-3  # of two digits, products in another order
        assert [row["loss"] for row in result.history] == pytest.approx([line["loss"] for line in lines], rel=close)
        looked = [row.get("valid_accuracy") is not None for row in result.history]
        assert looked == ["valid" in line for line in lines]
        summary = RunFolder(tmp_path / "alone").summary
        assert summary is not None and result.best_epoch == summary["best_epoch"]


@pytest.mark.parametrize("key", [key for key in KEYS if key != "model.name"])
@pytest.mark.usefixtures("rounded_here")
def test_an_epoch_can_be_captured(key: str, task: NodeClassification) -> None:
    if (pair := with_and_without(key, config(), task)) is None:
        return
    start, changed = pair
    together = [start, changed] if structure(start) == structure(changed) else [changed, changed]
    batch = Batch(together, [0, 1], task)
    for part in (batch.step, batch.look):
        part()  # what is made once may be
        with Capturable() if changed.model.mode != "exact" else nullcontext():
            part()
    if torch.cuda.is_available():
        train_trials(together, node_task(config(), None, torch.device("cuda")))


@pytest.mark.parametrize(("recipe", "nodes"), [("pubmed-paper", 19_717), ("cora-paper", 2_708), ("pubmed", 19_717)])
def test_what_fills_a_gpu_trains_alone(recipe: str, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (139 << 30, 141 << 30))
    task = SimpleNamespace(device=torch.device("cuda"), num_nodes=nodes, num_edges=6 * nodes, in_channels=500)
    size = _batch_size(load_recipe(recipe), cast(NodeClassification, task))
    assert (size == 1) == (recipe == "pubmed-paper")


def test_other_data_than_the_task_s_is_refused(task: NodeClassification) -> None:
    for other in ({"data__self_loops": False}, {"data__split_seed": 3}, {"data__name": "cora"}):
        with pytest.raises(ValueError, match="data is"):
            train_trials([config(**other)], task)
    drawn = node_task(config(data__split="random"), None, torch.device("cpu"))
    with pytest.raises(ValueError, match="data is"):
        train_trials([config()], drawn)


def test_another_metric_than_the_task_s_is_refused(task: NodeClassification) -> None:
    with pytest.raises(ValueError, match=r"task\.metric is 'macro_f1'; allowed: that of the task, accuracy"):
        train_trials([config(task__metric="macro_f1")], task)
    (result,) = train_trials([config(task__metric="accuracy", train__epochs=1)], task)
    assert "accuracy" in result.valid
    chosen = node_task(config(task__metric="macro_f1"), None, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"task\.metric is 'auto'; allowed: that of the task, macro_f1"):
        train_trials([config()], chosen)


def test_the_seconds_of_a_batch_are_those_of_its_trials(task: NodeClassification) -> None:
    def stop(epoch: int, running: list[int], scores: list[float]) -> list[int]:
        return [0, 1, 2] if epoch == 2 else []

    started = time.perf_counter()
    results = train_trials([config(train__seed=s) for s in range(4)], task, report_every=2, on_report=stop)
    assert sum(result.seconds for result in results) <= time.perf_counter() - started
    assert results[0].seconds < results[3].seconds


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device on which no more than three trainings of two heads fit, or one of four; the batches that were tried."""
    tried: list[int] = []
    run = Batch.run

    def run_if_it_fits(self: Batch, *arguments: Any) -> Any:
        tried.append(len(self.configs))
        if sum(config.model.heads for config in self.configs) > 6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has 1 GiB free.")
        return run(self, *arguments)

    monkeypatch.setattr(Batch, "run", run_if_it_fits)
    return tried


def test_a_batch_that_does_not_fit_in_memory_is_halved(task: NodeClassification, memory: list[int]) -> None:
    configs = [config(train__seed=s) for s in range(8)] + [config(model__heads=4)]
    results = train_trials(configs, task)
    assert memory == [8, 4, 2, 2, 2, 2, 1]
    assert [result.config for result in results] == configs


def test_what_had_ended_before_memory_ran_out_is_kept(
    task: NodeClassification, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [config(train__seed=s, model__input_dropout=0.1) for s in range(4)]
    keep, calls = Batch._keep, []

    def keep_once(self: Batch, left: list[bool]) -> None:
        calls.append(left)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has 1 GiB free.")
        keep(self, left)

    monkeypatch.setattr(Batch, "_keep", keep_once)
    handed: list[int] = []
    results = train_trials(
        configs,
        task,
        report_every=2,
        on_report=lambda epoch, running, scores: [0, 1, 3] if epoch == 4 and len(running) == 4 else [],
        on_results=handed.extend,
    )
    assert handed == [0, 1, 3, 2] and [result.epochs for result in results] == [4, 4, 6, 4]


def test_a_training_that_does_not_fit_alone_is_an_error_or_named(task: NodeClassification, memory: list[int]) -> None:
    configs = [config(train__seed=s, model__heads=heads) for s, heads in enumerate((8, 2, 8))]
    with pytest.raises(torch.OutOfMemoryError):
        train_trials(configs, task)
    too_large: dict[int, str] = {}
    results = train_trials(configs, task, too_large=too_large)
    assert too_large == dict.fromkeys((0, 2), "CUDA out of memory. Tried to allocate 9.00 GiB")
    assert [result.config for result in results] == configs[1:2]


LINKS = Config.from_dict(
    {
        "model": {"hidden_channels": 8, "num_layers": 1, "heads": 2, "K": 2, "entity_channels": 8},
        "task": {"name": "link_prediction", "batch_size": 8},
        "train": {"epochs": 6, "eval_every": 2, "lr": 0.02},
    }
)


@pytest.fixture(scope="module")
def links() -> LinkPrediction:
    rows = ring_triples(30)
    splits = {"train": rows[10:50], "valid": rows[:10], "test": rows[50:]}
    return LinkPrediction(KnowledgeGraph.from_triples(triples_from("ring", splits)), torch.device("cpu"))


def test_trials_in_turn_have_their_own_settings(links: LinkPrediction, monkeypatch: pytest.MonkeyPatch) -> None:
    splits, sizes = list[tuple[str, int]](), list[int]()
    evaluate, loss = LinkPrediction.evaluate, LinkObjective.loss

    def evaluated(self: LinkPrediction, model: LinkModel, split: str) -> dict[str, float]:
        splits.append((split, sizes[-1]))
        return evaluate(self, model, split)

    def recorded(self: LinkObjective, model: LinkModel, batch: torch.Tensor, *rest: Any) -> torch.Tensor:
        sizes.append(len(batch))
        return loss(self, model, batch, *rest)

    monkeypatch.setattr(LinkPrediction, "evaluate", evaluated)
    monkeypatch.setattr(LinkObjective, "loss", recorded)
    configs = [LINKS, LINKS.with_values(["task.batch_size=4", "task.label_smoothing=0.4"]), LINKS]
    results = train_trials(configs, links)
    assert splits == [("valid", 8)] * 3 + [("valid", 4)] * 3 + [("valid", 8)] * 3
    assert [result.config for result in results] == configs
    assert results[0].history == results[2].history != results[1].history
    assert all(result.epochs == 6 and result.best_epoch in (1, 3, 5) for result in results)


def test_a_trial_in_turn_is_stopped_when_it_is_told(links: LinkPrediction) -> None:
    heard = []

    def on_report(epoch: int, which: list[int], scores: list[float]) -> list[int]:
        heard.append((epoch, *which))
        return which if which == [0] and epoch == 4 else []

    first, second = train_trials([LINKS, LINKS.with_seed(1)], links, report_every=2, on_report=on_report)
    assert (first.epochs, second.epochs) == (4, 6)
    assert heard == [(2, 0), (4, 0), (2, 1), (4, 1), (6, 1)]


@pytest.mark.parametrize("last", [0, 4])
def test_a_trial_in_turn_that_diverges_has_no_score(
    links: LinkPrediction, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    loss = LinkObjective.loss

    def diverging(self: LinkObjective, model: LinkModel, batch: torch.Tensor, epoch: Any = 0) -> torch.Tensor:
        return loss(self, model, batch, epoch) * (math.nan if int(epoch) == last else 1.0)

    monkeypatch.setattr(LinkObjective, "loss", diverging)
    heard: list[float] = []

    def on_report(epoch: int, which: list[int], scores: list[float]) -> list[int]:
        heard.extend(scores)
        return []

    (result,) = train_trials([LINKS], links, report_every=2, on_report=on_report)
    assert len(heard) == last // 2 and min(heard, default=1) > 0, "validated before it diverged"
    assert (result.valid, result.epochs, result.best_epoch) == ({"mrr": 0.0}, last, -1)


@pytest.mark.parametrize("members", [1, 2])
def test_a_report_says_what_a_trial_costs(task: NodeClassification, members: int) -> None:
    configs = [config(model__members=members, model__K=hops) for hops in (2, 2, 8)]
    results = train_trials(configs, task, read_test=True)
    with torch.device("meta"):
        model = task.make_model(configs[0].model)
    assert {result.parameters for result in results} == {sum(weight.numel() for weight in model.parameters())}
    first, second, farthest = (result.peak_bytes for result in results)
    assert first == second == forecast(task, configs[0], task.device).peak
    assert farthest == forecast(task, configs[2], task.device).peak != first
    assert [result.peak_bytes for result in train_trials(configs[:1], task)] == [None], "a search does not ask"
