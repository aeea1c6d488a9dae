"""The recipes of CONTRIBUTING.md: each is followed in a copy of the project, and no other file has to change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
NAME = "thing"  # stands for NAME on the page


class Recipe(NamedTuple):
    """Files that a contribution costs, and commands that then run in the copy."""

    new: dict[str, str]  # path → text
    changed: dict[str, list[tuple[str, str]]]  # path → lines, each with the one that follows it in the file
    commands: list[str]  # of Python, in an empty folder of the copy

    @property
    def files(self) -> set[str]:
        return {*self.new, *self.changed}


TRAIN = "-m magna train --device cpu --set train.epochs=1"
MAGNA = "--set model.hidden_channels=8 --set model.num_layers=1 --set model.heads=2 --set model.K=2"
PYTEST = "-m pytest -p no:cacheprovider --rootdir=.. ../tests"

DATA = Recipe(
    new={
        "src/magna/data/thing.py": """
import torch
from magna.data.node_data import NodeData, undirected

def load_thing() -> NodeData:
    node = torch.arange(12)
    edges = undirected(node, (node + 1) % 12, 12)
    return NodeData("thing", edges, node % 2, 2, node[:4], node[4:8], node[8:], x=torch.eye(12))
""",
        "tests/data/test_thing.py": """
from magna.data import DATASETS, load_node_data
from magna.config.tables import NodeDataOptions

def test_it_is_a_ring():
    assert load_node_data(NodeDataOptions(name="thing")).edge_index.size(1) == 24
    assert DATASETS["thing"].is_present()
""",
    },
    changed={
        "src/magna/data/registry.py": [
            ("from magna.data.thing import load_thing", "from magna.data.triples import"),
            (
                '    Dataset("thing", NODE_TASK, "12 nodes", "generated", "MIT", lambda *_: load_thing()),',
                "    Dataset(\n",
            ),
        ]
    },
    commands=[
        f"{PYTEST}/data/test_thing.py ../tests/data/test_store.py",
        "-m magna data list",
        "-m magna data audit thing",
        f"{TRAIN} digits --set data.name=thing {MAGNA}",
    ],
)

NODE_MODEL = Recipe(
    new={
        "src/magna/baselines/nodes/thing.py": """
from dataclasses import dataclass
from torch import Tensor, nn
from magna.config.options import Options, option
from magna.config.registry import node_model
from magna.nn.hub import Saved

@dataclass(frozen=True, kw_only=True)
class ThingOptions(Options):
    hidden_channels: int = option(8, "Width of the hidden layer.", low=1)

@node_model("thing", ThingOptions)
class Thing(Saved):
    def __init__(self, in_channels: int, out_channels: int, **options: int) -> None:
        super().__init__()
        width = ThingOptions.from_flat(options).hidden_channels
        self.config = {"in_channels": in_channels, "out_channels": out_channels, **options}
        self.in_channels, self.out_channels = in_channels, out_channels
        self.layers = nn.Sequential(nn.Linear(in_channels, width), nn.ReLU(), nn.Linear(width, out_channels))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layers(x)
""",
        "tests/baselines/nodes/test_thing.py": """
import torch
from magna.baselines.nodes.thing import Thing

def test_edges_are_not_read():
    x = torch.randn(3, 4)
    assert Thing(4, 2)(x, torch.zeros(2, 0, dtype=torch.int64)).shape == (3, 2)
""",
        "src/magna/config/recipes/digits-thing.toml": """
[data]
name = "digits"
[model]
name = "thing"
hidden_channels = 16
""",
    },
    changed={},
    commands=[
        f"{PYTEST}/baselines/nodes/test_thing.py ../tests/config/test_recipes.py -k thing",
        f"{TRAIN} digits-thing",
        "-m magna evaluate runs/digits-thing --device cpu",
        "-m magna predict runs/digits-thing --node 3 --device cpu",
        f"{TRAIN} digits-thing --run-dir runs/two --seeds 2 --together",
    ],
)

LINK_MODEL = Recipe(
    new={
        "src/magna/baselines/links/thing.py": """
from dataclasses import dataclass
import torch
from torch import Tensor, nn
from magna.config.layers import NegativeSampling
from magna.config.options import option
from magna.config.registry import link_model
from magna.nn.link_model import LinkModel

@dataclass(frozen=True, kw_only=True)
class ThingOptions(NegativeSampling):
    channels: int = option(8, "Width of the embeddings.", low=1)

@link_model("thing", ThingOptions)
class Thing(LinkModel):
    def __init__(self, num_entities: int, num_relations: int, **options: int) -> None:
        super().__init__()
        width = ThingOptions.from_flat(options).channels
        self.config = {"num_entities": num_entities, "num_relations": num_relations, **options}
        self.num_entities, self.num_relations = num_entities, num_relations
        self.table = nn.Parameter(torch.randn(num_entities, width))

    def encode(self, *_: object, **__: object) -> Tensor:
        return self.table

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        scores = states[head] @ states.T
        return scores if tail is None else scores.gather(1, tail)
