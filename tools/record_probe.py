"""One side of the record: run the compared computations with the `magna` that is imported, write them as JSON.

`python -m tools.record_probe fast|full FILE` under the interpreter and with the PYTHONPATH of a side. A part whose name
starts with "~" is compared within a tolerance, each other part exactly.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from tools import sides
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

Parts = dict[str, Any]
NODES, EDGES, TYPES, WIDTH, OUT = 40, 150, 3, 12, 16
CONVS, BLOCKS, MODELS, LINKS = 20, 10, 8, 8
TOGETHER = ["--together", "--seeds", "2", "--set", "model.K=4"]

# Values of an option, in equal numbers over the drawn settings.
CONV_OPTIONS: dict[str, list[Any]] = {
    "heads": [1, 2, 4],
    "K": [0, 1, 3, 6],
    "alpha": [0.05, 0.1, 0.5],
    "head_form": ["split", "full"],
    "projection": ["separate", "shared"],
    "tanh": [True, False],
    "negative_slope": [0.2, 0.05],
    "score_scale": [1.0, 0.5],
    "hop_weights": ["fixed", "fixed", "alpha", "theta"],
    "mode": ["truncated", "truncated", "truncated", "exact"],
    "memory": ["auto", "save", "recompute"],
    "top_k": [None, None, 2, 4],
    "top_k_shared": [False, True],
    "attention_dropout": [0.0, 0.3, 0.3],
    "feature_dropout": [0.0, 0.0, 0.2],
    "edge_dropout": [0.0, 0.4],
    "edge_pairs": [True, False],
    "add_self_loops": [False, True],
    "out_projection": [True, True, False],
    "bias": [False, True],
    "init": ["glorot", "glorot", "official"],
    "backend": ["auto", "auto", "reference"],
    "num_relations": [None, TYPES],
    "relation_channels": [None, 5],
    "relation_norm": ["none", "layer", "unbiased", "batch"],
}
BLOCK_OPTIONS: dict[str, list[Any]] = {
    "norm": ["layer", "unbiased", "batch", "none"],
    "norm_eps": [None, 1e-3],
    "residual": [True, True, False],
    "feed_forward": [True, True, False],
    "ffn_multiplier": [4, 2],
    "diffusion": [True, True, True, False],
    "input_dropout": [0.0, 0.4],
    "output_dropout": [0.0, 0.3],
    "residual_dropout": [0.0, 0.2],
    "ffn_dropout": [0.0, 0.3],
    "ffn_output_dropout": [0.0, 0.2],
}
MODEL_OPTIONS: dict[str, list[Any]] = {
    "num_layers": [1, 2, 3],
    "input_projection": [True, False, 10],
    "final_norm": ["none", "layer", "unbiased", "batch"],
    "node_dropout": [0.0, 0.2],
    "embed_dropout": [0.0, 0.4],
    "classifier_dropout": [0.0, 0.3],
    "edge_dropout_shared": [False, True],
}
LINK_OPTIONS: dict[str, list[Any]] = {
    "num_layers": [1, 2, 1, 0],
    "decoder": ["distmult", "complex"],
    "entity_channels": [16, 12],
    "relation_channels": [None, 16],
    "relation_source": ["relations", "entities"],
    "typed": [True, True, False],
    "embedding_std": [0.1, 0.5],
    "decoder_dropout": [0.0, 0.3],
    "entity_bias": [False, True],
    "loop_bias": [False, True],
    "skip_channels": [0, 8],
    "final_norm": ["none", "layer"],
}


def main(mode: str, file: str) -> None:
    torch.set_num_threads(1)
    items: dict[str, Parts] = {}
    for name, work in comparisons(mode):
        print(f"== {name}", file=sys.stderr, flush=True)
        try:
            items[name] = work()
        except Exception as error:
            items[name] = {"failed": f"{type(error).__name__}: {error}"}
    Path(file).write_text(json.dumps({"kernels": sides.kernel_name(), "torch": torch.__version__, "items": items}))


def comparisons(mode: str) -> Iterator[tuple[str, Callable[[], Parts]]]:
    """The comparisons of the fast or the full record, each by its name."""
    if mode == "fast":
        yield from layers()
        for recipe in ("digits", "cora", "families"):
            yield f"train {recipe}, 3 epochs", trained(recipe, 3)
        yield "batch cora, 2 trials, draws", drawn_together
        yield "batch cora, 2 trials, 3 epochs", trained("cora", 3, *TOGETHER)
        yield "batch cora, 3 trials that differ, 3 epochs", differing
        return
    for recipe in ("citeseer", "pubmed", "cora-gat", "citeseer-diff-gcn", "pubmed-diff-gcn", "cora-ensemble"):
        yield f"train {recipe}, 3 epochs", trained(recipe, 3)
    for recipe in ("cora-paper", "cora-official"):
        yield f"train {recipe}, 2 epochs", trained(recipe, 2)
    for recipe in ("wn18rr", "fb15k-237"):
        yield f"train {recipe}, 2 steps", trained(recipe, 1, steps=2)
    yield "batch cora, 3 trials, chosen epochs", trained("cora", 60, *TOGETHER, "--seeds", "3", patience=6)
    yield "batch digits, pruning of 12 trials", pruned


def layers() -> Iterator[tuple[str, Callable[[], Parts]]]:
    """Randomly drawn settings of the layers, the models and the link predictor."""
    for number, options in enumerate(drawn(CONVS, CONV_OPTIONS, seed=1)):
        yield f"MAGNAConv {number}", lambda n=number, o=options: conv(n, o)  # type: ignore[misc]
    for number, options in enumerate(drawn(BLOCKS, {**CONV_OPTIONS, **BLOCK_OPTIONS}, seed=2)):
        yield f"MAGNABlock {number}", lambda n=number, o=options: block(n, o)  # type: ignore[misc]
    space = {**CONV_OPTIONS, **BLOCK_OPTIONS, **MODEL_OPTIONS}
    for number, options in enumerate(drawn(MODELS, space, seed=3)):
        yield f"MAGNA {number}", lambda n=number, o=options: model(n, o)  # type: ignore[misc]
    for number, options in enumerate(drawn(LINKS, {**space, **LINK_OPTIONS}, seed=4)):
        yield f"LinkPredictor {number}", lambda n=number, o=options: link_predictor(n, o)  # type: ignore[misc]


def drawn(count: int, space: dict[str, list[Any]], seed: int) -> list[dict[str, Any]]:
    """Settings that cover each value of each option; what would do nothing or is refused is left out."""
    chance = random.Random(seed)
    columns = {}
    for name, values in space.items():
        column = [values[i % len(values)] for i in range(count)]
        chance.shuffle(column)
        columns[name] = column
    return [allowed({name: column[i] for name, column in columns.items()}) for i in range(count)]


def allowed(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that others make meaningless."""
    drop: list[str] = []
    if options.get("num_layers") == 0:
        keep = {*LINK_OPTIONS, "init", "backend"}
        return {name: value for name, value in options.items() if name in keep}
    if options.get("diffusion") is False:
        drop += ["K", "alpha", "hop_weights", "mode", "memory"]
    elif options["mode"] == "exact":
        drop += ["K", "memory", "attention_dropout", "feature_dropout"]
        options["hop_weights"] = "fixed" if options["hop_weights"] == "theta" else options["hop_weights"]
    if options["top_k"] is None:
        drop.append("top_k_shared")
    if options["edge_dropout"] == 0:
        drop += ["edge_pairs", "edge_dropout_shared"]
    if options["num_relations"] is None:
        drop += ["relation_channels", "relation_norm"]
    if options.get("residual") is False:
        drop.append("residual_dropout")
    if options.get("feed_forward") is False:
        drop += ["ffn_multiplier", "ffn_dropout", "ffn_output_dropout"]
    return {name: value for name, value in options.items() if name not in drop}


