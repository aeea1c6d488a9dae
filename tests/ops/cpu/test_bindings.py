"""The CPU backend alone: instruction sets, any number of threads, forked workers, a missing library."""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion, dropout, edge_scores, edge_softmax
from magna.ops.backend import registry as backends
from magna.ops.backend.registry import Draw, Hop, choose
from magna.ops.cpu import bindings as cpu_kernels
from magna.ops.random import attention_stream, dropout_factor, feature_stream
from magna.typing import Backend

CPU = torch.device("cpu")
built = pytest.mark.skipif(cpu_kernels.why_not(CPU) is not None, reason="the compiled kernels are missing")


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def hub_graph() -> Graph:
    """5,000 of 9,000 edges end in one node and 5,000 begin in another: both rows are summed in pieces."""
    edges = torch.randint(0, 300, (2, 9000), generator=torch.Generator().manual_seed(0))
    edges[1, :5000], edges[0, 2000:7000] = 7, 9
    return Graph.from_edge_index(edges, 300, torch.arange(9000) % 2, 2)


def everything(graph: Graph, width: int, dtype: torch.dtype, backend: Backend = "cpu") -> list[Tensor]:
    """Outputs and gradients of all operators, with every dropout on."""
    generator, heads = torch.Generator().manual_seed(1), 3
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32

    def leaf(*shape: int, as_type: torch.dtype = accumulator) -> Tensor:
        return torch.randn(*shape, generator=generator).to(as_type).requires_grad_()

    source, target, relation = leaf(graph.num_nodes, heads), leaf(graph.num_nodes, heads), leaf(2, heads)
    x, alpha = leaf(graph.num_nodes, heads, width, as_type=dtype), torch.tensor([0.1, 0.2, 0.3]).to(accumulator)
    alpha.requires_grad_()
    scores = edge_scores(source, target, graph, relation, backend=backend)
    attention = edge_softmax(scores, graph, top_k=2500, backend=backend)
    dropped = dropout(x, 0.3, seed=5, backend=backend)
    rates = {"dropout": 0.3, "feature_dropout": 0.2}
    out = attention_diffusion(dropped, attention, graph, 3, alpha, seed=7, backend=backend, **rates)  # type: ignore[arg-type]
    leaves = [source, target, relation, x, alpha]
    return [scores, attention, out, *torch.autograd.grad(out.float().square().sum(), leaves)]


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("backend", "width"), [("cpu", 7), ("cpu", 16), ("cpu", 64), ("reference", 7)])
def test_the_number_of_threads_changes_no_bit(backend: Backend, width: int, dtype: torch.dtype) -> None:
    graph, results = hub_graph(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(everything(graph, width, dtype, backend))
    for first, *others in zip(*results, strict=True):
        assert all(torch.equal(first, other) for other in others)


@built
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-11), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("width", [1, 8, 24, 50, 64, 130])
@pytest.mark.parametrize("lesser", cpu_kernels.ISAS[:-1])
def test_the_instruction_sets_agree(
    lesser: str, width: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cpu_kernels.ISAS.index(lesser) >= cpu_kernels.ISAS.index(cpu_kernels.isa):
        pytest.skip(f"this machine has nothing better than {cpu_kernels.isa}")
    graph = hub_graph()
    best = everything(graph, width, dtype)
    monkeypatch.setenv("MAGNA_CPU_ISA", lesser)
    kernels, isa = cpu_kernels.load(cpu_kernels.LIBRARY)
    assert isa == lesser
    monkeypatch.setattr(cpu_kernels, "_kernels", kernels)
    for one, other in zip(best, everything(graph, width, dtype), strict=True):
        assert float((one - other).detach().abs().max()) <= tolerance * float(one.detach().abs().max())


def test_without_the_library_auto_takes_the_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_kernels, "_kernels", cpu_kernels.load(tmp_path / "missing.so")[0])
    assert "no C++ compiler" in str(cpu_kernels.why_not(CPU))
    backends._say_once.cache_clear()
    with pytest.warns(UserWarning, match="no C.. compiler .* the plain PyTorch definition serves"):
        assert choose("auto", CPU) == "reference"
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)
    assert edge_softmax(torch.zeros(2, 1), graph).tolist() == [[1.0], [1.0]]
    with pytest.raises(ValueError, match=r"backend is 'cpu'; allowed: one that runs \(the compiled"):
        choose("cpu", CPU)


