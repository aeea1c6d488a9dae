"""Layer norm, linear layers and lookups: the Triton ops against torch's own, their gradients, trials, autocast."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.support.comparing import Results, same, same_bits, within_budget
from tests.support.graphs import uniform
from tests.support.operators import gradient
from tests.support.running import device_of, interpreted
from torch import Tensor

from magna.ops import add_norm, dropout, feed_forward, linear, linears, lookup, lookups, reference, rounded_at_once
from magna.ops.backend.registry import choose, why_not
from magna.ops.checks import Rate
from magna.ops.gpu.linear import linear_op
from magna.ops.gpu.norm import layer_norm_op
from magna.ops.gpu.table import _TableAndRows, lookup_backward_op, lookup_op
from magna.typing import Backend

DEVICE = device_of("triton")
REASON = why_not("triton", DEVICE)
pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.slow,  # the interpreter of Triton
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]
BACKENDS: tuple[Backend, ...] = ("triton", "reference")
table_and_rows: Callable[..., tuple[Tensor, Tensor]] = _TableAndRows.apply
SHAPES = [(0, 3), (1, 1), (1, 5), (7, 8), (3, 513), (37, 130), (1031, 2)]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [uniform(*shape, seed=i, low=-2, high=3).to(DEVICE, dtype) for i, shape in enumerate(shapes)]


def with_grads(
    function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor, autocast: bool = False
) -> Results:
    """The outputs, and the gradient of each input."""
    leaves = [factors.detach().clone().requires_grad_() for factors in inputs]
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
        actual = function(*leaves)
    outs = actual if isinstance(actual, tuple) else (actual,)
    grads = [uniform(*out.shape, seed=9 + i).to(out) for i, out in enumerate(outs)]
    torch.autograd.backward(outs, grads)
    results = {f"out {i}": out.detach() for i, out in enumerate(outs)}
    return results | {f"gradient {i}": gradient(leaf) for i, leaf in enumerate(leaves)}


def both(
    function_of: Callable[..., Callable[..., Any]], *inputs: Tensor, autocast: bool = False, **options: Any
) -> list[Results]:
    """The results of each backend."""
    return [with_grads(function_of(backend, **options), *inputs, autocast=autocast) for backend in BACKENDS]


def of_trials(axes: tuple[int | None, ...], *shapes: tuple[int, ...]) -> list[Tensor]:
    """Tensors of three trials along an axis, or shared by all."""
    factors = zip(tensors(*shapes), axes, strict=True)
    return [t if axis is None else torch.stack([t, t + 1, t.flip(0)], axis) for t, axis in factors]


def norm_of(
    backend: Backend, *, adds: bool, p: float | Tensor = 0.0, unbiased: bool = False
) -> Callable[..., tuple[Tensor, ...]]:
    def function(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        *added, weight, bias = rest
        factors = x, added[0] if adds else None, weight, bias, 1e-3
        return add_norm(*factors, unbiased=unbiased, p=p, seed=7, backend=backend)

    return function


@pytest.mark.parametrize("adds", [True, False], ids=["added", "alone"])
@pytest.mark.parametrize("shape", SHAPES)
def test_norm_of_odd_sizes(shape: tuple[int, int], adds: bool) -> None:
    factors = tensors(shape, *([shape] if adds else []), shape[1:], shape[1:])
    for unbiased in (False, True) if shape[1] != 1 else (False,):  # of one number there is no unbiased deviation
        same(*both(norm_of, *factors, adds=adds, unbiased=unbiased))


def test_the_unbiased_norm_of_rows_that_hardly_vary() -> None:
    x, weight, bias = tensors((9, 6), (6,), (6,))
    for size in (0.0, 1e-12, 1e-9, 1e-6, 1e-3):  # beside an eps of 1e-3
        results = both(norm_of, 0.1 + size * x, weight, bias, adds=False, unbiased=True)
        same(*results, rtol=1e-5, atol=1e-5 / 1e-3)


@pytest.mark.parametrize("adds", [True, False], ids=["added", "alone"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 5), (37, 130), (2, 3, 4)])
def test_norm_under_dropout(shape: tuple[int, ...], adds: bool) -> None:
    factors = tensors(shape, *([shape] if adds else []), shape[-1:], shape[-1:])
    ours, theirs = both(norm_of, *factors, adds=adds, p=0.3)
    same(ours, theirs)
    # The entries that dropout by itself sets to zero.
    remaining = dropout(torch.ones_like(factors[0]), 0.3, 7, backend="triton")
    assert torch.equal(ours["out 1"] == 0, remaining == 0)
    same({"norm": ours["out 1"]}, {"norm": remaining * with_grads(norm_of("triton", adds=adds), *factors)["out 1"]})


def alike(actual: Results, expected: Results) -> None:
    """Compare bits, but not on a GPU, which adds the product with dropout's factor without rounding it first."""
    (same_bits if interpreted("triton") else same)(actual, expected)


