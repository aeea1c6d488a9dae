"""A captured step on a GPU: it leaves no trace of having been captured, and memory that is short is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from magna.config.registry import model_settings
from magna.config.schema import Config
from magna.ops import dropout
from magna.training import capture, loop
from magna.training import train as training
from magna.training.loop import Epoch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: there are no CUDA graphs elsewhere")

RECIPES: dict[str, dict[str, Any]] = {
    "node_classification": {"model": {"hidden_channels": 16, "num_layers": 1, "heads": 4, "input_dropout": 0.2}},
    "link_prediction": {
        "data": {"name": "families"},
        "task": {"name": "link_prediction", "batch_size": 512},
        "model": {"hidden_channels": 16, "num_layers": 1, "heads": 4, "edge_dropout": 0.1, "decoder_dropout": 0.1},
    },
}


def test_capturing_leaves_weights_moments_and_chance_as_they_were() -> None:
    device = torch.device("cuda")
    with capture.own_stream(device):
        weight = torch.ones(8, device=device, requires_grad=True)
        adam = torch.optim.Adam([weight], torch.tensor(0.1, device=device), capturable=True, fused=True)

        def step(x: Tensor) -> Tensor:
            seed = torch.randint(2**62, (1,), device=device)
            loss = (dropout(x, 0.5, seed) * weight).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
            return loss.detach()

        torch.manual_seed(3)
        x = torch.arange(8.0, device=device)
        before = torch.cuda.get_rng_state()
        replayed = capture.captured(step, [x], adam, [weight], model_settings())
        assert torch.equal(torch.cuda.get_rng_state(), before)
        assert torch.equal(weight, torch.ones_like(weight))
        assert all(not value.any() for state in adam.state.values() for value in state.values())
        losses = [float(replayed(x)) for _ in range(3)]
        torch.cuda.set_rng_state(before)
        weight.data.fill_(1.0)
        adam.state.clear()
        assert losses == [float(step(x)) for _ in range(3)]


@pytest.mark.parametrize("task", RECIPES)
def test_a_stopped_run_goes_on_as_if_it_had_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    config = Config.from_dict(RECIPES[task] | {"train": {"epochs": 8, "lr": 0.01}})
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)

    def stop(epoch: Epoch) -> None:
        if epoch.number == 4:
            raise InterruptedError

    training.train(config, run_dir=tmp_path / "whole", device="cuda")
    with pytest.raises(InterruptedError):
        training.train(config, run_dir=tmp_path / "stopped", device="cuda", on_epoch=stop)
    torch.manual_seed(123)
    training.train(config, run_dir=tmp_path / "stopped", device="cuda", resume=True)
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()


def test_memory_that_is_short_while_capturing_is_said_and_given_back() -> None:
    device = torch.device("cuda")
    free = torch.cuda.mem_get_info(device)[0]
    with capture.own_stream(device):
        weight = torch.ones(8, device=device, requires_grad=True)
        adam = torch.optim.Adam([weight], torch.tensor(0.1, device=device), capturable=True, fused=True)

        def step(x: Tensor) -> Tensor:
            if torch.cuda.is_current_stream_capturing():
                torch.empty(2 * free, dtype=torch.uint8, device=device)
            loss = (x * weight).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
            return loss.detach()

        with pytest.raises(torch.OutOfMemoryError):
            capture.captured(step, [weight.detach()], adam, [weight], model_settings())
        # The device is as fit as before.
        doubled = capture.captured(lambda x: 2 * x, [torch.ones(8, device=device)], adam, [weight], model_settings())
        assert doubled(torch.arange(8.0, device=device)).tolist() == list(range(0, 16, 2))
