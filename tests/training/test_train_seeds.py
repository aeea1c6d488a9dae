"""Several seeds: in one batch or in turn, each in its own folder."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.running import small

from magna.config.schema import Config, load_recipe
from magna.errors import Diverged
from magna.training import loop, session
from magna.training import train as training
from magna.training.loop import Epoch, TrialResult
from magna.training.run_folder import RunFolder
from magna.training.trials import train_trials
from magna.use.predict import evaluate

pytestmark = pytest.mark.slow


train = partial(training.train, device="cpu")


def test_seeds_that_train_together_leave_the_same_files(tmp_path: Path) -> None:
    config = small("train.epochs=20")
    seen: list[Epoch] = []
    result = train(config, run_dir=tmp_path, seeds=3, together=True, on_epoch=seen.append)
    assert [epoch.number for epoch in seen] == [10, 20] and seen[0].label == "3 seeds together"
    assert [run["seed"] for run in result["runs"]] == [0, 1, 2]
    assert result["mean"]["test"]["accuracy"] > 0.6
    for run in result["runs"]:
        folder = Path(run["run_dir"])
        for name in ("config.toml", "environment.json", "schema.json", "metrics.jsonl", "summary.json", "model"):
            assert (folder / name).exists()
        for split in ("valid", "test"):
            assert evaluate(folder, split, device="cpu")["metrics"] == run[split]
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["epoch"] for row in rows] == list(range(20))
        assert list(rows[0]) == ["epoch", "loss", "valid"] and list(rows[0]["valid"]) == ["accuracy", "loss"]
        best = json.loads((folder / "summary.json").read_text())["best_epoch"]
        assert rows[best]["valid"]["accuracy"] == pytest.approx(run["valid"]["accuracy"])

    # One is missing and one has not ended: they alone are trained again.
    shutil.rmtree(tmp_path / "seed-1")
    (tmp_path / "seed-2" / "summary.json").unlink()
    again = train(config, run_dir=tmp_path, seeds=3, together=True, resume=True)
    assert again["runs"][0] == result["runs"][0]
    assert json.loads((tmp_path / "seed-2" / "summary.json").read_text())["together"] == 2
    assert len((tmp_path / "seed-2" / "metrics.jsonl").read_text().splitlines()) == 20
    finished = train(config, run_dir=tmp_path, seeds=3, together=True, resume=True)
    assert finished == again
    with pytest.raises(ValueError, match="holds a run already"):
        train(config, run_dir=tmp_path, seeds=3, together=True)


def test_seeds_together_train_alone_in_their_folders(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folders = [RunFolder(tmp_path / f"seed-{seed}") for seed in (0, 1)]
    busy = []

    def another(_: Epoch) -> None:
        for folder in folders:
            with pytest.raises(ValueError, match="is being trained by another process"), folder.alone():
                pass
        busy.append(True)

    train(small("train.epochs=20"), run_dir=tmp_path, seeds=2, together=True, on_epoch=another)
    assert busy == [True, True]
    for folder in folders:  # free again
        with folder.alone():
            pass


@pytest.mark.parametrize("together", [True, False])
def test_a_seed_that_diverges_leaves_the_others_their_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    config = small("train.epochs=4")
    trials, fit = train_trials, loop.fit

    def trials_but_one(configs: list[Config], *arguments: Any, **options: Any) -> list[TrialResult]:
        first, second, *others = trials(configs, *arguments, **options)
        history = [*second.history[:2], second.history[2] | {"valid_loss": math.nan}, *second.history[3:]]
        return [first, replace(second, history=history), *others]

    def fit_but_one(config: Config, *arguments: Any) -> loop.Progress:
        if config.train.seed == 1:
            raise Diverged("the loss is nan after epoch 2; try a smaller train.lr")
        return fit(config, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(session, "train_trials", trials_but_one)
        patch.setattr(session, "fit", fit_but_one)
        with pytest.raises(Diverged) as end:
            train(config, run_dir=tmp_path, seeds=3, together=together)
    assert str(end.value) == (
        "seed 1: the loss is nan after epoch 2; try a smaller train.lr; the other seeds have left their results"
    )
    ended = [(tmp_path / f"seed-{seed}" / "summary.json").is_file() for seed in range(3)]
    assert ended == [True, False, True]
    if together:  # as a run of its own, it has logged the epochs before
        assert len((tmp_path / "seed-1" / "metrics.jsonl").read_text().splitlines()) == 2
    again = train(config, run_dir=tmp_path, seeds=3, together=together, resume=True)
    assert [run["epochs"] for run in again["runs"]] == [4, 4, 4]


def test_seeds_of_link_prediction_do_not_train_together(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="together is True; allowed: False for link prediction, whose seeds train in turn"
    ):
        train(load_recipe("families"), run_dir=tmp_path / "run", seeds=2, together=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resume", [True, False])
def test_one_run_and_several_seeds_do_not_share_a_folder(tmp_path: Path, resume: bool) -> None:
    config = small("train.epochs=1")
    train(config, run_dir=tmp_path / "one")
    train(config, run_dir=tmp_path / "several", seeds=2)
    before = sorted(tmp_path.rglob("*"))
    for name, seeds, words in (("one", 3, "holds one run, not several"), ("several", 1, "holds runs of several seeds")):
        with pytest.raises(ValueError, match=words):
            train(config, run_dir=tmp_path / name, seeds=seeds, resume=resume)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_seed_with_a_checkpoint_goes_on_by_itself(tmp_path: Path) -> None:
    config = small("train.epochs=4")
    train(config, run_dir=tmp_path, seeds=2)
    expected = (tmp_path / "seed-0" / "model" / "model.safetensors").read_bytes()
    for name in ("seed-0/summary.json", "seed-1/summary.json", "seed-1/checkpoint/state.safetensors"):
        (tmp_path / name).unlink()
    train(config, run_dir=tmp_path, seeds=2, together=True, resume=True)
    assert (tmp_path / "seed-0" / "model" / "model.safetensors").read_bytes() == expected
    summaries = [json.loads((tmp_path / f"seed-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert [summary["together"] for summary in summaries] == [1, 1]
