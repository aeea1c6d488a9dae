"""The loop: it learns, chooses by validation, opens the test split once, and goes on where it was stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support.running import node_task, small
from torch import Tensor, nn

import magna
from magna.config.schema import Config, load_recipe
from magna.data import load_digits
from magna.data.pyg import to_pyg
from magna.data.splits import with_random_split
from magna.errors import ArgumentError, DataError
from magna.nn import dropout
from magna.tasks import LinkPrediction, NodeClassification, make_task
from magna.training import loop
from magna.training import train as training
from magna.training.loop import Epoch
from magna.training.run_folder import RunFolder, pick_device
from magna.use.predict import evaluate

Finished = tuple[Path, dict[str, Any]]
LINKS: dict[str, dict[str, Any]] = {
    "data": {"name": "families"},
    "model": {"hidden_channels": 16, "num_layers": 1, "heads": 4, "K": 2, "skip_channels": 12},
    "task": {"name": "link_prediction", "skip_n3": 0.01, "skip_relation_prediction": 1.0},
    "train": {"epochs": 2, "lr": 0.0, "min_lr": 0.0, "skip_lr": 0.01},
}
LINK_DROPOUTS = ("model.edge_dropout=0.1", "model.decoder_dropout=0.1")
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))
DEVICES = ("cpu", GPU)
train = partial(training.train, device="cpu")


class Killed(Exception):
    pass


def _killed_after(epochs: int) -> Callable[[Epoch], None]:
    def on_epoch(epoch: Epoch) -> None:
        if epoch.number == epochs:
            raise Killed

    return on_epoch


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, train(small(), run_dir=folder)


def test_it_learns(finished: Finished) -> None:
    folder, result = finished
    assert result["runs"][0]["test"]["accuracy"] > 0.6
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(12))
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_the_result_has_the_promised_shape(finished: Finished) -> None:
    folder, result = finished
    assert list(result) == ["task", "dataset", "recipe", "device", "runs", "mean", "std"]
    assert (result["task"], result["dataset"], result["recipe"]) == ("node_classification", "digits", "small")
    (run,) = result["runs"]
    assert list(run) == ["seed", "run_dir", "seconds", "epochs", "valid", "test"]
    assert (run["seed"], run["run_dir"], run["epochs"]) == (0, str(folder), 12)
    assert result["mean"]["test"] == run["test"]
    assert result["std"]["test"]["accuracy"] == 0.0
    for name in ("config.toml", "environment.json", "metrics.jsonl", "summary.json", "model", "checkpoint"):
        assert (folder / name).exists()


def test_the_best_epoch_by_validation_is_kept(finished: Finished) -> None:
    folder, result = finished
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: (row["valid"]["accuracy"], -row["valid"]["loss"]))
    assert best["valid"].items() <= result["runs"][0]["valid"].items()  # a finished run has further metrics
    assert json.loads((folder / "summary.json").read_text())["best_epoch"] == best["epoch"]


def test_the_test_split_is_read_once_and_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    measure = NodeClassification.evaluate

    def recorded(self: NodeClassification, model: torch.nn.Module, split: str, *more: Any) -> dict[str, float]:
        seen.append(split)
        return measure(self, model, split, *more)

    monkeypatch.setattr(NodeClassification, "evaluate", recorded)
    train(small(), run_dir=tmp_path / "run")
    assert seen.count("test") == 1 and seen[-1] == "test"


@pytest.mark.parametrize("together", [False, True])
def test_without_a_test_the_labels_of_the_test_split_are_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    config, tasks = small("train.epochs=2"), list[NodeClassification]()

    def poisoned(*arguments: Any) -> NodeClassification:
        tasks.append(node_task(config))
        tasks[0]._y = tasks[0]._y.clone()  # the data, whose fingerprint the run stores, stays as it is
        tasks[0]._y[tasks[0].nodes("test")] = 1 << 40  # no class: any look at the loss or the accuracy fails
        return tasks[0]

    with monkeypatch.context() as patch:
        patch.setattr(training, "make_task", poisoned)
        result = train(config, run_dir=tmp_path, seeds=2, test=False, together=together)
        with pytest.raises(IndexError):
            tasks[0].evaluate(tasks[0].make_model(config.model), "test")
    assert [run["test"] for run in result["runs"]] == [None, None]
    assert result["mean"]["test"] is None and result["std"]["test"] is None
    folder = tmp_path / "seed-1"
    assert json.loads((folder / "summary.json").read_text())["test"] is None
    assert evaluate(folder, "test", device="cpu")["metrics"]["accuracy"] > 0.1
    again = train(None, run_dir=tmp_path, seeds=2, resume=True)
    assert again == result


def test_without_a_test_its_triples_are_never_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = list[LinkPrediction]()

    def made(*arguments: Any) -> Any:
        tasks.append(make_task(*arguments))  # type: ignore[arg-type]
        return tasks[-1]

    monkeypatch.setattr(training, "make_task", made)
    result = train(Config.from_dict(LINKS), run_dir=tmp_path, test=False)
    assert result["runs"][0]["test"] is None and result["runs"][0]["valid"]["mrr"] > 0
    with pytest.raises(KeyError):
        tasks[0].evaluate(tasks[0].make_model(Config.from_dict(LINKS).model), "test")
    assert evaluate(tmp_path, "test", device="cpu")["metrics"]["mrr"] > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("config", "stop", "at_once"),
    [
        (small(), 1, "cuda"),
        (small(), 7, "cuda"),
        (small("model.members=3"), 7, "cuda"),
        (small(), 7, "cpu"),
        # Embeddings past the encoder have their own rate.
        (Config.from_dict(LINKS).with_values(["train.lr=0.01", "train.epochs=3", *LINK_DROPOUTS]), 2, "cuda"),
    ],
)
def test_a_stopped_run_ends_as_if_it_had_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config, stop: int, at_once: str, device: str
) -> None:
    monkeypatch.setattr("magna.nn.dropout._AT_ONCE", (at_once,))
    whole = tmp_path / "whole"
    train(config, run_dir=whole, device=device)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Killed):
        train(config, run_dir=tmp_path / "run", device=device, on_epoch=_killed_after(stop))
    torch.manual_seed(123)  # a new process would have another state
    train(config, run_dir=tmp_path / "run", device=device, resume=True)
    for name in ("metrics.jsonl", "model/model.safetensors", "model/config.json", "config.toml"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()


def test_a_step_draws_its_seeds_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[int]()
    draw = dropout._draw

    def counted(count: int, device: torch.device) -> torch.Tensor:
        drawn.append(count)
        return draw(count, device)

    monkeypatch.setattr(dropout, "_AT_ONCE", ("cpu",))
    monkeypatch.setattr(dropout, "_draw", counted)
    train(small("train.epochs=3"), run_dir=tmp_path / "run")
    assert drawn == [64] * 3


def test_a_run_that_was_stopped_on_a_cpu_goes_on_on_a_gpu(finished: Finished) -> None:
    run, config = RunFolder.open(finished[0]), small()
    state = loop.Training(config, make_task(config, None, torch.device("cpu")), run.load_model())
    state.device = torch.device("cuda")
    state.restore(run)
    assert state.progress.epoch == 12


def test_a_model_that_takes_long_to_save_is_saved_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, saves = 0.0, list[float]()

    def save(*_: object) -> None:
        nonlocal now
        saves.append(now)
        now += 2

    def epoch_ends(_: Epoch) -> None:
        nonlocal now
        now += 1

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1.0)
    monkeypatch.setattr(loop.Training, "save", save)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    config = small("train.epochs=10", "train.patience=10")
    train(config, run_dir=tmp_path / "run", on_epoch=epoch_ends)
    # Two seconds are four times what is meant for a save: four seconds between them, then the one at the end.
    assert saves == [1.0, 7.0, 13.0, 16.0]


@pytest.mark.parametrize("harm", ["gone", "emptied"])
def test_resume_makes_a_model_that_is_gone_again(tmp_path: Path, finished: Finished, harm: str) -> None:
    run = shutil.copytree(finished[0], tmp_path / "run")
    model = (run / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(run / "model") if harm == "gone" else (run / "model" / "model.safetensors").write_bytes(b"")
    checkpoint = (run / "checkpoint").rename(tmp_path / "checkpoint")
    words = r"model.*(is missing|has changed).*try a copy of the run folder, or train again"
    with pytest.raises(ValueError, match=words):
        train(small(), run_dir=run, resume=True)
    checkpoint.rename(run / "checkpoint")
    result = train(small(), run_dir=run, resume=True)
    assert result["mean"] == finished[1]["mean"]
    assert (run / "model" / "model.safetensors").read_bytes() == model


def test_a_checkpoint_of_another_model_is_one_line(tmp_path: Path) -> None:
    config = small("train.epochs=2")
    for name, width in (("one", 16), ("other", 32)):
        train(config.with_values([f"model.hidden_channels={width}"]), run_dir=tmp_path / name)
    (tmp_path / "one" / "summary.json").unlink()
    shutil.copy(RunFolder(tmp_path / "other").checkpoint, RunFolder(tmp_path / "one").checkpoint)
    with pytest.raises(ValueError, match=r"safetensors: it is of another model, or damaged \(Error.*\); try"):
        train(config.with_values(["model.hidden_channels=16"]), run_dir=tmp_path / "one", resume=True)


@pytest.mark.parametrize("together", [False, True])
def test_a_process_that_comes_second_writes_nothing(tmp_path: Path, together: bool) -> None:
    pytest.importorskip("fcntl")
    folder, seeds = (tmp_path / "seed-0", 2) if together else (tmp_path, 1)
    with RunFolder(folder).alone(), pytest.raises(ValueError, match="is being trained by another process"):
        train(small(), run_dir=tmp_path, seeds=seeds, together=together)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_resume_with_other_settings_is_refused(finished: Finished) -> None:
    folder, _ = finished
    with pytest.raises(ValueError, match="other settings"):
        train(small("train.lr=0.1"), run_dir=folder, resume=True)


def test_seeds_have_folders_mean_and_deviation(tmp_path: Path) -> None:
    config = small("train.epochs=2", "train.seed=5")
    result = train(config, run_dir=tmp_path, seeds=2)
    assert [run["seed"] for run in result["runs"]] == [5, 6]
    first, second = (run["test"]["accuracy"] for run in result["runs"])
    assert result["mean"]["test"]["accuracy"] == pytest.approx((first + second) / 2)
    assert result["std"]["test"]["accuracy"] == pytest.approx(abs(first - second) / 2**0.5)
    assert (tmp_path / "seed-5" / "summary.json").is_file() and (tmp_path / "seed-6" / "summary.json").is_file()


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("epochs", [1, 3])  # weights may diverge in the last step
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, seeds: int, epochs: int) -> None:
    config = small("train.lr=1e30", "train.clip=0", f"train.epochs={epochs}")
    with pytest.raises(RuntimeError, match=r"smaller train\.lr"):
        train(config, run_dir=tmp_path, seeds=seeds, together=True)
    assert not list(tmp_path.rglob("summary.json"))


def _without_the_last_line(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-1])


def _with_swapped_splits(text: str) -> str:
    return re.sub("train|test", lambda match: "test" if match[0] == "train" else "train", text)


def _five_years_older(text: str) -> str:
    first, rows = text.split("\n", 1)
    return first + "\n" + re.sub(r"(?m)^(\w+),(\w+)", lambda match: f"{match[1]},{float(match[2]) + 5}", rows)


@pytest.mark.parametrize(
    ("standardised", "name", "change", "words"),
    [
        ("true", "edges.csv", _without_the_last_line, "fingerprint"),
        ("true", "nodes.csv", _with_swapped_splits, "columns"),
        ("true", "nodes.csv", _five_years_older, "feature_shift"),
        ("false", "nodes.csv", _five_years_older, "columns"),
    ],
)
def test_a_run_does_not_go_on_with_other_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    standardised: str,
    name: str,
    change: Callable[[str], str],
    words: str,
) -> None:
    shutil.copytree(Path(__file__).parents[2] / "examples" / "own_graph", tmp_path / "clubs")
    monkeypatch.chdir(tmp_path)
    config = small("data.name=clubs", "train.epochs=2", f"data.standardise_features={standardised}")
    with pytest.raises(Killed):
        train(config, run_dir="run", on_epoch=_killed_after(1))
    file = tmp_path / "clubs" / name
    text = file.read_text()
    file.write_text(change(text))
    words = rf"run: it was started on other data than .*clubs holds now \(schema.json: {words}\)"
    with pytest.raises(ValueError, match=words):
        train(config, run_dir="run", resume=True)
    file.write_text(text)
    train(config, run_dir="run", resume=True)
    # A path from where the run was started is known from anywhere.
    monkeypatch.chdir(tmp_path / "run")
    assert RunFolder.open(".").config.data.name == str(tmp_path / "clubs")


def test_settings_that_give_no_model_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="K is -1"):
        train(small("model.K=-1"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: 'auto', 'cpu', 'cuda'"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="try 'cpu', as torch finds no GPU"):
            pick_device("cuda")


@pytest.mark.slow
def test_a_run_killed_while_it_writes_ends_as_if_it_had_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small("train.epochs=2")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    writes: list[str] = []
    rename, unlink = os.replace, Path.unlink
    stop: tuple[int, bool] | None = None

    def replace(part: Path, whole: Path) -> None:
        if stop == (len(writes), False):
            raise Killed
        rename(part, whole)
        writes.append(whole.name)
        if stop == (len(writes) - 1, True):
            raise Killed

    monkeypatch.setattr(os, "replace", replace)
    train(config, run_dir=tmp_path / "whole")
    whole = list(writes)
    assert whole[-3:] == ["model", "SHA256SUMS", "summary.json"] and whole.count("state.safetensors") == 3
    for stop in [(number, after) for number in range(len(whole)) for after in (False, True)]:
        folder = tmp_path / f"{stop[0]}-{stop[1]}"
        writes.clear()
        # A process that is killed cleans nothing up.
        monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        with pytest.raises(Killed):
            train(config, run_dir=folder)
        monkeypatch.setattr(Path, "unlink", unlink)
        stop = None
        train(config, run_dir=folder, resume=True)
        for name in ("metrics.jsonl", "model/model.safetensors", "model/config.json", "config.toml", "schema.json"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (folder, name)
        assert not list(folder.rglob(".*"))


def test_curves_for_tensorboard(tmp_path: Path) -> None:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    config = small("train.epochs=3")
    train(config, run_dir=tmp_path / "run", tensorboard=True)
    curves = events.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    curves.Reload()
    assert set(curves.Tags()["scalars"]) == {"loss/train", "loss/valid", "accuracy/valid"}
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    points = curves.Scalars("accuracy/valid")
    assert [point.step for point in points] == [1, 2, 3]
    assert [point.value for point in points] == pytest.approx([row["valid"]["accuracy"] for row in rows])


def test_a_full_disk_under_tensorboard_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = pytest.importorskip("tensorboard.summary.writer.record_writer", reason="tensorboard is not installed")

    def full(self: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.RecordWriter, "write", full)
    config = small("train.epochs=200")
    with pytest.raises(OSError, match=r"tensorboard could not be written \(No space left on device\); .*resume=True"):
        train(config, run_dir=tmp_path / "run", tensorboard=True)


def test_without_tensorboard_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(ValueError, match=r"pip install \"magna.*\[tensorboard\]\""):
        train(small(), run_dir=tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_embeddings_past_the_encoder_have_a_rate_of_their_own(tmp_path: Path) -> None:
    config = Config.from_dict(LINKS)
    train(config, run_dir=tmp_path)
    task = make_task(config, None, torch.device("cpu"))
    torch.manual_seed(config.train.seed)
    start = task.make_model(config.model).state_dict()
    weights = load_file(tmp_path / "model" / "model.safetensors")
    moved = {name.startswith("shallow.") for name, value in weights.items() if not torch.equal(value, start[name])}
    assert moved == {True}
    bare = config.with_values(["train.lr=0.01", "train.skip_lr=none"])
    for each, rates in ((config, [0.0, 0.01]), (bare, [0.01, 0.01])):
        state = loop.Training(each, task, task.make_model(config.model))
        assert state.schedule.rates(0).tolist() == rates


def test_shallow_embeddings_are_clipped_alone() -> None:
    settings = ["model.skip_channels=8", "train.clip=1.0", "model.hidden_channels=8"]
    config = load_recipe("families").with_values([*settings, "model.entity_channels=8", "model.heads=2"])
    task = make_task(config, None, torch.device("cpu"))
    state = loop.Training(config, task, task.make_model(config.model))
    shallow = {id(parameter) for parameter in state.network.shallow.parameters()}  # type: ignore[union-attr]
    for parameter in state.network.parameters():
        parameter.grad = torch.full_like(parameter, 2**-10 if id(parameter) in shallow else 100.0)
    state._clip()
    norms = [nn.utils.get_total_norm([p.grad for p in group["params"]]) for group in state.adam.param_groups]
    assert float(norms[0]) == pytest.approx(1.0, rel=1e-3)
    assert float(norms[1]) < 1 and all(float(p.grad.max()) == 2**-10 for p in state.adam.param_groups[1]["params"])


def test_what_capturing_a_step_changes_is_put_back_batch_norms_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = list[torch.Tensor]()

    def captured(step: Any, example: Any, adam: Any, changed: Any, model: Any) -> Any:
        held.extend(changed)
        return step

    monkeypatch.setattr(loop, "captured", captured)
    settings = ["model.decoder=conve", "train.epochs=1", "model.hidden_channels=12", "model.heads=2"]
    config = load_recipe("families").with_values([*settings, "model.entity_channels=12"])
    train(config, run_dir=tmp_path / "run")
    saved = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert sorted(tensor.shape for tensor in held) == sorted(value.shape for value in saved.values())
    assert "deep.decoder.map_norm.running_var" in saved


THREE = {"train.epochs": 3}


class Mean(nn.Module):
    """A module that knows nothing of magna."""

    def __init__(self, out_channels: int = 10) -> None:
        super().__init__()
        self.linear = nn.Linear(64, out_channels)

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        out: Tensor = self.linear(torch.zeros_like(x).index_add(0, target, x[source]))
        return out


def test_a_pyg_data_trains_and_is_stored_beside_its_run(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    data = to_pyg(with_random_split(load_digits(), 0))
    run = magna.train(data, recipe="digits", settings=THREE, run_dir=tmp_path)["runs"][0]
    assert magna.evaluate(tmp_path)["metrics"] == pytest.approx(run["test"])
    assert len(magna.predict(tmp_path, [3, 5]).labels) == 2  # type: ignore[union-attr]
    assert (
        magna.train(data, recipe="digits", settings=THREE, run_dir=tmp_path, resume=True)["runs"][0]["test"]
        == run["test"]
    )
    data.x = data.x + 1
    with pytest.raises(DataError, match="holds a run already"):
        magna.train(data, recipe="digits", settings=THREE, run_dir=tmp_path)
    with pytest.raises(DataError, match="holds other data"):
        magna.train(data, recipe="digits", settings=THREE, run_dir=tmp_path, resume=True)


def test_a_module_trains_in_place_and_is_given_again_to_its_run(tmp_path: Path) -> None:
    module = Mean()
    start = module.linear.weight.detach().clone()
    run = magna.train("digits", model=module, settings=THREE, run_dir=tmp_path)["runs"][0]
    assert not torch.equal(start, module.linear.weight.cpu())
    assert magna.evaluate(tmp_path, model=Mean())["metrics"] == pytest.approx(run["test"])
    with pytest.raises(ArgumentError, match=r"model is '.*Mean'; allowed: the torch.nn.Module of the run"):
        magna.predict(tmp_path)


def test_several_seeds_start_a_module_anew(tmp_path: Path) -> None:
    module = Mean()
    start = module.linear.weight.detach().clone()
    runs = magna.train("digits", model=module, seeds=2, settings=THREE, run_dir=tmp_path / "two")["runs"]
    assert runs[0]["valid"] != runs[1]["valid"] and torch.equal(start, module.linear.weight)
    with pytest.raises(ArgumentError, match="seeds is 2; allowed: 1 for a module without reset_parameters"):
        magna.train("digits", model=nn.Sequential(), seeds=2, run_dir=tmp_path / "none")


def test_a_module_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"model is 'Mean'; allowed: a module whose output has shape \[1797, 10\]"):
        magna.train("digits", model=Mean(3), settings=THREE, run_dir=tmp_path)


def test_predict_answers_queries_of_links(tmp_path: Path) -> None:
    settings = {"train.epochs": 1, "model.hidden_channels": 16, "model.entity_channels": 16}
    magna.train("families", settings=settings, run_dir=tmp_path)
    answers = magna.predict(tmp_path, [("ivan-121", "brother_of", None)], top=3)
    assert len(answers.answers[0]) == 3  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="queries is None; allowed: one or more"):
        magna.predict(tmp_path)