def conv(number: int, options: dict[str, Any]) -> Parts:
    heads = options.pop("heads")
    out = heads * WIDTH if options["head_form"] == "full" and not options["out_projection"] else OUT
    return passes(sides.build("MAGNAConv", number, WIDTH, out, heads, **options), number, options)


def block(number: int, options: dict[str, Any]) -> Parts:
    heads = options.pop("heads")
    out = OUT
    if options["head_form"] == "full" and not options["out_projection"]:
        out = heads * WIDTH
    return passes(sides.build("MAGNABlock", number, WIDTH, out, heads, **options), number, options)


def model(number: int, options: dict[str, Any]) -> Parts:
    if options["head_form"] == "full":
        options["out_projection"] = True
    layers = options.pop("num_layers")
    return passes(sides.build("MAGNA", number, WIDTH, OUT, layers, 5, **options), number, options)


def passes(module: nn.Module, number: int, options: dict[str, Any]) -> Parts:
    """A training step and an evaluation of a layer on a small random graph."""
    parts = constructed(module)
    chance = torch.Generator().manual_seed(number)
    wide = number % 4 == 3
    module.to(torch.float64 if wide else torch.float32)
    x = torch.randn(NODES, WIDTH, generator=chance, dtype=torch.float64 if wide else torch.float32)
    edges = [random_edges(chance)]
    if options.get("num_relations") is not None:
        edges.append(torch.randint(TYPES, (EDGES,), generator=chance))
    return parts | stepped(module, [x.requires_grad_()], lambda: module(x, *edges))


