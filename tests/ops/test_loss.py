"""The loss over all entities: definition, blocks, precision, memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from magna.ops import kvsall_loss
from magna.ops import loss_torch as kvsall_steps
from magna.ops.answers import Answers
from magna.ops.backend.registry import why_not
from magna.ops.loss import LossBackend, choose_backend, choose_block, kvsall_targets_op
from tests.support.comparing import Results, same, same_bits, within_budget
from tests.support.graphs import uniform
from tests.support.measuring import peak_bytes
from tests.support.operators import gradient
from tests.support.running import device_of, interpreted

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture(params=["blocked", pytest.param("triton", marks=pytest.mark.slow)])
def blocked(request: pytest.FixtureRequest) -> LossBackend:
    """Every implementation that walks the entities in blocks."""
    if request.param == "triton" and (reason := why_not("triton", device_of("triton"))):
        pytest.skip(reason)
    return cast(LossBackend, request.param)


@dataclass(frozen=True)
class Queries:
    query: Tensor
    candidates: Tensor
    bias: Tensor | None
    answers: Answers
    weight: Tensor | None
    self_bias: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(
        counts: list[int],
        entities: int,
        channels: int = 5,
        *,
        biased: bool = True,
        padding: int = 0,
        device: torch.device | str = "cpu",
    ) -> Queries:
        number = torch.Generator().manual_seed(sum(counts))
        actual = [torch.randperm(entities, generator=number)[:count].sort().values for count in counts]
        ptr = torch.tensor([0, *counts]).cumsum(0)
        index = torch.cat([*actual, torch.full((padding,), 7 * entities)])
        return Queries(
            uniform(len(counts), channels, seed=1, low=-2, high=2).to(device),
            uniform(entities, channels, seed=2, low=-2, high=2).to(device),
            uniform(entities, seed=3).to(device) if biased else None,
            (ptr.to(device), index.to(device)),
            uniform(len(counts), seed=4, low=0, high=3).to(device),
        )

    def to(self, dtype: torch.dtype) -> Queries:
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self, query=self.query.to(dtype), candidates=self.candidates.to(dtype), bias=bias)

    def loss(self, backend: LossBackend, **options: Any) -> Results:
        """The loss and the gradient of everything that has one."""
        leaves = {"query": self.query, "candidates": self.candidates, "bias": self.bias}
        leaves |= {"self_bias": None if self.self_bias is None else self.self_bias[1]}
        leaves = {k: None if v is None else v.detach().clone().requires_grad_() for k, v in leaves.items()}
        query, candidates, bias, entity_bias = leaves.values()
        self_bias = None if self.self_bias is None or entity_bias is None else (self.self_bias[0], entity_bias)
        assert query is not None and candidates is not None
        out = kvsall_loss(
            query, candidates, bias, self.answers, weight=self.weight, self_bias=self_bias, backend=backend, **options
        )
        (2.5 * out).backward()
        return {"loss": out.detach()} | {name: gradient(leaf) for name, leaf in leaves.items() if leaf is not None}


def test_autocast_has_no_say_in_the_loss(blocked: LossBackend) -> None:
    device = device_of(blocked)
    queries = Queries.of([2, 0, 3], 70, device=device).to(torch.float32)
    plain = queries.loss(blocked)
    with torch.autocast(device.type, torch.bfloat16):  # backward inside as well
        same_bits(queries.loss(blocked), plain)


def test_the_definition_is_torchs_kl_divergence() -> None:
    q = Queries.of([2, 1, 4], 11)
    labels = torch.zeros(3, 11, dtype=torch.float64)
    ptr, index = q.answers
    for row in range(3):
        labels[row, index[ptr[row] : ptr[row + 1]]] = 1
    assert q.bias is not None
    target = torch.nn.functional.normalize(labels * 0.7 + 0.3 / 11, p=1)
    scores = (q.query @ q.candidates.T + q.bias).log_softmax(1)
    expected = torch.nn.functional.kl_div(scores, target, reduction="batchmean")
    actual = kvsall_loss(q.query, q.candidates, q.bias, q.answers, label_smoothing=0.3, backend="reference")
    torch.testing.assert_close(actual, expected)


SIZES = [([1], 1), ([2, 0, 3, 1], 7), ([5, 5, 1], 64), ([0, 1, 0], 65), ([130, 2, 0, 0, 1], 131), ([3] * 17, 200)]


@pytest.mark.parametrize(("counts", "entities"), SIZES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("biased", [True, False])
def test_blocks_equal_the_definition(
    blocked: LossBackend, counts: list[int], entities: int, smoothing: float, biased: bool
) -> None:
    q = Queries.of(counts, entities, biased=biased, padding=3, device=device_of(blocked))
    expected = q.loss("reference", label_smoothing=smoothing)
    # Many blocks and large ones take long in the interpreter.
    for block in (None, 1, 3, 64, 1000) if entities <= 7 or not interpreted(blocked) else (100,):
        same(q.loss(blocked, label_smoothing=smoothing, block=block), expected)


@pytest.mark.parametrize("block", [None, 3, 64])
def test_a_bias_of_its_own_for_one_entity_of_a_query(blocked: LossBackend, block: int | None) -> None:
    q = Queries.of([2, 0, 3, 1], 70, padding=3, device=device_of(blocked))
    entity = torch.tensor([0, 69, 5, int(q.answers[1][-4])], device=q.query.device)  # the last one is its answer
    q = replace(q, self_bias=(entity, uniform(4, seed=5, low=-9, high=3).to(q.query.device)))
    expected = q.loss("reference", label_smoothing=0.1)
    if not interpreted(blocked) or block == 64:
        same(q.loss(blocked, label_smoothing=0.1, block=block), expected)
    assert q.bias is not None and q.self_bias is not None
    scores = q.query @ q.candidates.T + q.bias
    scores[torch.arange(4), entity] += q.self_bias[1]
    unit = torch.eye(70, dtype=scores.dtype, device=scores.device)
    plain = kvsall_loss(scores, unit, None, q.answers, weight=q.weight, label_smoothing=0.1, backend="reference")
    torch.testing.assert_close(plain, expected["loss"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_that_do_not_lie_side_by_side(blocked: LossBackend, dtype: torch.dtype) -> None:
    q = Queries.of([2, 1], 70, device=device_of(blocked)).to(dtype)
    self_bias = torch.tensor([[3, 9], [69, 9]], device=q.query.device)[:, 0], q.query[:, 0]
    expected = replace(q, self_bias=self_bias).loss(blocked, label_smoothing=0.1, block=64)
    apart = replace(q, query=q.query.T.contiguous().T, candidates=q.candidates.T.contiguous().T, self_bias=self_bias)
    same(apart.loss(blocked, label_smoothing=0.1, block=64), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients(blocked: LossBackend, smoothing: float) -> None:
    q = Queries.of([2, 0, 1], 7, channels=3, padding=2, device=device_of(blocked))
    assert q.bias is not None
    leaves = [t.requires_grad_() for t in (q.query, q.candidates, q.bias)]
    options: Any = {"label_smoothing": smoothing, "weight": q.weight, "block": 3, "backend": blocked}
    assert torch.autograd.gradcheck(lambda q_, e, b: kvsall_loss(q_, e, b, q.answers, **options), leaves)


def test_weights_by_number_of_answers_give_the_mean_over_triples(blocked: LossBackend) -> None:
    q = Queries.of([3, 1, 2], 9, device=device_of(blocked))
    ptr, index = q.answers
    per_query = replace(q, weight=ptr.diff()).loss(blocked, label_smoothing=0.1)
    repeated = torch.repeat_interleave(torch.arange(3, device=ptr.device), ptr.diff())
    rows = [index[ptr[i] : ptr[i + 1]] for i in repeated.tolist()]
    sizes = torch.tensor([0, *map(len, rows)], device=ptr.device).cumsum(0)
    per_triple = kvsall_loss(
        q.query[repeated], q.candidates, q.bias, (sizes, torch.cat(rows)), label_smoothing=0.1, backend=blocked
    )
    torch.testing.assert_close(per_query["loss"], per_triple)


def test_queries_without_answers_are_not_seen(blocked: LossBackend) -> None:
    few = Queries.of([2, 3], 9, device=device_of(blocked))
    ptr, index = few.answers
    assert few.weight is not None
    filled = replace(
        few,
        query=torch.cat([few.query, few.query.new_full((2, 5), 9.0)]),
        answers=(torch.cat([ptr, ptr[-1:], ptr[-1:]]), torch.cat([index, index.new_zeros(4)])),
        weight=torch.cat([few.weight, few.weight.new_ones(2)]),
    )
    expected, actual = few.loss(blocked, label_smoothing=0.1), filled.loss(blocked, label_smoothing=0.1)
    assert (actual["query"][2:] == 0).all()
    actual["query"] = actual["query"][:2]
    same(actual, expected)


def test_no_weight_no_loss(blocked: LossBackend) -> None:
    unanswered, none = (Queries.of(counts, 5, device=device_of(blocked)) for counts in ([0, 0], []))
    unweighted = replace(
        Queries.of([0, 2], 5, device=device_of(blocked)), weight=torch.zeros_like(unanswered.query[:, 0])
    )
    for nothing in (unanswered, none, unweighted):
        assert all((value == 0).all() for value in nothing.loss(blocked, label_smoothing=0.1).values())


def test_a_certain_answer_costs_nothing(blocked: LossBackend) -> None:
    query = torch.tensor([[500.0]], device=device_of(blocked))
    candidates = torch.tensor([[-1.0], [1.0], [-1.0]], device=query.device)
    answers = torch.tensor([0, 1], device=query.device), torch.tensor([1], device=query.device)
    assert kvsall_loss(query, candidates, None, answers, block=1, backend=blocked) == 0


def test_single_precision_is_in_the_budget(blocked: LossBackend) -> None:
    q = Queries.of([3, 1, 40, 7], 300, channels=64, device=device_of(blocked))
    # Sixteenths: their products are exact in any order of summation, so what is off is ours and no library's.
    query, candidates, bias = ((16 * t).round() / 16 for t in (q.query, q.candidates, q.bias) if t is not None)
    single = replace(q, query=query, candidates=candidates, bias=bias).to(torch.float32)
    truth = single.to(torch.float64).loss("reference", label_smoothing=0.1)
    plain = single.loss("reference", label_smoothing=0.1)
    within_budget(single.loss(blocked, label_smoothing=0.1, block=64), plain, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "block"), [(64, None), (64, 64), (60, 64), (64, 60)])
def test_bfloat16_products_are_in_the_budget(
    blocked: LossBackend, channels: int, block: int | None, dtype: torch.dtype
) -> None:
    """Rows of whole 16 bytes have kernels of their own on a GPU, others not."""
    q = Queries.of([3, 1, 40, 7], 300, channels=channels, device=device_of(blocked)).to(torch.bfloat16).to(dtype)
    assert q.bias is not None
    self_bias = torch.tensor([0, 299, 5, int(q.answers[1][-1])], device=q.query.device), q.bias[:4].float()
    q = replace(q, bias=q.bias.float(), self_bias=self_bias)
    truth = q.to(torch.float64).loss("reference", label_smoothing=0.1)
    actual = q.loss(blocked, label_smoothing=0.1, precision="bfloat16", block=block)
    assert {t.dtype for t in (actual["query"], actual["candidates"])} == {dtype}
    assert actual["loss"].dtype == actual["bias"].dtype == torch.float32
    torch.testing.assert_close(actual["self_bias"], truth["self_bias"], rtol=1e-4, atol=1e-7)
    # Inputs that are bfloat16 numbers already: the scores lose nothing, only their gradient is rounded.
    torch.testing.assert_close(actual["loss"].double(), truth["loss"], rtol=1e-5, atol=0)
    plain = q.to(torch.bfloat16).loss("reference", label_smoothing=0.1)
    within_budget(actual, plain, truth, times=1)


def test_same_bits(blocked: LossBackend) -> None:
    q = Queries.of([3, 1, 40, 7], 300, channels=64, device=device_of(blocked)).to(torch.float32)
    same_bits(q.loss(blocked, block=64), q.loss(blocked, block=64))


def test_peak_is_below_a_tenth_of_the_dense_one(blocked: LossBackend) -> None:
    if interpreted(blocked):
        pytest.skip("takes long in the interpreter")
    q = Queries.of([3] * 1024, 8000, channels=16, device=device_of(blocked)).to(torch.float32)
    works = [partial(q.loss, backend, label_smoothing=0.1) for backend in (blocked, "reference")]
    for work in works:
        work()
    actual, dense = (peak_bytes(work, q.query.device) for work in works)
    assert actual < dense / 10


def test_blocks_are_alike_and_small_beside_all_scores() -> None:
    wide, narrow = torch.float32, torch.bfloat16
    cpu, gpu = [("cpu", dtype, 4, 16 << 20) for dtype in (wide, narrow)], [("cuda", wide, 4, 64 << 20)]
    for device, dtype, each, bytes_ in (*cpu, *gpu, ("cuda", narrow, 2, 64 << 20)):
        for entities in (1, 100, 14_541, 40_943, 2_500_000):
            block = choose_block(4096, entities, torch.device(device), dtype)
            assert block % 64 == 0
            assert block == 64 or each * 4096 * block <= bytes_ + 64 * each * 4096
            assert block <= (entities + 64 if each * 4096 * entities <= 4 << 20 else entities / (2 * each) + 64)


def test_which_implementation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert choose_backend("auto", cpu) == choose_backend("blocked", gpu) == "blocked"
    assert choose_backend("reference", cpu) == "reference"
    monkeypatch.setattr("magna.ops.loss.why_not", lambda backend, device: None)
    assert choose_backend("auto", gpu) == choose_backend("triton", gpu) == "triton"
    monkeypatch.setattr("magna.ops.loss.why_not", lambda backend, device: "there is no triton")
    assert choose_backend("auto", gpu) == "blocked"
    with pytest.raises(ValueError, match="there is no triton"):
        choose_backend("triton", gpu)


def test_each_implementation_runs_its_own_steps(blocked: LossBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=kvsall_steps.accumulate)
    monkeypatch.setattr(kvsall_steps, "accumulate", counted)
    Queries.of([2, 1], 7, device=device_of(blocked)).loss(blocked, block=7)
    assert counted.call_count == (blocked == "blocked")


@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "alike"])
@pytest.mark.parametrize("counts", [[], [0], [3], [0, 2, 0, 0, 5, 0], [1] * 37 + [0, 150], [2] * 1100], ids=len)
def test_what_is_known_of_the_answers(counts: list[int], weighted: bool, smoothing: float) -> None:
    if reason := why_not("triton", device_of("triton")):
        pytest.skip(reason)
    q = Queries.of(counts, 160, padding=3, device=device_of("triton"))
    apart = (torch.stack([t, t], 1)[:, 0] for t in q.answers)  # numbers that do not lie side by side
    passed = (q.weight if weighted else None, 160, smoothing, torch.float64)
    ours, theirs = kvsall_targets_op(*apart, *passed, "triton"), kvsall_targets_op(*q.answers, *passed, "blocked")
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    torch.testing.assert_close(ours[2], theirs[2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_cuda_graph_replays_it_with_other_answers(blocked: LossBackend, precision: str) -> None:
    sizes = ([3, 1], 40), ([40, 4], 0)
    drawn = [Queries.of(counts, 300, 64, padding=pad, device="cuda").to(torch.float32) for counts, pad in sizes]
    few, many = (replace(q, weight=None) for q in drawn)
    leaves = [t.detach().clone().requires_grad_() for t in (few.query, few.candidates)]
    ptr, index = (t.clone() for t in few.answers)

    def step() -> tuple[Tensor, ...]:
        options: Any = {"label_smoothing": 0.1, "precision": precision, "backend": blocked, "validate": False}
        loss = kvsall_loss(leaves[0], leaves[1], None, (ptr, index), **options)
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    ptr.copy_(many.answers[0])
    index.copy_(many.answers[1])
    graph.replay()
    for actual, expected in zip(captured, step(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_compiles_in_one_graph(blocked: LossBackend) -> None:
    q = Queries.of([2, 1], 7, device=device_of(blocked))
    assert q.bias is not None
    leaves = [t.requires_grad_() for t in (q.query, q.candidates, q.bias)]

    def loss(query: Tensor, candidates: Tensor, bias: Tensor) -> Tensor:
        return kvsall_loss(query, candidates, bias, q.answers, label_smoothing=0.1, weight=q.weight, backend=blocked)

    expected = loss(*leaves)
    actual = torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(out, leaves) for out in (actual, expected)))
    torch._dynamo.reset()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "channels": ({"candidates": torch.zeros(7, 4)}, r"candidates is torch.float32 \[7, 4\]"),
    "no entities": ({"candidates": torch.zeros(0, 5)}, "one entity or more"),
    "type": ({"candidates": torch.zeros(7, 5)}, r"allowed: torch.float64 \[entities, 5\]"),
    "integers": ({"query": torch.zeros(2, 5, dtype=torch.int64)}, "query is torch.int64"),
    "bias": ({"bias": torch.zeros(6)}, r"bias is \S+ \[6\] on \S+; allowed: \[7\]"),
    "ptr": ({"answers": (torch.tensor([0, 1]), torch.tensor([1]))}, r"ptr is torch.int64 \[2\] .*; allowed"),
    "ptr decreases": ({"answers": (torch.tensor([0, 2, 1]), torch.tensor([1, 2]))}, "do not decrease"),
    "ptr too long": ({"answers": (torch.tensor([0, 2, 4]), torch.tensor([1, 2]))}, "up to 2, the size of index"),
    "index": ({"answers": (torch.tensor([0, 1, 2]), torch.tensor([1.0, 2.0]))}, "index is torch.float32"),
    "no such entity": (
        {"answers": (torch.arange(3), torch.tensor([1, 7]))},
        "entry of answers: index is 7; allowed: 0 to 6",
    ),
    "duplicates": (
        {"answers": (torch.tensor([0, 1, 3]), torch.tensor([1, 4, 4]))},
        r"query 1 is \[4, 4\]; .*increasing",
    ),
    "self bias below": (
        {"self_bias": (torch.tensor([0, -1]), torch.zeros(2))},
        "self_bias: entities is -1; allowed: 0 to 6",
    ),
    "self bias above": (
        {"self_bias": (torch.tensor([0, 7]), torch.zeros(2))},
        "self_bias: entities is 7; allowed: 0 to 6",
    ),
    "self bias": ({"self_bias": (torch.arange(2), torch.arange(2))}, "self_bias: biases is torch"),
    "smoothing": ({"label_smoothing": 1.5}, "label_smoothing is 1.5"),
    "weight": ({"weight": torch.ones(3)}, r"weight is torch.float32 \[3\]"),
    "negative": ({"weight": torch.tensor([1.0, -1.0])}, "an entry of weight is -1.0; allowed: 0 and above"),
    "block": ({"block": 0}, "block is 0"),
    "precision": ({"precision": "half"}, "precision is 'half'; allowed: 'float32', 'bfloat16'"),
    "too exact": ({"precision": "bfloat16"}, "query is torch.float64"),
    "backend": ({"backend": "cpu"}, "backend is 'cpu'; allowed: 'auto', 'reference', 'blocked', 'triton'"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input(name: str) -> None:
    q = Queries.of([2, 1], 7)
    bad, message = BAD[name]
    good: dict[str, Any] = {"query": q.query, "candidates": q.candidates, "bias": q.bias, "answers": q.answers}
    with pytest.raises(ValueError, match=message):
        kvsall_loss(**good | bad)