def norm_of_dropped(backend: Backend, together: bool, p: Rate = 0.0, unbiased: bool = False) -> Callable[..., Any]:
    """The norm of dropout(x), or of its sum with another input, as one call or as two."""

    def function(x: Tensor, *rest: Tensor, x_p: Rate = 0.4) -> tuple[Tensor, ...]:
        *added, weight, bias = rest
        if not together:
            x, x_p = dropout(x, x_p, 5, backend=backend, validate=False), 0.0
        factors = x, added[0] if added else None, weight, bias, 1e-3
        drawn: dict[str, Any] = {"x_p": x_p, "x_seed": 5, "p": p, "seed": 7}
        both = add_norm(*factors, unbiased=unbiased, backend=backend, validate=False, **drawn)
        # Of x alone the sum is x: in two calls, its gradients meet outside, with one more rounding.
        return both if added else both[1:]

    return function


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adds", [True, False], ids=["added", "alone"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 5), (9, 130), (2, 3, 4)])
def test_norm_of_dropped_features(shape: tuple[int, ...], adds: bool, dtype: torch.dtype) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    factors = *tensors(*([shape] * (1 + adds)), dtype=dtype), *tensors(shape[-1:], shape[-1:], dtype=wide)
    for backend in BACKENDS:
        for p, unbiased in ((0.0, False), (0.3, True)):
            apart, together = (norm_of_dropped(backend, t, p, unbiased) for t in (False, True))
            alike(with_grads(together, *factors), with_grads(apart, *factors))


def test_norm_of_dropped_features_in_mixed_types() -> None:
    x, added, weight, bias = tensors((9, 6), (9, 6), (6,), (6,), dtype=torch.float32)
    factors = x.bfloat16(), added, weight, bias
    same_bits(*(with_grads(norm_of_dropped("triton", together), *factors) for together in (True, False)))


def test_draws_of_more_entries_than_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.language as tl

    from magna.ops.triton import dense as triton_dense
    from magna.ops.triton import draw as triton_draw

    factors = tensors((9, 130), (9, 130), (130,), (130,), dtype=torch.float32)
    expected = [with_grads(norm_of_dropped("triton", together, p=0.3), *factors) for together in (True, False)]
    for module in (triton_dense, triton_draw):
        monkeypatch.setattr(module, "index_type", lambda size: tl.int64)
    for together, same_as in zip((True, False), expected, strict=True):
        same_bits(with_grads(norm_of_dropped("triton", together, p=0.3), *factors), same_as)


def test_a_norm_under_dropout_needs_a_seed() -> None:
    x, weight, bias = tensors((2, 3), (3,), (3,))
    with pytest.raises(ValueError, match=r"seed is None; allowed: .*, as x_p is above 0"):
        add_norm(x, None, weight, bias, x_p=0.5, backend="triton")
    with pytest.raises(ValueError, match=r"seed is None; allowed: .*, as p is above 0"):
        add_norm(x, None, weight, bias, p=0.5, backend="triton")
    with pytest.raises(ValueError, match="allowed: 0 up to, but not including, 1"):
        add_norm(x, None, weight, bias, p=1.0, seed=1, backend="triton")


@pytest.mark.parametrize("shape", [(1, 0, 3), (1, 1, 1), (2, 513, 17), (3, 1100, 2), (1, 5, 0)])
def test_sums_over_rows(shape: tuple[int, int, int]) -> None:
    from magna.ops.triton.dense import sum_rows

    (x,) = tensors(shape)
    torch.testing.assert_close(sum_rows(x), x.sum(1))