def link_predictor(number: int, options: dict[str, Any]) -> Parts:
    """A training step and an evaluation of a link predictor, its scores of every entity."""
    for name in ("num_relations", "relation_channels", "add_self_loops", "classifier_dropout"):
        options.pop(name, None)
    if options["relation_source"] == "entities":
        options["relation_channels"] = options["entity_channels"]
    if options.get("head_form") == "full":
        options["out_projection"] = True
    options["hidden_channels"] = OUT
    layers = options.pop("num_layers")
    made = sides.build("LinkPredictor", number, NODES, TYPES, num_layers=layers, **options)
    chance = torch.Generator().manual_seed(number)
    edge_index = random_edges(chance)
    edge_type = torch.randint(2 * TYPES + 1, (EDGES,), generator=chance)
    head, relation = torch.randint(NODES, (9,), generator=chance), torch.randint(2 * TYPES, (9,), generator=chance)
    scores = lambda: sides.link_scores(made, edge_index, edge_type, head, relation)  # noqa: E731
    return constructed(made) | stepped(made, [], scores)


def constructed(module: nn.Module) -> Parts:
    return {"generator after construction": generator(), "parameters": hashed(module.parameters())}


def stepped(module: nn.Module, inputs: list[Tensor], call: Callable[[], Tensor]) -> Parts:
    module.train()
    out = call()
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    torch.autograd.backward((out * weight).sum())
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    parts = {
        "output": hashed([out]),
        "gradients": hashed(grads),
        "gradient of x": hashed([x.grad for x in inputs if x.grad is not None]),
        "generator": generator(),
    }
    module.eval()
    with torch.no_grad():
        return parts | {"evaluated": hashed([call()])}


def random_edges(chance: torch.Generator) -> Tensor:
    """Edges [2, E] with a hub, isolated nodes and some self-loops."""
    edges = torch.randint(NODES - 3, (2, EDGES), generator=chance)
    edges[1, :20] = 0
    edges[1, 20:30] = edges[0, 20:30]
    return edges


class EnoughSteps(BaseException):
    """The steps that are compared are done."""


def trained(recipe: str, epochs: int, *options: str, steps: int = 0, patience: int = 0) -> Callable[[], Parts]:
    """`magna train RECIPE` for some epochs, or some steps of its first epoch."""

    def work() -> Parts:
        settings = {"train.epochs": epochs, "train.eval_every": 1, "train.patience": patience or epochs}
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        together = "--together" in options
        with tempfile.TemporaryDirectory() as folder, watched(steps, together) as seen:
            run = Path(folder) / "run"
            result = command("train", recipe, *sets, *options, "--device", "cpu", "--run-dir", str(run))
            return {**seen, "generator": generator(), **({} if steps else ended(result, together))}

    return work


def ended(result: dict[str, Any], together: bool) -> Parts:
    """Losses, metrics and weights that a training leaves in its run folders."""
    parts: Parts = {}
    for each in result["runs"]:
        folder, seed = Path(each["run_dir"]), f"seed {each['seed']}"
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((folder / "summary.json").read_text())
        parts[f"{seed} chosen epoch"] = [each["epochs"], summary["best_epoch"], summary["parameters"]]
        if together:
            parts[f"~{seed} losses"] = [row["loss"] for row in rows[:3]]
            continue
        parts[f"{seed} losses"] = [row["loss"] for row in rows]
        parts[f"{seed} metrics"] = [row.get("valid") for row in rows] + [each["valid"], each["test"]]
        parts[f"{seed} weights"] = hashed(saved_weights(folder))
    return parts


def saved_weights(folder: Path) -> list[Tensor]:
    from safetensors.torch import load_file

    return list(load_file(folder / "model" / "model.safetensors").values())