def test_other_devices_are_refused() -> None:
    assert "the tensors are on cuda:0" in str(cpu_kernels.why_not(torch.device("cuda:0")))


@built
@pytest.mark.parametrize("lost", [b"int64_t threads", b"const int32_t *order, "])
def test_an_argument_more_than_declared_is_refused(lost: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    read = ctypes.string_at
    monkeypatch.setattr(ctypes, "string_at", lambda address: read(address).replace(lost, b"").rstrip(b", "))
    monkeypatch.setattr(cpu_kernels, "_kernels", cpu_kernels.load(cpu_kernels.LIBRARY)[0])
    with pytest.raises(TypeError, match=r"takes exactly \d+ arguments"):
        everything(hub_graph(), 8, torch.float32)


@built
def test_a_missing_argument_is_refused() -> None:
    for kernel in cpu_kernels._kernels.values():
        with pytest.raises(TypeError, match="required argument"):
            kernel(0, 0)


@built
def test_unknown_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tensor of dropout is torch\.float16 .*; allowed: 'torch\.float32'"):
        dropout(torch.ones(3, dtype=torch.float16), 0.5, seed=1, backend="cpu")


@built
@pytest.mark.parametrize("width", [3, 16, 40])
def test_draws_beyond_32_bits(width: int) -> None:
    """The slices of a huge tensor: indices of features and attention cross 2^32 within a row."""
    heads, whole_heads, first_head, column = 2, 2**31, 2**32 - 1, 2**32 - 2
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 2, 2], [2, 0, 1, 2]]), 3)
    rate, seed = torch.tensor([0.5, 0.25]), torch.tensor([11])
    draw = Draw(seed, rate, rate, whole_heads, 2**20, first_head, column)
    z, x, attention = torch.randn(3, heads, width), torch.randn(3, heads, width), torch.rand(4, heads)
    out, ones = torch.empty_like(x), torch.ones(heads)
    edges = attention[graph.by_target.order], graph.by_target, graph.col
    cpu_kernels.hop(Hop(z, x, *edges, None, ones, out, draw, 3))
    head = first_head + torch.arange(heads)
    edge = torch.arange(4)[:, None] * whole_heads + head
    weight = attention * dropout_factor(seed, attention_stream(3), edge, rate, torch.float32)
    expected = x.index_add(0, graph.target, weight[:, :, None] * z[graph.source])
    entry = (torch.arange(3)[:, None] * whole_heads + head)[:, :, None] * 2**20 + column + torch.arange(width)
    factor = dropout_factor(seed, feature_stream(3), entry, rate[:, None], torch.float32)
    torch.testing.assert_close(out, expected * factor)
    torch.testing.assert_close(cpu_kernels.hop_dropout(x, draw, 3), x * factor)


def _in_worker(queue: multiprocessing.Queue[float]) -> None:
    torch.set_num_threads(1)
    queue.put(float(everything(hub_graph(), 16, torch.float32)[2].detach().sum()))


@built
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_a_forked_worker_runs() -> None:
    torch.set_num_threads(2)
    expected = float(everything(hub_graph(), 16, torch.float32)[2].detach().sum())
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[float] = context.Queue()
    worker = context.Process(target=_in_worker, args=(queue,))
    worker.start()
    assert queue.get(timeout=600) == expected
    worker.join()


@built
def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNA_CPU_ISA", "sse9")
    with pytest.raises(ImportError, match="MAGNA_CPU_ISA is 'sse9'; allowed on this machine: baseline"):
        cpu_kernels.load(cpu_kernels.LIBRARY)
