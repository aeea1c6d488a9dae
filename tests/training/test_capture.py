"""A captured step on a GPU: it leaves no trace of having been captured, and memory that is short is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from magna.config.registry import model_settings
from magna.ops import dropout
from magna.training import capture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: there are no CUDA graphs elsewhere")

DEVICE = torch.device("cuda")
Trained = tuple[Tensor, torch.optim.Adam]


@pytest.fixture
def trained() -> Iterator[Trained]:
    """A weight and its optimiser, on a stream that can be captured."""
    with capture.own_stream(DEVICE):
        weight = torch.ones(8, device=DEVICE, requires_grad=True)
        yield weight, torch.optim.Adam([weight], torch.tensor(0.1, device=DEVICE), capturable=True, fused=True)


def _step(loss: Tensor, adam: torch.optim.Adam) -> Tensor:
    adam.zero_grad()
    loss.backward()
    adam.step()
    return loss.detach()


def test_capturing_leaves_weights_moments_and_chance_as_they_were(trained: Trained) -> None:
    weight, adam = trained

    def step(x: Tensor) -> Tensor:
        seed = torch.randint(2**62, (1,), device=DEVICE)
        return _step((dropout(x, 0.5, seed) * weight).sum(), adam)

    torch.manual_seed(3)
    x = torch.arange(8.0, device=DEVICE)
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


def test_memory_that_is_short_while_capturing_is_said_and_given_back(trained: Trained) -> None:
    weight, adam = trained
    free = torch.cuda.mem_get_info(DEVICE)[0]

    def step(x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(2 * free, dtype=torch.uint8, device=DEVICE)
        return _step((x * weight).sum(), adam)

    with pytest.raises(torch.OutOfMemoryError):
        capture.captured(step, [weight.detach()], adam, [weight], model_settings())
    # The device is as fit as before.
    doubled = capture.captured(lambda x: 2 * x, [torch.ones(8, device=DEVICE)], adam, [weight], model_settings())
    assert doubled(torch.arange(8.0, device=DEVICE)).tolist() == list(range(0, 16, 2))