def drawn_together() -> Parts:
    """Everything that a batch of two trials draws at random in one epoch, in order."""
    with Draws() as draws:
        parts = trained("cora", 1, *TOGETHER)()
    return {"draws": len(draws.seen), "their values": draws.seen, "generator": parts["generator"]}


def differing() -> Parts:
    """Losses of three trials of one batch that differ in what may differ."""
    common = {"train.epochs": 3, "data.split": "random"}
    changes: list[dict[str, Any]] = [
        {"model.K": 2, "model.alpha": 0.5, "train.clip": 0.0, "train.seed": 1, "task.temperature": 0.3},
        {"model.K": 6, "model.input_dropout": 0.2, "train.lr": 0.01, "data.split_seed": 5},
        {"model.edge_dropout": 0.0, "train.weight_decay": 0.0, "train.clip": 0.01, "task.consistency": 0.5},
    ]
    losses = sides.batch_losses("cora", [{**common, **change} for change in changes])
    return {f"~trial {number} losses": values for number, values in enumerate(losses)} | {"generator": generator()}


def pruned() -> Parts:
    """Trials of a search: which of them are stopped early, after which epoch, with which settings."""
    space: dict[str, dict[str, Any]] = {
        "model.K": {"low": 2, "high": 6},
        "model.alpha": {"low": 0.05, "high": 0.5},
        "model.input_dropout": {"low": 0.0, "high": 0.6},
        "train.lr": {"low": 1e-4, "high": 5e-2, "log": True},
    }
    lines = ['[data]\nname = "digits"\n[train]\nepochs = 16\npatience = 8\n[search]']
    for key, limits in space.items():
        inline = ", ".join(f"{name} = {str(value).lower()}" for name, value in limits.items())
        lines.append(f'"{key}" = {{ {inline} }}')
    with tempfile.TemporaryDirectory() as folder:
        recipe, out = Path(folder) / "searched.toml", Path(folder) / "out"
        recipe.write_text("\n".join(lines) + "\n")
        options = ["--trials", "12", "--batch", "12", "--confirm", "0", "--device", "cpu", "--out", str(out)]
        command("sweep", str(recipe), *options)
        with (out / "trials.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    return {f"trial {number}": {k: v for k, v in row.items() if k != "seconds"} for number, row in enumerate(rows)}


def command(*arguments: str) -> dict[str, Any]:
    """Output of `magna … --json`, run in this process; empty where the steps were enough."""
    from magna.cli import main as magna

    out, said, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["magna", *arguments, "--json"]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            magna()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(sys.argv)}: {said.getvalue().strip().splitlines()[-1:]}") from None
    except EnoughSteps:
        return {}
    finally:
        sys.argv = before
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


@contextlib.contextmanager
def watched(steps: int, together: bool) -> Iterator[Parts]:
    """Starting weights, and the generator's state, where the first optimiser is made; weights after some steps.

    Weights of a batch are compared number by number in sorted order, as their layout is free.
    """
    seen: Parts = {}
    made = Optimizer.__init__
    done = 0

    def weights(optimiser: Any) -> str:
        tensors = [p.detach() for group in optimiser.param_groups for p in group["params"]]
        if together:
            tensors = [torch.cat([tensor.flatten() for tensor in tensors]).view(torch.int32).sort().values]
        return hashed(tensors)

    def started(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        if not seen:
            seen.update({"generator after construction": generator(), "starting weights": weights(self)})

    def after(optimiser: Any, *_: Any) -> None:
        nonlocal done
        done += 1
        if done <= steps:
            seen[f"weights after step {done}"] = weights(optimiser)
        if done == steps:
            raise EnoughSteps

    Optimizer.__init__ = started  # type: ignore[method-assign]
    hook = register_optimizer_step_post_hook(after)
    try:
        yield seen
    finally:
        Optimizer.__init__ = made  # type: ignore[method-assign]
        hook.remove()


class Draws(TorchDispatchMode):
    """The result of each random operation, as a hash."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and isinstance(out, Tensor):
            self.seen.append(f"{func.overloadpacket.__name__} {tuple(out.shape)} {hashed([out])[:12]}")
        return out


def generator() -> str:
    """State of torch's generator."""
    return hashed([torch.get_rng_state()])


def hashed(tensors: Iterable[Tensor]) -> str:
    """Hash of the sorted list of (shape, dtype, bytes)."""
    lines = []
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        data = hashlib.sha256(plain.numpy().tobytes()).hexdigest()
        lines.append(f"{tuple(plain.shape)} {plain.dtype} {data}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