def test_norm_of_more_rows_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    from magna.ops.triton import dense as triton_dense

    monkeypatch.setattr(triton_dense, "_CHUNKS", 3)
    monkeypatch.setattr(triton_dense, "_TILE", 8)
    monkeypatch.setattr(triton_dense, "_NORM_BACK", (8, 3))
    factors = tensors((29, 3), (29, 3), (3,), (3,))
    same(*both(norm_of, *factors, adds=True))
    same(*both(linear_of, *tensors((29, 3), (20, 3), (20,)), relu=True))


@pytest.mark.parametrize("drops", [True, False], ids=["dropout", "plain"])
@pytest.mark.parametrize("used", [0, 1], ids=["the sum", "the norm"])
def test_norm_of_which_one_result_is_used(used: int, drops: bool) -> None:
    factors = tensors((5, 6), (5, 6), (6,), (6,))
    actual, expected = ([leaf.clone().requires_grad_() for leaf in factors] for _ in range(2))
    for backend, leaves in zip(BACKENDS, (actual, expected), strict=True):
        function = norm_of_dropped(backend, True) if drops else norm_of(backend, adds=True)
        function(*leaves)[used].square().sum().backward()
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_gradients_of_a_norm_and_of_its_input_meet_in_one_pass() -> None:
    x, weight, bias = (t.requires_grad_() for t in tensors((7, 5), (5,), (5,)))
    total, normed = add_norm(x * 1, None, weight, bias, backend="triton")
    passes = [part.grad_fn.next_functions[0][0] for part in (total, normed) if part.grad_fn is not None]
    assert len(passes) == 2 and passes[0] is passes[1]


def test_norm_takes_any_number_of_axes_and_mixed_types() -> None:
    x, added, weight, bias = tensors((2, 3, 4), (2, 3, 4), (4,), (4,), dtype=torch.float32)
    actual, expected = both(norm_of, x.bfloat16(), added, weight, bias, adds=True)
    assert actual["out 1"].shape == (2, 3, 4) and actual["out 1"].dtype == torch.float32
    assert actual["gradient 0"].dtype == torch.bfloat16 and actual["gradient 1"].dtype == torch.float32
    same(actual, expected)


def linear_of(backend: Backend, *, relu: bool) -> Callable[..., Tensor]:
    return lambda x, weight, bias=None: linear(x, weight, bias, relu=relu, backend=backend)


@pytest.mark.parametrize("relu", [True, False], ids=["relu", "plain"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(0, 3, 2), (1, 1, 1), (7, 5, 9), (33, 4, 130), (6, 2, 513), (700, 3, 2)])
def test_linear_of_odd_sizes(shape: tuple[int, int, int], biased: bool, relu: bool) -> None:
    N, C, D = shape
    factors = tensors((N, C), (D, C), *([(D,)] if biased else []))
    same(*both(linear_of, *factors, relu=relu))


def feed_forward_of(backend: Backend) -> Callable[..., Tensor]:
    return lambda *factors: feed_forward(*factors, backend=backend)


@pytest.mark.parametrize(
    "shape", [(0, 8, 16), (1, 1, 1), (7, 5, 9), (33, 16, 130), (1, 8, 8), (33, 16, 136), (40, 24, 64)]
)
def test_feed_forward_of_odd_sizes(shape: tuple[int, int, int]) -> None:
    N, C, D = shape
    factors = tensors((N, C), (D, C), (D,), (C, D), (C,))
    same(*both(feed_forward_of, *factors))
    # In bfloat16 the hidden gradient is masked and summed up where it was multiplied.
    low = [t.to(torch.bfloat16) if i == 0 else t.bfloat16().float() for i, t in enumerate(factors)]
    actual, torchs = both(feed_forward_of, *low, autocast=True)
    assert all(actual[f"gradient {i}"].dtype == t.dtype for i, t in enumerate(low))
    if N:
        within_budget(actual, torchs, with_grads(feed_forward_of("reference"), *(t.double() for t in low)))


def test_feed_forward_of_each_trial() -> None:
    low = [t.bfloat16() for t in of_trials((0,) * 5, (7, 4), (5, 4), (5,), (4, 5), (4,))]
    same(*both(lambda backend: torch.vmap(feed_forward_of(backend)), *low), rtol=0.05, atol=0.1)


