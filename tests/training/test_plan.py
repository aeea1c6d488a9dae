"""A plan states the memory and the time of a run before it starts, close to what the run then takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.measuring import peak_bytes
from tests.support.running import node_task
from torch import Tensor

from magna.baselines import diffused_graph
from magna.bench.measure import memory_of
from magna.config.registry import NODE_TASK, model_names
from magna.config.schema import Config, load_recipe
from magna.nn.attention import graph_at_door
from magna.ops.backend.graph_tensors import pack
from magna.ops.cpu.memory_pool import POOL
from magna.tasks import LinkPrediction, NodeClassification, make_task
from magna.tasks.link_objective import LinkObjective
from magna.training import plan as planning
from magna.training import step_memory
from magna.training import train as training
from magna.training.plan import plan
from magna.training.step_memory import HELD, StepMemory, forecast
from magna.training.trial_batch import Batch

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
WIDE = ["model.hidden_channels=256", "model.num_layers=3", "model.input_dropout=0.5", "model.dropout=0.3"]


def _data_of(task: NodeClassification, config: Config) -> list[torch.Tensor]:
    """Features and edges as the operators hold them: what is there before a step."""
    x, edge_index = task.data.x, task.data.edge_index
    assert x is not None
    graph = graph_at_door(x, edge_index, None, task.in_channels, None)
    if config.model.name != "diff-gcn":
        return [x, *pack(graph)[0]]
    assert config.model.top_k is not None
    diffused, weight = diffused_graph(graph, config.model.alpha, config.model.top_k)
    return [x, weight, *pack(diffused)[0]]


@pytest.mark.parametrize(
    "settings",
    [
        WIDE,
        [*WIDE, "model.memory=recompute"],
        [*WIDE, "model.feed_forward=false", "task.consistency=1.0"],
        [*WIDE, "model.members=2"],
        ["model.name=gat", "model.hidden_channels=1024", "model.num_layers=3", "model.dropout=0.5"],
        ["model.name=diff-gcn", "model.hidden_channels=1024", "model.num_layers=3", "model.top_k=16"],
    ],
    ids=lambda settings: settings[-1],
)
def test_the_forecast_is_near_what_a_step_takes(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config().with_values(settings)
    task = node_task(config, None, CPU)
    expected = forecast(task, config, CPU)

    model = task.make_model(config.model).train()
    moments = [torch.ones_like(each) for each in model.parameters() for _ in range(3)]  # Adam's, and the best weights

    def step() -> None:
        task.loss(model, task.nodes("train"), config.train.epochs).backward()

    step()
    model.zero_grad()
    known = [*model.parameters(), *moments, *_data_of(task, config)]
    _, taken = memory_of(step, known, CPU)
    assert expected.parameters == sum(each.nbytes for each in model.parameters())
    assert expected.saved == pytest.approx(taken.saved_bytes, rel=0.05)
    model.zero_grad()
    # Torch's own allocator counts every block of its own, whatever else the machine does.
    monkeypatch.setattr(POOL, "empty", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    rest = expected.peak - 4 * expected.parameters - task.data.x.nbytes  # type: ignore[union-attr]
    assert rest == pytest.approx(HELD["cpu"] * peak_bytes(step, CPU), rel=0.1)


def test_the_forecast_leaves_no_trace() -> None:
    config = Config().with_values(["model.dropout=0.3"])
    task = node_task(config, None, CPU)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    forecast(task, config, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    model = task.make_model(config.model)
    assert type(task.scores(model)) is torch.Tensor  # no tensor without memory was kept for later


class Clock:
    """Moved by work alone: a second for the loss of a batch, a quarter for an evaluation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for trained in (NodeClassification, LinkObjective):
            monkeypatch.setattr(trained, "loss", self._counted(trained.loss, 1.0))
        for task in (NodeClassification, LinkPrediction):
            monkeypatch.setattr(task, "evaluate", self._counted(task.evaluate, 0.25))
        monkeypatch.setattr(planning, "time", self)

    def _counted(self, work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.now += seconds
            return work(*arguments)

        return counted

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("recipe", "settings", "seeds"),
    [
        ("digits", ["model.hidden_channels=16", "train.epochs=12"], 2),
        ("digits", ["model.hidden_channels=16", "train.epochs=11", "train.eval_every=4"], 1),
        (
            "families",
            ["model.hidden_channels=16", "task.batch_size=2048", "train.epochs=5", "train.eval_every=2"],
            1,
        ),
    ],
)
def test_the_time_is_what_a_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, settings: list[str], seeds: int
) -> None:
    config = load_recipe(recipe).with_values(settings)
    clock = Clock(monkeypatch)
    said = plan(config, device="cpu", seeds=seeds)["time"]
    begin = clock.now
    training.train(config, run_dir=tmp_path / "run", device="cpu", seeds=seeds)
    assert said["seconds"] == clock.now - begin
    assert (said["step_seconds"], said["evaluation_seconds"]) == (1.0, 0.25)
    assert said["epoch_seconds"] == said["steps"] and said["measured"] == 4


TOGETHER = Config().with_values(["train.epochs=40", "model.hidden_channels=16"])