""",
        "tests/baselines/links/test_thing.py": """
import torch
from magna.baselines.links.thing import Thing

def test_scores_of_all_entities():
    model, head = Thing(5, 2), torch.tensor([0, 1])
    assert model.scores(model.encode(), head, head).shape == (2, 5)
""",
        "src/magna/config/recipes/families-thing.toml": """
[data]
name = "families"
[task]
name = "link_prediction"
[model]
name = "thing"
channels = 16
""",
    },
    changed={},
    commands=[
        f"{PYTEST}/baselines/links/test_thing.py ../tests/config/test_recipes.py -k thing",
        f"{TRAIN} families-thing",
        "-m magna predict runs/families-thing --head ivan-121 --relation brother_of --device cpu",
    ],
)

DECODER = Recipe(
    new={},
    changed={
        "src/magna/nn/decoder.py": [
            (
                """@decoder("thing")
class Thing(Decoder):
    def join(self, head: Tensor, relation: Tensor) -> Tensor:
        return head.flip(-1) * relation

    def pair(self, head: Tensor, tail: Tensor) -> Tensor:
        return head.flip(-1) * tail


""",
                '@decoder("distmult")',
            )
        ],
        "tests/nn/test_decoder.py": [
            (
                '    if type(decoder).__name__ == "Thing":\n        return (head.flip(0) * relation * tail).sum()',
                "    if isinstance(decoder, ConvE):\n        image",
            )
        ],
    },
    commands=[
        f"{PYTEST}/nn/test_decoder.py -k thing",
        f"{TRAIN} families --set model.decoder=thing {MAGNA}",
    ],
)

OPTION = Recipe(
    new={},
    changed={
        "src/magna/config/layers.py": [
            ('    thing: float = option(0.0, "Added to the scores.", low=0)', "    top_k: int | None = option(")
        ],
        "src/magna/nn/attention.py": [
            ("        target = target + self.options.thing", "        further = self._relation_scores(relation)")
        ],
        "tests/nn/test_attention.py": [
            (
                """def test_thing_is_added() -> None:
    ends, edges = torch.ones(2, 1, 3), torch.tensor([[0], [1]])
    graph = Graph.from_edge_index(edges, num_nodes=2)
    torch.manual_seed(0)
    plain = EdgeAttention(4, 3, tanh=False, negative_slope=1.0)
    torch.manual_seed(0)
    moved = EdgeAttention(4, 3, tanh=False, negative_slope=1.0, thing=2.0)
    torch.testing.assert_close(moved(ends, ends, graph), plain(ends, ends, graph) + 2)


""",
                "def test_the_scale_is_a_factor",
            )
        ],
    },
    commands=[
        f"{PYTEST}/nn/test_attention.py -k thing",
        f"{TRAIN} digits --set model.thing=1.0 {MAGNA}",
        "-c 'import magna; magna.MAGNA(4, 8, 1, thing=1.0), magna.MAGNAConv(4, 8, thing=1.0)'",
    ],
)

BACKEND = Recipe(
    new={
        # The kernels of the CPU under another name.
        "src/magna/ops/thing/kernels.py": (ROOT / "src/magna/ops/cpu/bindings.py")
        .read_text()
        .replace('Path(__file__).with_name("libmagna.so")', 'Path(__file__).parents[1] / "cpu" / "libmagna.so"')
    },
    changed={
        "src/magna/ops/backend/registry.py": [('MODULES["thing"] = "magna.ops.thing.kernels"', "DTYPES = (")],
        "src/magna/typing.py": [('Backend = Literal["auto", "reference", "cpu", "triton", "thing"]', "Mode = ")],
    },
    commands=[f"{PYTEST}/ops/test_contract.py -k 'thing and (odd_sizes or alpha or edge_scores or no_silent)'"],
)

KERNEL = Recipe(
    new={
        "src/magna/ops/thing.py": """
import torch
from torch import Tensor
from magna.ops import reference
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import choose, kernels

def thing(x: Tensor, backend: str = "auto") -> Tensor:
    chosen = choose(backend, x.device)
    return reference.thing(x) if chosen == "reference" else thing_op(x, chosen)

@fused_op("magna::thing", lambda x, backend: torch.empty_like(x))
def thing_op(x: Tensor, backend: str) -> Tensor:
    return kernels(backend).thing(x.contiguous())

@thing_op.register_autograd(lambda ctx, inputs, output: setattr(ctx, "backend", inputs[1]))
def _(ctx, grad):
    return thing_op(grad, ctx.backend), None