def layers_of(backend: Backend, joined: int) -> Callable[..., tuple[Tensor, ...]]:
    """The first `joined` weights as one group, each other weight as a group."""
    return lambda x, *ws: tuple(linears(x, [ws[:joined], *([w] for w in ws[joined:])], backend=backend))


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("outs", [(4,), (4, 9), (1, 4, 4)])
@pytest.mark.parametrize("joined", [1, 2])
def test_several_layers_of_one_input(outs: tuple[int, ...], joined: int, autocast: bool) -> None:
    factors = tensors((7, 5), *((out, 5) for out in outs), dtype=torch.float32)
    # Torch rounds products of bfloat16 once more.
    ours, theirs = both(layers_of, *factors, joined=joined, autocast=autocast)
    same(ours, theirs, **({"rtol": 0.02, "atol": 0.1} if autocast else {}))


def test_relu_passes_nan_and_has_no_gradient_at_zero() -> None:
    x = torch.tensor([[0.0], [-1.0], [1.0], [torch.nan]], dtype=torch.float64, device=DEVICE)
    for factors in ([x, torch.ones_like(x[:1])], [x, torch.ones_like(x[:1]), torch.zeros_like(x[0])]):
        actual, expected = both(linear_of, *factors, relu=True)
        same({"x": actual["gradient 0"]}, {"x": expected["gradient 0"]}, equal_nan=True)


def test_linear_of_features_without_gradient() -> None:
    x, weight, bias = tensors((5, 3), (4, 3), (4,))
    weight.requires_grad_()
    linear(x, weight, bias, relu=True, backend="triton").sum().backward()
    assert weight.grad is not None and x.grad is None
    torch.testing.assert_close(
        weight.grad, torch.autograd.grad(reference.linear(x, weight, bias, True).sum(), weight)[0]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_budget(dtype: torch.dtype) -> None:
    rows = 300 if interpreted("triton") else 40_000
    norm, dense = tensors((rows, 40), (rows, 40), (40,), (40,)), tensors((rows, 40), (70, 40), (70,))
    kinds: list[tuple[Callable[..., Any], list[Tensor], dict[str, bool]]] = [
        (norm_of, norm, {"adds": True}),
        (norm_of, norm, {"adds": True, "unbiased": True}),
        (linear_of, dense, {"relu": False}),
    ]
    for function, factors, options in kinds:
        features = 2 if function is norm_of else 1
        low = [t.to(dtype) if i < features else t.to(dtype).float() for i, t in enumerate(factors)]
        actual, torchs = both(function, *low, autocast=dtype == torch.bfloat16, **options)
        assert all(actual[f"gradient {i}"].dtype == t.dtype for i, t in enumerate(low))
        within_budget(actual, torchs, with_grads(function("reference", **options), *(t.double() for t in low)))


def test_the_norm_is_precise_far_from_zero() -> None:
    x = (uniform(50, 33, seed=0) + 1000).to(DEVICE)
    ones, zeros = torch.ones(33, device=DEVICE), torch.zeros(33, device=DEVICE)
    expected = add_norm(x, None, ones.double(), zeros.double(), backend="reference")[1]
    actual = add_norm(x.float(), None, ones, zeros, backend="triton")[1]
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=5e-4)


def test_autocast_gives_torchs_types() -> None:
    x, weight, bias = tensors((6, 5), (5, 5), (5,), dtype=torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out = linear(x, weight, bias, backend="triton")
        assert out.dtype == linear(x, weight, bias, backend="reference").dtype == torch.bfloat16
        for factors in (x, out):
            assert add_norm(factors, None, bias, bias, backend="triton")[1].dtype == factors.dtype
    torch.testing.assert_close(out, linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16(), backend="reference"))


def test_the_weights_gradient_is_not_rounded() -> None:
    x, weight, bias = tensors((64, 5), (4, 5), (4,), dtype=torch.float32)
    actual = with_grads(linear_of("triton", relu=False), x, weight, bias, autocast=True)
    for name in ("gradient 1", "gradient 2"):
        assert actual[name].dtype == torch.float32
        assert not torch.equal(actual[name], actual[name].bfloat16().float())


