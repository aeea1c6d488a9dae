"""Chance as an argument: the same bits everywhere, and bits that look random from every side.

Tensors of rates are made once, and serve later calls only where these may use them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from magna.graph import Graph
from magna.ops import attention_diffusion, checks, dropout
from magna.ops.random import (
    DENSE_STREAM,
    EDGE_STREAM,
    attention_stream,
    bits,
    feature_stream,
    stays,
    thresholds,
)
from magna.typing import Backend
from tests.support.comparing import Results, same_bits
from tests.support.graphs import random_graph
from tests.support.measuring import Capturable
from tests.support.operators import Options, Problem, diffuse, output_of, softmax
from tests.support.running import device_of

COUNT = 1 << 18


def seed_of(value: int) -> Tensor:
    return torch.tensor([value])


def plain_bits(seed: int, stream: int, index: int) -> int:
    """`bits` once more, on Python's integers."""
    low = 0xFFFFFFFF

    def mix(h: int) -> int:
        h ^= h >> 16
        h = h * 0x7FEB352D & low
        h ^= h >> 15
        h = h * 0x846CA68B & low
        return h ^ h >> 16

    key0 = mix((seed & low) + 0x9E3779B9 * (stream + 1) & low)
    key1 = mix((seed >> 32 & low) + (key0 ^ 0x5BF03635) & low)
    return mix(mix(index & low ^ key0) ^ key1 ^ (index >> 32) * 0x85EBCA6B & low)


def chi_square(cells: Tensor, count: int) -> float:
    """Standard deviations between the cells and a uniform distribution."""
    actual = torch.bincount(cells, minlength=count).double()
    expected = cells.numel() / count
    statistic: float = ((actual - expected) ** 2 / expected).sum().item()
    return (statistic - (count - 1)) / math.sqrt(2 * (count - 1))


def together(a: Tensor, b: Tensor) -> float:
    """Uniformity of the pairs (a, b), by their four highest bits and by their four lowest."""
    high = chi_square((a >> 28) * 16 + (b >> 28), 256)
    low = chi_square((a & 15) * 16 + (b & 15), 256)
    return max(abs(high), abs(low))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**32, 2**63 - 1, -(2**63)])
def test_bits_are_the_written_arithmetic(seed: int) -> None:
    index = torch.tensor([0, 1, 2, 12345, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 3, 2**62])
    for stream in (0, 1, 2, 63, EDGE_STREAM, DENSE_STREAM):
        expected = [plain_bits(seed, stream, i) for i in index.tolist()]
        assert bits(seed_of(seed), stream, index).tolist() == expected


def test_streams_are_distinct() -> None:
    streams = [attention_stream(k) for k in range(1000)] + [feature_stream(k) for k in range(1000)]
    assert len({*streams, EDGE_STREAM, DENSE_STREAM}) == 2002


@pytest.mark.parametrize("stream", [0, 1, EDGE_STREAM, DENSE_STREAM])
def test_bits_are_uniform(stream: int) -> None:
    for seed in (0, 1, 123456789):
        drawn = bits(seed_of(seed), stream, torch.arange(COUNT))
        for shift in (0, 8, 16, 24):
            assert abs(chi_square(drawn >> shift & 255, 256)) < 5


def test_bits_beyond_32_bit_indices_are_uniform() -> None:
    drawn = bits(seed_of(3), 0, torch.arange(COUNT) * 2**32)
    assert abs(chi_square(drawn >> 24, 256)) < 5 and abs(chi_square(drawn & 255, 256)) < 5


def test_neighbours_are_independent() -> None:
    index = torch.arange(COUNT)
    others = [(5, 4, place) for place in (index + 1, index + 64, index + 2**32, index ^ 1)]
    others += [(5, stream, index) for stream in (attention_stream(3), feature_stream(2), EDGE_STREAM)]
    others += [(seed, 4, index) for seed in (6, 5 + 2**32, -5)]
    for seed, stream, places in others:
        assert together(bits(seed_of(5), 4, index), bits(seed_of(seed), stream, places)) < 5


def test_many_seeds_at_one_place_are_uniform() -> None:
    drawn = torch.tensor([plain_bits(seed, 1, 17) for seed in range(1 << 14)])
    assert abs(chi_square(drawn >> 24, 256)) < 5
    assert together(drawn[:-1], drawn[1:]) < 5


def test_thresholds() -> None:
    rates = torch.tensor([0.0, 2.0**-32, 0.25, 0.5, 1 - 2.0**-24])
    assert thresholds(rates).tolist() == [0, 1, 2**30, 2**31, 2**32 - 2**8]


def test_share_that_is_kept() -> None:
    index = torch.arange(COUNT)
    remaining = {rate: stays(seed_of(1), 2, index, torch.tensor(rate)) for rate in (0.0, 0.1, 0.5, 0.9)}
    assert remaining[0.0].all()
    for rate, mask in remaining.items():
        assert mask.double().mean().item() == pytest.approx(1 - rate, abs=5 * (rate * (1 - rate) / COUNT) ** 0.5 + 1e-9)
    assert (remaining[0.9] <= remaining[0.5]).all() and (remaining[0.5] <= remaining[0.1]).all()


def test_dropout_has_the_reference_bits(backend: Backend) -> None:
    x = torch.linspace(-1, 1, 3000, device=device_of(backend)).view(30, 100)
    for rate in (0.1, 0.5, 0.97):
        actual, expected = dropout(x, rate, 11, backend=backend), dropout(x, rate, 11, backend="reference")
        assert torch.equal(actual == 0, expected == 0)
        torch.testing.assert_close(actual, expected)
        assert (actual == 0).double().mean().item() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 3000) ** 0.5)
    assert dropout(x, 0.0, 11, backend=backend) is x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dropout_gradient_has_the_same_mask(backend: Backend, dtype: torch.dtype) -> None:
    x = torch.ones(7, 9, device=device_of(backend), dtype=dtype, requires_grad=True)
    out = dropout(x.t(), 0.5, 3, backend=backend)  # not contiguous
    out.sum().backward()
    assert x.grad is not None and out.dtype == dtype
    assert torch.equal(x.grad.t(), out.detach())


