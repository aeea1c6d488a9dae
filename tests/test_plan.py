"""What a run will need is said before it starts, and comes out near what it then takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from magna import plan as planning
from magna import train as training
from magna.baselines import diffused_graph
from magna.bench.measure import memory_of
from magna.config import Config, load_recipe
from magna.nn.attention import graph_at_door
from magna.ops.backends import pack
from magna.ops.pool import POOL
from magna.plan import Memory, forecast, plan
from magna.tasks import NodeClassification, make_task
from tests.laws import node_task, peak_bytes

CPU = torch.device("cpu")
WIDE = ["model.hidden_channels=256", "model.num_layers=3", "model.input_dropout=0.5", "model.attention_dropout=0.3"]


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
        ["model.name=gat", "model.hidden_channels=1024", "model.num_layers=3", "model.attention_dropout=0.5"],
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
    assert rest == pytest.approx(planning.HELD["cpu"] * peak_bytes(step, CPU), rel=0.1)


def test_the_forecast_leaves_no_trace() -> None:
    config = Config().with_values(["model.attention_dropout=0.3"])
    task = node_task(config, None, CPU)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    forecast(task, config, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    model = task.make_model(config.model)
    assert type(task.scores(model)) is torch.Tensor  # no tensor without memory was kept for later


def test_the_time_is_near_what_a_run_takes(tmp_path: Path) -> None:
    config = Config().with_values(["train.epochs=40"])
    said = plan(config, device="cpu")
    taken = training.train(config, run_dir=tmp_path / "run", device="cpu")["runs"][0]["seconds"]
    assert said["time"]["measured"] >= 4
    # The clock of a busy machine: an order of magnitude is what can be promised in a test.
    assert taken / 10 < said["time"]["seconds"] < 10 * taken
    assert said["parameters"] > 0 and said["memory"]["fits"] and said["advice"] == []
    assert plan(config, device="cpu", seeds=3, measure=False)["time"]["seconds"] is None


def test_the_time_of_several_seeds() -> None:
    config = Config().with_values(["train.epochs=40", "model.hidden_channels=16"])
    turn, together = (plan(config, device="cpu", seeds=2, together=way) for way in (False, True))
    assert turn["time"]["seconds"] == pytest.approx(turn["time"]["epoch_seconds"] * 40 * 2)
    assert together["together"] and together["time"]["measured"] == 3  # reports come every ten epochs
    assert together["time"]["seconds"] == pytest.approx(together["time"]["epoch_seconds"] * 40)


def test_a_run_that_does_not_fit_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "machine_memory", lambda: 30_000_000)
    monkeypatch.setattr(training, "_run", lambda *_: pytest.fail("it was started"))
    said = plan(Config(), device="cpu")
    assert not said["memory"]["fits"] and said["time"]["seconds"] is None
    assert [line.split(":")[0] for line in said["advice"]] == [
        "--set model.memory=recompute",
        "--set model.hidden_channels=32",
    ]
    assert "which fits" in said["advice"][1]
    assert not Memory(0, 0, 95, 100).fits


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="seeds is 0"):
        plan(Config(), seeds=0)
    with pytest.raises(ValueError, match="K is -1"):
        plan(Config().with_values(["model.K=-1"]), device="cpu")


def test_a_link_predictor_is_planned_like_any_other() -> None:
    config = load_recipe("families").with_values(["model.hidden_channels=16"])
    result = plan(config, device="cpu", seeds=2, together=True, measure=False)
    assert result["task"] == "link_prediction" and result["memory"]["fits"] and not result["together"]
    rough = forecast(make_task(config, None, CPU), config.with_values(["train.precision=bfloat16"]), CPU)
    assert rough.saved < result["memory"]["saved"]