def test_the_time_of_seeds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    said = plan(TOGETHER, device="cpu", seeds=3, together=True)
    assert said["together"] and said["time"]["turns"] == 1
    assert (said["time"]["step_seconds"], said["time"]["seconds"]) == (1.0, 40.0)
    monkeypatch.setattr("magna.training.trials._batch_size", lambda *_: 2)
    assert plan(TOGETHER, device="cpu", seeds=3, together=True)["time"]["seconds"] == 2 * 40.0


def test_the_time_of_seeds_together_that_are_seldom_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, look = Clock(monkeypatch), Batch.look

    def slow(batch: Batch) -> Tensor:
        clock.now += 10.0
        return look(batch)

    monkeypatch.setattr(Batch, "look", slow)
    said = plan(TOGETHER.with_values(["train.eval_every=5"]), device="cpu", seeds=2, together=True)["time"]
    assert (said["epoch_seconds"], said["seconds"]) == (1.0 + 10.0 / 5, 40.0 + 8 * 10.0)


def test_what_comes_before_the_first_epoch_together_is_not_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, captured = Clock(monkeypatch), Batch._captured

    def compiled(batch: Batch) -> list[Callable[[], object]]:
        clock.now += 3 * planning.MOST_SECONDS
        return captured(batch)

    monkeypatch.setattr(Batch, "_captured", compiled)
    assert plan(TOGETHER, device="cpu", seeds=3, together=True)["time"]["seconds"] == 40.0


def test_a_slow_step_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_recipe("families").with_values(["model.hidden_channels=16", "train.epochs=4", "train.eval_every=2"])
    clock = Clock(monkeypatch)
    monkeypatch.setattr(planning, "MOST_SECONDS", 0.5)
    monkeypatch.setattr(planning, "_SLOW_STEP", 0.5)
    without = plan(config, device="cpu", measure=False)["time"]
    assert without["seconds"] is None and without["measured"] == 0
    memory_alone = clock.now
    said = plan(config, device="cpu")["time"]
    assert clock.now - 2 * memory_alone == 1
    assert said["measured"] == 1 and said["steps"] > 1 and said["evaluation_seconds"] is None
    assert said["seconds"] == 4 * said["steps"] + 4  # evaluations are counted like steps


def test_a_run_that_does_not_fit_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = Config().with_values(["model.hidden_channels=32"])
    memory = forecast(make_task(narrow, None, CPU), narrow, CPU).peak * 5 // 4
    monkeypatch.setattr(step_memory, "machine_memory", lambda: memory)
    monkeypatch.setattr(planning, "Training", lambda *_: pytest.fail("it was started"))
    said = plan(Config(), device="cpu")
    assert not said["memory"]["fits"] and said["time"]["seconds"] is None
    assert [line.split(":")[0] for line in said["advice"]] == [
        "--set model.memory=recompute",
        "--set model.hidden_channels=32",
    ]
    assert "which fits" in said["advice"][1]
    assert not StepMemory(0, 0, 95, 100).fits


@pytest.mark.parametrize(
    ("assignments", "advice"),
    [
        (["model.hidden_channels=24"], ["--set model.memory=recompute", "--set model.hidden_channels=8"]),
        (["model.name=gat"], ["--set model.hidden_channels=32"]),
    ],
)
def test_advice_is_nothing_that_the_model_refuses(
    assignments: list[str], advice: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_memory, "machine_memory", lambda: 1_000_000)
    said = plan(Config().with_values(assignments), device="cpu")
    assert [line.split(":")[0] for line in said["advice"]] == advice


def test_a_plan_is_of_one_seed_or_more() -> None:
    with pytest.raises(ValueError, match="seeds is 0"):
        plan(Config(), seeds=0)


@pytest.mark.parametrize("name", [name for name in model_names(NODE_TASK) if name != "custom"])
def test_baselines_are_planned_too(name: str) -> None:
    memory = plan(Config.from_dict({"model": {"name": name}}), device="cpu", measure=False)["memory"]
    assert memory["peak"] > memory["parameters"] > 0


def test_a_link_predictor_is_planned_like_any_other() -> None:
    config = load_recipe("families").with_values(["model.hidden_channels=16"])
    result = plan(config, device="cpu", seeds=2, together=True, measure=False)
    assert result["task"] == "link_prediction" and result["memory"]["fits"] and not result["together"]
    rough = forecast(make_task(config, None, CPU), config.with_values(["train.precision=bfloat16"]), CPU)
    assert rough.saved == result["memory"]["saved"]  # on a CPU products are of float32 numbers


def test_the_batch_of_a_link_predictor_is_drawn_outside_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a GPU it passes through pinned memory, which tensors without memory do not have.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = load_recipe("families").with_values(["model.hidden_channels=16"])
    task = make_task(config, None, torch.device(device))
    draw, drawn = LinkObjective.batches, []

    def batches(objective: LinkObjective, epoch: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
        drawn.append(draw(objective, epoch, seed))
        return drawn[-1]

    monkeypatch.setattr(LinkObjective, "batches", batches)
    assert forecast(task, config, task.device).fits
    assert drawn and all(type(batch) is Tensor for batch in drawn[0])