DROPS: Options = {"dropout": 0.4, "feature_dropout": 0.3}


@pytest.mark.parametrize(("run", "drops"), [(diffuse, DROPS), (softmax, {"edge_dropout": 0.5})])
def test_same_seed_same_bits(backend: Backend, run: Callable[..., Results], drops: Options) -> None:
    problem = Problem.of(random_graph(5, 20), heads=2, width=5, K=2, dtype=torch.float32, device=device_of(backend))
    first = run(problem, backend, seed=5, **drops)
    same_bits(run(problem, backend, seed=5, **drops), first)
    same_bits(run(problem, backend, seed=torch.tensor([5], device=problem.x.device), **drops), first)
    for other in (6, 5 + 2**32, -5):
        assert not torch.equal(run(problem, backend, seed=other, **drops)["out"], first["out"])


@pytest.mark.parametrize("name", ["dropout", "feature_dropout"])
def test_dropout_keeps_the_expectation(name: str) -> None:
    # Each head draws its own masks, so many heads with the same input are many samples.
    samples, alpha, K = 4000, 0.2, 3
    graph = random_graph(6, 14, fed=True)
    problem = Problem.of(graph, heads=1, width=1)
    x, attention = (t.expand(t.size(0), samples, *t.shape[2:]) for t in (problem.x, problem.attention))
    expected = output_of(problem, "reference", K=K, alpha=alpha).flatten()
    rates: list[Options] = [{name: 0.3}, {name: torch.full((samples,), 0.5)}]
    for drops in rates:
        drawn = attention_diffusion(x, attention, graph, K, alpha, seed=2, backend="reference", **drops)[..., 0]
        error = drawn.std(1) / samples**0.5
        assert error.min() > 0
        assert ((drawn.mean(1) - expected).abs() < 5 * error).all()


def test_dropout_is_redrawn_each_hop_from_untouched_attention(backend: Backend) -> None:
    # One node that sees only itself: K hops multiply K factors. Masks drawn once would keep half of the heads;
    # masks on top of the last hop's masks would give 2 · 4 · 8.
    device, heads = device_of(backend), 1024
    loop = Graph.from_edge_index(torch.zeros(2, 1, dtype=torch.int64), 1).to(device)
    x, attention = torch.ones(1, heads, 1, device=device), torch.ones(1, heads, device=device)
    for name in DROPS:
        drops: Options = {name: 0.5}
        out = attention_diffusion(x, attention, loop, K=3, alpha=0.0, seed=4, backend=backend, **drops)
        assert out.unique().tolist() == [0, 8]
        assert (out > 0).double().mean().item() == pytest.approx(1 / 8, abs=5 * (7 / 64 / heads) ** 0.5)


def test_one_rate_per_head(backend: Backend) -> None:
    problem = Problem.of(random_graph(30, 90), heads=3, width=40, device=device_of(backend))
    rates = torch.tensor([0.0, 0.5, 0.9], device=problem.x.device)
    out = output_of(problem, backend, K=1, alpha=0.5, feature_dropout=rates, seed=1)
    shares = (out == 0).double().mean((0, 2)).tolist()
    assert shares == pytest.approx(rates.tolist(), abs=5 * (0.25 / 1200) ** 0.5)


WATCHED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference mode": torch.inference_mode,
    "fake tensors": FakeTensorMode,
    "a dispatch mode": Capturable,
}


@pytest.fixture(autouse=True)
def no_fixed_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_FIXED_RATES", {})


def fixed(rate: float = 0.3, heads: int = 2) -> Tensor:
    return checks.rates(rate, heads, torch.device("cpu"))


def test_a_number_becomes_one_tensor() -> None:
    assert torch.equal(fixed(), torch.tensor([0.3, 0.3])) and fixed() is fixed()
    assert fixed() is not fixed(heads=3) and fixed() is not fixed(0.4)


@pytest.mark.parametrize("mode", WATCHED)
def test_what_is_made_while_somebody_looks_on_is_not_kept(mode: str) -> None:
    with WATCHED[mode]():
        fresh = fixed()
        assert fixed() is not fresh and not checks._FIXED_RATES
    remaining = fixed()
    assert remaining is not fresh and not remaining.is_inference() and type(remaining) is Tensor
    with WATCHED[mode]():
        assert fixed() is not remaining


def test_nor_under_transforms_and_compilers() -> None:
    def dropped(x: Tensor) -> Tensor:
        return dropout(x, 0.3, seed=1, validate=False).sum()

    torch.func.grad(dropped)(torch.ones(4))
    torch.vmap(dropped, randomness="different")(torch.ones(2, 4))
    torch.compile(dropped, fullgraph=True, backend="eager")(torch.ones(4))
    assert not checks._FIXED_RATES
    dropped(torch.ones(4))
    assert len(checks._FIXED_RATES) == 1


def test_a_capture_uses_what_is_kept_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    remaining = fixed()
    monkeypatch.setattr(checks, "values_readable", lambda tensor: False)
    assert fixed() is remaining
    assert fixed(0.4) is not fixed(0.4)


def test_no_more_are_kept_than_so_many_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_MOST_RATES", 2)
    first, second = fixed(), fixed(0.4)
    assert fixed(0.5) is not fixed(0.5)
    assert fixed() is first and fixed(0.4) is second
