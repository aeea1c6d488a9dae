"""Training of data and modules that a Python program hands over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import magna
from magna.data import load_digits
from magna.data.pyg import to_pyg
from magna.data.splits import with_random_split
from magna.errors import ArgumentError, DataError

SETTINGS = {"train.epochs": 3}


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
    run = magna.train(data, settings=SETTINGS, run_dir=tmp_path)["runs"][0]
    assert magna.evaluate(tmp_path)["metrics"] == pytest.approx(run["test"])
    assert len(magna.predict(tmp_path, [3, 5]).labels) == 2  # type: ignore[union-attr]
    assert magna.train(data, settings=SETTINGS, run_dir=tmp_path, resume=True)["runs"][0]["test"] == run["test"]
    data.x = data.x + 1
    with pytest.raises(DataError, match="holds a run already"):
        magna.train(data, settings=SETTINGS, run_dir=tmp_path)
    with pytest.raises(DataError, match="holds other data"):
        magna.train(data, settings=SETTINGS, run_dir=tmp_path, resume=True)


def test_a_module_trains_in_place_and_is_given_again_to_its_run(tmp_path: Path) -> None:
    module = Mean()
    start = module.linear.weight.detach().clone()
    run = magna.train("digits", model=module, settings=SETTINGS, run_dir=tmp_path)["runs"][0]
    assert not torch.equal(start, module.linear.weight)
    assert magna.evaluate(tmp_path, model=Mean())["metrics"] == pytest.approx(run["test"])
    with pytest.raises(ArgumentError, match=r"model is '.*Mean'; allowed: the torch.nn.Module of the run"):
        magna.predict(tmp_path)


def test_several_seeds_start_a_module_anew(tmp_path: Path) -> None:
    module = Mean()
    start = module.linear.weight.detach().clone()
    runs = magna.train("digits", model=module, seeds=2, settings=SETTINGS, run_dir=tmp_path / "two")["runs"]
    assert runs[0]["valid"] != runs[1]["valid"] and torch.equal(start, module.linear.weight)
    with pytest.raises(ArgumentError, match="seeds is 2; allowed: 1 for a module without reset_parameters"):
        magna.train("digits", model=nn.Sequential(), seeds=2, run_dir=tmp_path / "none")


def test_a_module_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"model is 'Mean'; allowed: a module whose output has shape \[1797, 10\]"):
        magna.train("digits", model=Mean(3), settings=SETTINGS, run_dir=tmp_path)


def test_predict_answers_queries_of_links(tmp_path: Path) -> None:
    settings = {"train.epochs": 1, "model.hidden_channels": 16, "model.entity_channels": 16}
    magna.train("families", settings=settings, run_dir=tmp_path)
    answers = magna.predict(tmp_path, [("ivan-121", "brother_of", None)], top=3)
    assert len(answers.answers[0]) == 3  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="queries is None; allowed: one or more"):
        magna.predict(tmp_path)
