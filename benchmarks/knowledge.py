"""Measurements on knowledge graphs: a training step, the loss over all entities, and the ranks of a test set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ledger
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from magna.bench import measure
from magna.config.schema import Config, load_recipe, recipe_names
from magna.config.threads import other_cores
from magna.data import load_knowledge_graph
from magna.data.knowledge_graph import Ranking
from magna.ops import kvsall_loss, rank_targets
from magna.ops.loss import LossBackend, Precision, choose_block
from magna.tasks import LinkPrediction, Task, make_task
from magna.tasks.link_objective import LinkObjective
from magna.tasks.metrics import Ranks
from magna.training.capture import matmul_precision, own_stream
from magna.training.loop import fit

Record = dict[str, Any]

ENTITIES = {"fb15k-237": 14_541, "wn18rr": 40_943}
QUERIES, CHANNELS, ANSWERS = 4096, 512, 4
# On the CPU bfloat16 is rounded float32, costs more, and is not measured.
PRECISIONS: dict[str, list[Precision]] = {"cpu": ["float32"], "cuda": ["float32", "bfloat16"]}
EPOCHS = 32  # without a pause, as large products bring a GPU to its power limit
# Shapes of the authors; a recipe is also measured in that of its graph.
_SHAPE = ["model.hidden_channels=512", "model.entity_channels=100", "model.decoder=distmult", "task.batch_size=4096"]
# They have no shallow embeddings.
_SHAPE += ["model.skip_channels=0"]
AUTHORS = {
    "wn18rr": ["model.num_layers=3", "model.K=3", *_SHAPE],
    "fb15k-237": ["model.num_layers=2", "model.K=2", *_SHAPE],
}
# Without the further losses of the recipes.
PLAIN = ["task.relation_prediction=0.0", "model.loop_bias=false"]
BLOCKS: dict[str, list[int | None]] = {"cpu": [None], "cuda": [None, 1024, 2048, 4096, 8192, 16384]}


def loss(names: Iterable[str], device: torch.device, out: Path, stamped: Record) -> Record:
    """Time and peak memory of the loss, forward and backward: all scores at once, and in blocks of several sizes."""
    path = out / f"loss-{ledger.slug(device)}.json"
    record = stamped | {"queries": QUERIES, "channels": CHANNELS, "answers": ANSWERS, "rows": []}
    backends: list[LossBackend] = ["blocked", "triton"] if device.type == "cuda" else ["blocked"]
    variants: list[tuple[LossBackend, Precision, int | None]] = [
        (backend, precision, block)
        for backend in backends
        for precision in PRECISIONS[device.type]
        for block in BLOCKS[device.type]
    ]
    variants.append(("reference", "float32", None))
    for name in names:
        for backend, precision, block in variants:
            step = _loss_step(ENTITIES[name], device, backend, precision, block)
            step()
            peak = measure.memory_of(step, [], device)[1].peak_bytes
            run = measure.as_cuda_graph(step) if device.type == "cuda" else step
            with other_cores() as others:
                timing = measure.interleaved({"": run}, device, budget_s=2.0, rounds=5)[""]
            if backend != "reference":
                block = block or choose_block(QUERIES, ENTITIES[name], device, getattr(torch, precision))
            row: Record = {"graph": name, "backend": backend, "precision": precision, "block": block}
            row |= {"ms": timing.ms, "ms_spread": timing.spread, "peak_bytes": peak, "other_cores": others()}
            record["rows"].append(row)
            ledger.write_json(path, record)
            megabytes = "" if peak is None else f"{peak / 1e6:9,.0f} MB"
            print(f"{name:10} {backend:9} {precision:8} block {block}: {timing.ms:9.3f} ms {megabytes}", flush=True)
            del step, run
    return record


def steps(names: Iterable[str], device: torch.device, data_dir: str | None, out: Path, stamped: Record) -> Record:
    """Milliseconds of a training step of a recipe, in the loop that trains it, and how fast its products are done."""
    path = out / f"step-{ledger.slug(device)}.json"
    record = stamped | {"rows": []}
    for name in names:
        shapes: list[list[str]] = [[]]
        if name in AUTHORS:
            shapes += [[*AUTHORS[name], f"model.feed_forward={on}"] for on in ("true", "false")]
            shapes += [[*shapes[1], *PLAIN]]
        for shape in shapes:
            sets = [*shape, f"train.epochs={EPOCHS}", f"train.eval_every={EPOCHS}"]
            row = {"recipe": name, "set": shape} | _step(load_recipe(name).with_values(sets), device, data_dir)
            record["rows"].append(row)
            ledger.write_json(path, record)
            print(f"{row['ms']:9.3f} ms a step, {row['tflops']:.1f} TFLOP/s: {name} {' '.join(shape)}", flush=True)
    return record


def step_ms(config: Config, device: torch.device, data_dir: str | None) -> float:
    """Milliseconds of a training step in the loop that trains a recipe."""
    task = make_task(config, data_dir, device)
    with own_stream(device), matmul_precision(config.train.precision):
        return _fitted_ms(config, task, task.make_model(config.model).to(device))


def _fitted_ms(config: Config, task: Task, network: Any) -> float:
    ends: list[float] = []
    steps: int = task.objective(config.task, network).num_batches
    fit(config, task, network, lambda _: ends.append(time.perf_counter()))
    # The first epoch began with capturing the step, the last ended with an evaluation.
    return 1000 * (ends[-2] - ends[0]) / (steps * (len(ends) - 2))


def _step(config: Config, device: torch.device, data_dir: str | None) -> Record:
    task = make_task(config, data_dir, device)
    assert isinstance(task, LinkPrediction)
    with own_stream(device), matmul_precision(config.train.precision):
        network = task.make_model(config.model).to(device)
        objective = task.objective(config.task, network)
        flops = _flops(task, objective, network)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        ms = _fitted_ms(config, task, network)
    row = {"ms": ms, "steps": objective.num_batches * (config.train.epochs - 2), "batch": objective.batch_size}
    row |= {"tflop": flops / 1e12, "tflops": flops / ms / 1e9}
    if device.type == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return row


def _flops(task: LinkPrediction, objective: LinkObjective, network: Any) -> int:
    with FlopCounterMode(display=False, custom_mapping=_products()) as counter:
        objective.loss(network.train(), objective.batches()[0]).backward()
    network.zero_grad()
    # The counter does not see into the loss: the scores twice, and the gradients of queries and candidates.
    channels: int = sum(scorer.decoder.channels for scorer in network.scorers.values())
    scored = 2 * objective.batch_size * task.num_nodes * channels
    flops: int = counter.get_total_flops() + 4 * scored
    return flops


def _products() -> dict[Any, Any]:
    """The flops of our own linear layers, which the counter does not see into either, from the shapes they get."""

    def linear(x: list[int], weight: list[int], *_: Any, **_out: Any) -> int:
        return 2 * x[0] * weight[0] * weight[1]

    def linear_backward(_grad: list[int], x: list[int], weight: list[int], *rest: Any, **_out: Any) -> int:
        into_x: int = rest[2]
        return (1 + into_x) * linear(x, weight)

    def linears(x: list[int], weights: list[list[int]], *_: Any, **_out: Any) -> int:
        return sum(linear(x, weight) for weight in weights)

    def linears_backward(x: list[int], _grads: Any, _weight: Any, groups: list[list[int]], **_out: Any) -> int:
        return 2 * linears(x, groups)

    ops = torch.ops.magna
    return {
        ops.linear: linear,
        ops.linear_backward: linear_backward,
        ops.linears: linears,
        ops.linears_backward: linears_backward,
    }


def _loss_step(
    entities: int, device: torch.device, backend: LossBackend, precision: Precision, block: int | None
) -> Any:
    number = torch.Generator().manual_seed(0)
    query, candidates = (
        (torch.randn(size, CHANNELS, generator=number) * CHANNELS**-0.25).to(device).requires_grad_()
        for size in (QUERIES, entities)
    )
    ptr = torch.arange(0, ANSWERS * QUERIES + 1, ANSWERS, device=device)
    # Answers of a query in different quarters of the entities: increasing, each once.
    quarter = entities // ANSWERS
    index = torch.randint(quarter, (QUERIES, ANSWERS), generator=number) + quarter * torch.arange(ANSWERS)
    answers = ptr, index.flatten().to(device)

    def step() -> tuple[Tensor, ...]:
        value = kvsall_loss(
            query,
            candidates,
            None,
            answers,
            label_smoothing=0.1,
            precision=precision,
            block=block,
            backend=backend,
            validate=False,
        )
        return value.detach(), *torch.autograd.grad(value, (query, candidates))

    return step


def ranking(names: Iterable[str], device: torch.device, data_dir: str | None, out: Path, stamped: Record) -> Record:
    """Seconds for the filtered ranks of a whole test set, both sides: of random vectors, and by the model of a recipe
    as it starts, which encodes the graph first; the fastest of three.
    """
    path = out / f"ranking-{ledger.slug(device)}.json"
    record = stamped | {"channels": CHANNELS, "rows": []}
    for name in names:
        graph = load_knowledge_graph(name, data_dir)
        asked = graph.ranking("test").to(device)
        works = {f"{CHANNELS} random channels": _vectors(asked, graph.num_entities)}
        if name in recipe_names():
            works[f"recipe {name}"] = _evaluation(load_recipe(name), device, data_dir)
        for label, work in works.items():
            times = []
            for _ in range(3):
                begin, begin_cpu = time.perf_counter(), time.process_time()
                metrics = work()
                times.append((time.perf_counter() - begin, time.process_time() - begin_cpu))
            seconds, cpu_seconds = min(times)
            row = {"graph": name, "of": label, "queries": len(asked.queries), "targets": len(asked.target)}
            row |= {"entities": graph.num_entities, "seconds": seconds, "cpu_seconds": cpu_seconds, "mr": metrics["mr"]}
            record["rows"].append(row)
            ledger.write_json(path, record)
            print(
                f"{name:10} {label}, {row['targets']:,} ranks: {seconds:.2f} s, {cpu_seconds:.2f} s of CPU", flush=True
            )
    return record


def _vectors(asked: Ranking, num_entities: int) -> Callable[[], dict[str, float]]:
    number, device = torch.Generator().manual_seed(0), asked.queries.device
    query, candidates = (
        torch.randn(size, CHANNELS, generator=number).to(device) for size in (len(asked.queries), num_entities)
    )
    return lambda: Ranks(*rank_targets(query, candidates, None, asked.query, asked.target, asked.known)).metrics()


def _evaluation(config: Config, device: torch.device, data_dir: str | None) -> Callable[[], dict[str, float]]:
    task = make_task(config, data_dir, device)
    assert isinstance(task, LinkPrediction)
    torch.manual_seed(0)
    model = task.make_model(config.model).to(device)

    def work() -> dict[str, float]:
        with matmul_precision(config.train.precision):
            return task.evaluate(model, "test")

    return work