def test_weights_rounded_at_once() -> None:
    factors = tensors((7, 8), (16, 8), (16,), (8, 16), (8,), (4, 8), dtype=torch.float32)

    def layers(x: Tensor, first: Tensor, bias: Tensor, second: Tensor, second_bias: Tensor, third: Tensor) -> Tensor:
        inner = linear(x, first, bias, relu=True, backend="triton")
        out = feed_forward(x, first, bias, second, second_bias, backend="triton")
        return torch.cat([inner, out, *linears(x, [[third, first], [third]], backend="triton")], dim=1)

    def together(x: Tensor, *weights: Tensor) -> Tensor:
        with rounded_at_once(weights, torch.bfloat16):
            for weight in weights:
                weight.data.zero_()  # the rounded copy serves
            return layers(x, *weights)

    same_bits(with_grads(together, *factors, autocast=True), with_grads(layers, *factors, autocast=True))
    x, first, bias = factors[:3]
    for none_or_some in ([], [first, bias]):
        with rounded_at_once(none_or_some, torch.bfloat16):
            pass
    first.zero_()
    assert not linear(x.bfloat16(), first, backend="triton").any()


@pytest.mark.parametrize("relu", [True, False], ids=["relu", "plain"])
@pytest.mark.parametrize("rows", [0, 1, 7, 256, 257])
def test_linear_of_odd_width_in_bfloat16(rows: int, relu: bool) -> None:
    """Many rows are padded; with few rows the rounded weight is multiplied as it is."""
    x, weight, bias = tensors((rows, 5), (3, 5), (3,), dtype=torch.float32)
    low = [x.bfloat16(), weight.bfloat16().float(), bias.bfloat16().float()]
    ours, plain = linear_of("triton", relu=relu), linear_of("reference", relu=relu)

    def forgetting(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with rounded_at_once([weight, bias], torch.bfloat16):
            weight.data.zero_()
            return ours(x, weight, bias)

    actual, torchs = (with_grads(f, *low, autocast=True) for f in (ours, plain))
    assert all(actual[f"gradient {i}"].dtype == t.dtype for i, t in enumerate(low))
    if rows:
        within_budget(actual, torchs, with_grads(plain, *(t.double() for t in low)))
    if rows <= 256:
        same_bits(with_grads(forgetting, *low, autocast=True), actual)


def test_gradcheck() -> None:
    x, added, weight, bias = (t.requires_grad_() for t in tensors((3, 4), (3, 4), (4,), (4,)))
    torch.autograd.gradcheck(norm_of("triton", adds=True), (x, added, weight, bias))
    torch.autograd.gradcheck(norm_of("triton", adds=False), (x, weight, bias))
    torch.autograd.gradcheck(norm_of("triton", adds=True, p=0.3), (x, added, weight, bias))
    torch.autograd.gradcheck(norm_of_dropped("triton", True, p=0.3), (x, added, weight, bias))
    matrix, shift = (uniform(*shape, seed=7).to(DEVICE).requires_grad_() for shape in ((5, 4), (5,)))
    torch.autograd.gradcheck(linear_of("triton", relu=True), (x, matrix, shift))
    index = torch.tensor([2, 0, 0, 2], device=DEVICE)
    torch.autograd.gradcheck(lambda table: lookup_op(table, index), (x,))


def test_same_bits_every_time() -> None:
    norm, dense = tensors((70, 9), (70, 9), (9,), (9,), dtype=torch.float32), tensors((70, 9), (20, 9), (20,))
    for function, factors in ((norm_of("triton", adds=True), norm), (linear_of("triton", relu=True), dense)):
        same_bits(with_grads(function, *factors), with_grads(function, *factors))


@pytest.mark.parametrize("adds", [True, False], ids=["added", "alone"])
@pytest.mark.parametrize("drops", [True, False], ids=["dropout", "plain"])
@pytest.mark.parametrize("axes", [(0, 0, 0, 0), (None, 1, None, 0), (1, 0, None, None), (0, None, 0, None)])
def test_norm_of_each_trial(axes: tuple[int | None, ...], drops: bool, adds: bool) -> None:
    """Each trial has the rates that it has in separate calls, where a rate or a tensor has an axis of trials."""
    x, added, *weights = of_trials(axes, (7, 4), (7, 4), (4,), (4,))
    factors, dims = ([x, added, *weights], axes) if adds else ([x, *weights], (axes[0], *axes[2:]))
    p = torch.tensor([0.1, 0.5, 0.8], device=DEVICE)
    # Without an axis of trials, dropout would draw for the input once.
    of_axis: dict[int | None, tuple[Rate, Rate]] = {None: (p, 0.5), 0: (p, p.flip(0)), 1: (0.5, p)}
    rates = of_axis[axes[0]] if drops else (0.0, 0.0)
    rate_axes = tuple(0 if isinstance(rate, Tensor) else None for rate in rates)

    def apart(x_p: Rate, p: Rate, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        x = dropout(x, x_p, 5, backend="triton", validate=False)
        total, normed = norm_of("reference", adds=adds)(x, *rest)
        return total, dropout(normed, p, 7, backend="triton", validate=False)

    def together(x_p: Rate, p: Rate, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        drawn: dict[str, Any] = {"x_p": x_p, "x_seed": 5, "p": p, "seed": 7, "validate": False}
        return add_norm(x, rest[0] if adds else None, rest[-2], rest[-1], 1e-3, backend="triton", **drawn)

    same(*(with_grads(partial(torch.vmap(f, (*rate_axes, *dims)), *rates), *factors) for f in (together, apart)))


@pytest.mark.parametrize("axes", [(0, 0, 0), (None, 0, 0), (None, 0, 1), (1, None, None), (0, None, 0)])
@pytest.mark.parametrize(
    ("function_of", "third"),
    [
        (partial(linear_of, relu=False), (5,)),
        (partial(linear_of, relu=True), (5,)),
        (partial(layers_of, joined=1), (3, 4)),
        (partial(layers_of, joined=2), (3, 4)),
    ],
    ids=["linear", "relu", "groups of one", "one group"],
)
def test_linear_of_each_trial(
    function_of: Callable[..., Callable[..., Any]], third: tuple[int, ...], axes: tuple[int | None, ...]
) -> None:
    factors = of_trials(axes, (7, 4), (5, 4), third)
    same(*both(lambda backend: torch.vmap(function_of(backend), in_dims=axes), *factors))


def test_compiles_in_one_graph() -> None:
    index = torch.tensor([2, 0, 0, 2], device=DEVICE)

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            inner = linear(x, weight, bias, relu=True, backend="triton")
            total, normed = add_norm(inner, inner, bias, bias, backend="triton")
        return (total + normed).float() * lookup_op(weight, index)[0, 0]

    factors = tensors((6, 5), (4, 5), (4,), dtype=torch.float32)
    expected = with_grads(layer, *factors)
    torch._dynamo.reset()
    same(with_grads(torch.compile(layer, fullgraph=True, backend="aot_eager"), *factors), expected)


def test_the_cpu_takes_torchs_ops() -> None:
    if choose("auto", torch.device("cpu")) == "triton":
        pytest.skip("Triton is what auto takes")
    x, weight, bias = (t.cpu() for t in tensors((4, 4), (4, 4), (4,)))
    with torch.profiler.profile() as profiler:
        lookup(linear(add_norm(x, x, bias, bias)[1], weight, bias, relu=True), torch.tensor([0, 1]))
    ran = {event.key for event in profiler.key_averages()}
    names = {op.name for op in (layer_norm_op, linear_op, lookup_op)}
    assert not names & ran and "aten::layer_norm" in ran


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_lookup(dtype: torch.dtype) -> None:
    table, index = tensors((7, 3), dtype=dtype)[0], torch.tensor([3, 0, 3, 3, 6, 0], device=DEVICE)
    expected = with_grads(lambda table: table[index], table)
    for function in (lookup, lookup_op):
        actual = with_grads(lambda table: function(table, index), table)  # noqa: B023
        assert torch.equal(actual["out 0"], expected["out 0"])
        same(actual, expected)
    assert with_grads(lambda table: lookup_op(table, index[:0]), table)["gradient 0"].abs().sum() == 0


def _positions(kind: str, rows: int) -> Tensor:
    number = torch.Generator().manual_seed(3)
    chosen = {
        "none": torch.empty(0, dtype=torch.long),
        "one": torch.tensor([rows - 1]),
        "each once, out of order": torch.randperm(rows, generator=number),
        "a few often": torch.randint(3, (70,), generator=number) * (rows // 3),
        "hubs among others": torch.cat([torch.randint(rows, (40,), generator=number), torch.full((300,), 5)]),
        "as many as a tile": torch.tensor([4] * 4 + [1] * 36 + [2] * 37 + [0] * 5),
    }[kind]
    return chosen[torch.randperm(len(chosen), generator=number)].to(DEVICE)


POSITIONS = ["none", "one", "each once, out of order", "a few often", "hubs among others", "as many as a tile"]


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "sorted"])
@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("width", [1, 5, 300])
def test_the_gradient_of_rows(kind: str, width: int, counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from magna.ops.triton import table as triton_table

    monkeypatch.setattr("magna.ops.gpu.table._FEW_ROWS", 0)
    if not counted:
        monkeypatch.setattr(triton_table, "_COUNTED", 0)
    index = _positions(kind, 31)
    table, grad, whole = tensors((31, width), (len(index), width), (31, width))
    expected = torch.zeros_like(table).index_put_((index,), grad, accumulate=True)
    torch.testing.assert_close(lookup_backward_op(grad, index, None, 31), expected)
    remaining = whole.clone()
    torch.testing.assert_close(lookup_backward_op(grad, index, whole, 31), expected + whole)
    assert torch.equal(whole, remaining)  # autograd may share it


@pytest.mark.parametrize("kind", ["none", "a few often"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_of_rows_not_looked_up(dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magna.ops.gpu.table._FEW_ROWS", 0)
    index = _positions(kind, 31)
    grad, whole = tensors((len(index), 5), (5, 31), dtype=dtype)
    untouched = torch.ones(31, dtype=torch.bool, device=DEVICE).index_fill_(0, index, False)
    for factors in (whole.t(), whole.t().contiguous(), whole[:1, :5].expand(31, 5)):
        actual = lookup_backward_op(grad, index, factors, 31)
        assert actual.is_contiguous()
        assert actual.data_ptr() != factors.data_ptr()
        assert torch.equal(actual[untouched], factors[untouched])
        assert torch.equal(actual, lookup_backward_op(grad, index, factors.contiguous(), 31))
    assert not lookup_backward_op(grad, index, None, 31)[untouched].any()


@pytest.mark.parametrize("few", [True, False], ids=["few rows", "many rows"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_table_and_rows_of_it(dtype: torch.dtype, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not few:
        monkeypatch.setattr("magna.ops.gpu.table._FEW_ROWS", 0)
    index = _positions("hubs among others", 31)
    factors = tensors((31, 7))

    def ours(table: Tensor) -> tuple[Tensor, ...]:
        table, rows = table_and_rows(table, index)
        return table * 2, rows

    def theirs(table: Tensor) -> tuple[Tensor, ...]:
        return table * 2, table[index]

    truth = with_grads(theirs, *factors)
    rounded = [one.to(dtype) for one in factors]
    actual = with_grads(ours, *rounded)
    if dtype == torch.float64:
        same(actual, truth)
    else:
        within_budget(actual, with_grads(theirs, *rounded), with_grads(theirs, *(one.double() for one in rounded)))
    same_bits(actual, with_grads(ours, *rounded))


@pytest.mark.parametrize("used", [0, 1], ids=["the table", "the rows"])
def test_a_table_and_rows_of_which_one_is_used(used: int) -> None:
    index = torch.tensor([2, 0, 2], device=DEVICE)
    (table,) = tensors((5, 3))
    actual = with_grads(lambda table: table_and_rows(table, index)[used], table)
    same(actual, with_grads(lambda table: (table * 1, table[index])[used], table))


def test_the_gradient_of_a_table_may_be_shared() -> None:
    """A sum hands one gradient to both sides; adding that of the rows must not change the other side's."""
    index = torch.tensor([2, 0, 2], device=DEVICE)
    factors = tensors((5, 3), (5, 3))

    def ours(table: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        table, rows = table_and_rows(table, index)
        return table + other, rows

    same(with_grads(ours, *factors), with_grads(lambda table, other: (table + other, table[index]), *factors))


def test_several_lookups() -> None:
    first, second = torch.tensor([2, 0, 2], device=DEVICE), torch.tensor([4], device=DEVICE)
    factors = tensors((5, 3))
    actual = with_grads(lambda table: lookups(table * 1, first, second), *factors)
    same(actual, with_grads(lambda table: (table * 1, table[first], table[second]), *factors))
