"""Dropout: mean, seeds, gradient, and nothing in evaluation."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

from magna.nn import Dropout
from magna.nn.dropout import draw_seed, seeds_at_once

CPU = torch.device("cpu")


def test_the_mean_stays_and_the_rate_is_met() -> None:
    dropped = Dropout(0.3)(torch.ones(200, 200))
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_bad_rate(rate: float) -> None:
    with pytest.raises(ValueError, match=f"input_dropout is {rate}; allowed: 0 up to"):
        Dropout(rate, name="input_dropout")


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magna.nn.dropout._AT_ONCE", ("cpu",))


def drawn_by(draws: int) -> tuple[list[Tensor], Tensor]:
    """Seeds that are drawn at once, and the state of torch's generator after them."""
    torch.manual_seed(3)
    with seeds_at_once():
        seeds = [draw_seed(CPU) for _ in range(draws)]
    return seeds, torch.get_rng_state()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_seeds_at_once_differ_and_lie_where_kernels_want_them() -> None:
    seeds, _ = drawn_by(40)
    assert len({int(seed) for seed in seeds}) == 40
    assert all(seed.shape == (1,) and seed.is_contiguous() and seed.data_ptr() % 16 == 0 for seed in seeds)
    assert torch.equal(torch.cat(drawn_by(40)[0]), torch.cat(seeds))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_draws_after_a_block_of_seeds_do_not_depend_on_how_many_were_used() -> None:
    one, most, full, next_block = (drawn_by(draws)[1] for draws in (1, 31, 32, 33))
    assert torch.equal(one, most) and torch.equal(most, full) and not torch.equal(full, next_block)
    assert torch.equal(drawn_by(0)[1], torch.manual_seed(3).get_state())


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("fails", [False, True])
def test_no_seed_is_left_for_later(fails: bool) -> None:
    with contextlib.suppress(InterruptedError), seeds_at_once():
        draw_seed(CPU)
        if fails:
            raise InterruptedError
    state, seed = torch.get_rng_state(), draw_seed(CPU)
    with seeds_at_once():
        later = draw_seed(CPU)
    torch.set_rng_state(state)
    assert torch.equal(seed, torch.randint(2**63 - 1, (1,)))
    with seeds_at_once():
        assert torch.equal(later, draw_seed(CPU))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_seeds_are_drawn_one_by_one_under_transforms() -> None:
    seed = draw_seed(CPU)
    torch.manual_seed(0)
    with seeds_at_once():
        with torch.inference_mode():
            assert torch.equal(draw_seed(CPU), seed)
        seeds = torch.vmap(lambda x: x * draw_seed(CPU), randomness="different")(torch.ones(3, dtype=torch.int64))
        assert len(seeds.unique()) == 3
        torch.compile(draw_seed, fullgraph=True, backend="eager")(CPU)
        state = torch.get_rng_state()
        x = torch.ones(8, requires_grad=True)
        Dropout(0.5)(x).sum().backward()  # with a seed that can be saved
        assert not torch.equal(torch.get_rng_state(), state)  # the first seed of a block


def test_the_cpu_draws_one_by_one() -> None:
    torch.manual_seed(3)
    assert torch.equal(torch.cat([draw_seed(CPU) for _ in range(3)]), torch.cat(drawn_by(3)[0]))