"""
    },
    changed={
        "src/magna/ops/reference.py": [("def thing(x: Tensor) -> Tensor:\n    return 2 * x\n\n", "def edge_softmax(")],
        "src/magna/ops/__init__.py": [
            ("from magna.ops.thing import thing", "from magna.ops.weights"),
            ('    "thing",', '    "truncation_error",'),
        ],
        "src/magna/ops/backend/registry.py": [
            ("    def thing(self, x: Tensor) -> Tensor: ...\n", "    def edge_softmax(self")
        ],
        "src/magna/ops/cpu/kernels/nodes.cpp": [
            (
                "KERNEL(thing, f64, const double* x, double* out, int64_t size, int64_t threads) {\n"
                "    for (int64_t i = 0; i < size; ++i) out[i] = 2 * x[i];\n}\n"
                "KERNEL(thing, f32, const float* x, float* out, int64_t size, int64_t threads) {\n"
                "    for (int64_t i = 0; i < size; ++i) out[i] = 2 * x[i];\n}",
                "#define SIZES",
            )
        ],
        "src/magna/ops/cpu/bindings.py": [
            ('    "thing": {torch.float64: "f64", torch.float32: "f32"},', '    **dict.fromkeys(("top_k_mask"'),
            (
                "def thing(x: Tensor) -> Tensor:\n    out = empty(x.shape, x)\n"
                '    _run("thing", x, out, x.numel())\n    return out\n\n',
                "def edge_softmax(",
            ),
        ],
        "src/magna/ops/triton/kernels.py": [
            ("from magna.ops.reference import thing  # no kernel yet", "from magna.ops.triton.draw"),
        ],
        "src/magna/ops/self_check.py": [
            ("from magna.ops.thing import thing", "from magna.typing import Backend"),
            (
                "def _thing(inputs: _Inputs, backend: str) -> tuple[Tensor, ...]:\n"
                "    return (thing(inputs.leaf(_NODES, 2), backend=backend),)\n\n",
                "_OF_GRAPHS: dict",
            ),
            ('    "thing": _thing,', "}\n# On other backends"),
        ],
        "tests/ops/test_contract.py": [
            (
                """def test_thing(fused: Backend, calls: Calls) -> None:
    from magna.ops import thing
    x, grad = uniform(5, 3, seed=0), uniform(5, 3, seed=1)
    run = lambda backend: with_gradients(partial(thing, backend=backend), grad, x=x)
    same(run(fused), run("reference"))
    assert calls[fused, "thing"] == 2


""",
                '@pytest.mark.parametrize("alpha", [0.2',
            )
        ],
    },
    # The machine's best instruction sets are left out, which makes the build three times as fast.
    commands=[
        '-c \'import os, platform, runpy, sys; os.chdir(".."); platform.machine = str; '
        'sys.argv = ["setup.py", "-q", "build_ext", "--inplace"]; runpy.run_path("setup.py", run_name="__main__")\'',
        f"{PYTEST}/ops/test_contract.py -k 'test_thing and cpu'",
        f"{PYTEST}/ops/test_self_check.py -k every_",
    ],
)

RECIPES = {
    "A data set": DATA,
    "A node model": NODE_MODEL,
    "A link model": LINK_MODEL,
    "A decoder": DECODER,
    "A layer option": OPTION,
    "A backend": BACKEND,
    "A kernel": KERNEL,
}


def listed_files(section: str) -> set[str]:
    """The files of the table of a recipe."""
    return {path.replace("NAME", NAME) for path in re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)}


def copy_project(folder: Path) -> None:
    """Copy the parts of the project that run."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder)


def follow(recipe: Recipe, folder: Path) -> None:
    """Write the files of a recipe into a copy."""
    for path, text in recipe.new.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for path, insertions in recipe.changed.items():
        text = (folder / path).read_text()
        for lines, following in insertions:
            before, mark, after = text.partition(f"\n{following}")
            assert mark, f"{path} has no line {following!r}"
            text = f"{before}\n{lines}{mark}{after}"
        (folder / path).write_text(text)


@pytest.mark.parametrize("title", RECIPES)
def test_the_page_lists_the_files(title: str) -> None:
    assert listed_files(SECTIONS[title]) == RECIPES[title].files


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_no_other_file_has_to_change(title: str, tmp_path: Path) -> None:
    recipe = RECIPES[title]
    copy_project(tmp_path)
    follow(recipe, tmp_path)
    (tmp_path / "work").mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(tmp_path)])}
    for command in recipe.commands:
        done = subprocess.run(
            f"{sys.executable} {command}",
            shell=True,
            cwd=tmp_path / "work",
            env=environment | {"MAGNA_CPU_ISA": "baseline"} if title == "A kernel" else environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_file_that_the_page_names_exists() -> None:
    required = {path for title, recipe in RECIPES.items() for path in recipe.new if title in SECTIONS}
    for path in re.findall(r"`([\w./-]+\.(?:py|toml|txt|cpp|h|md|yml|yaml|cff))`", PAGE):
        real = path.replace("NAME", NAME)
        assert real in required or (ROOT / path).exists() or [*(ROOT / "docs").rglob(path)], path
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert link.startswith("http") or (ROOT / link).exists(), link
