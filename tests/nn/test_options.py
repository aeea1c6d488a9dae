"""One definition of an option: its dataclass field, which layers, models and files read and check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import magna
from magna.config.layers import BlockOptions, ConvOptions, ConvSettings, EncoderOptions, MAGNAOptions
from magna.nn import MAGNA, EdgeAttention, LinkPredictor, MAGNABlock, MAGNAConv

ROOT = Path(__file__).parents[2]


def test_options_come_as_one_object_flat_or_both() -> None:
    both = MAGNAConv(4, 8, options=ConvOptions(top_k=3, tanh=False), top_k=4)
    assert both.options == MAGNAConv(4, 8, top_k=4, tanh=False).options
    assert MAGNAConv(4, 8, options=ConvSettings(K=3, dropout=0.2)).options.K == 3
    assert MAGNABlock(4, 8, options=BlockOptions(K=3)).conv.options.K == 3
    assert MAGNA(4, 8, 1, options=EncoderOptions(norm="none"), K=2).config["K"] == 2
    with pytest.raises(ValueError, match="allowed: ConvSettings, or a class that it extends"):
        MAGNAConv(4, 8, options=BlockOptions())


def test_the_defaults_of_the_signature_are_those_of_the_options() -> None:
    assert MAGNAConv(4, 8).options == ConvSettings()
    assert MAGNABlock(4, 8).options == BlockOptions()
    assert MAGNA(4, 8, 1).config == MAGNA(4, 8, 1, options=EncoderOptions()).config


# Every reader of an option gets the value 3 for it; a line for each says what came of it.
READERS = """
import sys
from magna import MAGNA, MAGNABlock, MAGNAConv
from magna.config.schema import Config
from tools.settings import settings_table

name = sys.argv[1]
value = {name: 3.0}
readers = {
    "layer": lambda: getattr(MAGNAConv(4, 8, **value).options, name),
    "block": lambda: getattr(MAGNABlock(4, 8, **value).options, name),
    "model": lambda: MAGNA(4, 8, 1, **value).config[name],
    "--set": lambda: getattr(Config().with_values([f"model.{name}=3"]).model, name),
    "search": lambda: Config.from_dict({"search": {f"model.{name}": [3]}}).search[f"model.{name}"][0],
    "page": lambda: {row[0]: 3.0 for row in settings_table("model").rows}[f"`model.{name}`"],
}
for reader, read in readers.items():
    try:
        print(reader, read())
    except (AttributeError, KeyError, ValueError):
        print(reader, "fails")
"""
SCALE = re.compile(r'    score_scale: float = option\((?:[^"]|"[^"]*")*?\)\n')


@pytest.mark.parametrize(
    ("name", "field", "outcome"),
    [
        ("score_scale", "", "fails"),
        ("sharpness", r'\g<0>    sharpness: float = option(2.0, "Exponent of the attention.", above=0)\n', "3.0"),
    ],
    ids=["deleted", "added"],
)
def test_one_file_decides_which_options_every_reader_has(tmp_path: Path, name: str, field: str, outcome: str) -> None:
    """The package with one changed file, `config/layers.py`; every other file is a link."""
    package = Path(magna.__file__).parent
    (tmp_path / "magna" / "config").mkdir(parents=True)
    for folder in (".", "config"):
        for path in (package / folder).iterdir():
            if not (tmp_path / "magna" / folder / path.name).exists():
                (tmp_path / "magna" / folder / path.name).symlink_to(path)
    layers = tmp_path / "magna" / "config" / "layers.py"
    text, changes = SCALE.subn(field, layers.read_text())
    layers.unlink()
    layers.write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    done = subprocess.run([sys.executable, "-c", READERS, name], env=environment, capture_output=True, text=True)
    outcomes = dict(line.split() for line in done.stdout.splitlines())
    assert changes == 1 and outcomes == dict.fromkeys(["layer", "block", "model", "--set", "search", "page"], outcome)


SIZES: dict[Any, Any] = {EdgeAttention: (5, 4), MAGNA: (6, 16), LinkPredictor: (600, 4)}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (EdgeAttention, {"heads": 0}, "heads is 0; allowed: a whole number from 1 to 4096"),
        (EdgeAttention, {"num_relations": 0}, "num_relations is 0; allowed"),
        (EdgeAttention, {"projection": "both"}, "projection is 'both'; allowed: 'separate', 'shared'"),
        (EdgeAttention, {"negative_slope": -0.1}, "negative_slope is -0.1; allowed: 0 or more"),
        (EdgeAttention, {"score_scale": 0.0}, "score_scale is 0.0; allowed: above 0"),
        (EdgeAttention, {"init": "zeros"}, "init is 'zeros'; allowed"),
        (EdgeAttention, {"backend": "gpu"}, "backend is 'gpu'; did you mean 'cpu'\\? allowed"),
        (MAGNAConv, {"heads": 5}, "out_channels is 12; allowed: a multiple of heads, 5"),
        (MAGNAConv, {"heads": 10**9}, "heads is 1000000000; allowed: a whole number from 1 to 4096"),
        (MAGNAConv, {"num_relations": -1}, "num_relations is -1; allowed"),
        (MAGNAConv, {"K": -1}, "K is -1; allowed: 0 to 4,096"),
        (MAGNAConv, {"alpha": -0.1}, "alpha is -0.1; allowed: 0 to 1"),
        (MAGNAConv, {"alpha": float("nan")}, "alpha is nan; allowed: a finite number"),
        (MAGNAConv, {"alpha": 0.0, "mode": "exact"}, "alpha is 0.0; allowed: above 0"),
        (MAGNAConv, {"alpha": 0.0, "hop_weights": "alpha"}, "alpha is 0.0; allowed: above 0 and below 1"),
        (MAGNAConv, {"hop_weights": "theta", "mode": "exact"}, "hop_weights is 'theta'; .*; try mode 'truncated'"),
        (MAGNAConv, {"feature_dropout": 0.5, "mode": "exact"}, "feature_dropout is 0.5; allowed: 0 with mode 'exact'"),
        (MAGNAConv, {"tolerance": 0.0, "mode": "exact"}, "tolerance is 0.0; allowed"),
        (MAGNAConv, {"mode": "exact", "K": 4}, "K is 4; allowed: only with mode 'truncated'"),
        (MAGNAConv, {"mode": "whole"}, "mode is 'whole'; allowed: 'truncated', 'exact'"),
        (MAGNAConv, {"edge_dropout": 1.0}, "edge_dropout is 1.0; allowed: 0 or more and below 1"),
        (MAGNAConv, {"top_k": 0}, "top_k is 0; allowed"),
        (MAGNAConv, {"top_k_shared": True}, "top_k_shared is True; allowed: only with top_k"),
        (MAGNAConv, {"head_form": "full", "out_projection": False, "heads": 3}, "out_channels is 12; allowed: 18"),
        (MAGNAConv, {"attention_dropout": 0.5}, "option is 'attention_dropout'; allowed: dropout, its new name"),
        (MAGNAConv, {"feature_droput": 0.5}, "option is 'feature_droput'; did you mean 'feature_dropout'"),
        (MAGNAConv, {"concat": False}, "concat is False; allowed: no such option: W_o joins the heads"),
        (MAGNABlock, {"norm": "group"}, "norm is 'group'; allowed"),
        (MAGNABlock, {"ffn_multiplier": 0}, "ffn_multiplier is 0; allowed"),
        (MAGNABlock, {"diffusion": False, "K": 9}, "K is 9; allowed: only with mode 'truncated'"),
        (
            MAGNABlock,
            {"residual": False, "residual_dropout": 0.5},
            "residual_dropout is 0.5; allowed: only with residual",
        ),
        (
            MAGNABlock,
            {"feed_forward": False, "ffn_dropout": 0.1},
            "ffn_dropout is 0.1; allowed: only with feed_forward",
        ),
        (MAGNABlock, {"head_from": "full"}, "option is 'head_from'; did you mean 'head_form'"),
        (MAGNA, {"num_layers": 0}, "num_layers is 0; allowed: a whole number from 1 to 4096"),
        (MAGNA, {"num_layers": 1, "out_channels": 0}, "out_channels is 0; allowed"),
        (MAGNA, {"num_layers": 1, "input_projection": -3}, "input_projection is -3; allowed"),
        (MAGNA, {"num_layers": 1, "final_norm": True}, "final_norm is True; allowed: 'layer', 'unbiased', 'batch'"),
        (LinkPredictor, {"decoder": "distmul"}, "decoder is 'distmul'; did you mean 'distmult'"),
        (LinkPredictor, {"entity_channels": 0}, "entity_channels is 0"),
        (LinkPredictor, {"skip_channels": -1}, "skip_channels is -1"),
        (LinkPredictor, {"embedding_std": 0.0}, "embedding_std is 0.0; allowed: above 0"),
        (
            LinkPredictor,
            {"relation_source": "entities", "relation_channels": 8},
            "relation_source is 'entities'; allowed",
        ),
        (LinkPredictor, {"add_self_loops": True}, "add_self_loops is True; allowed: no value"),
        (LinkPredictor, {"num_layers": 0, "K": 2}, "K is 2; allowed: only with num_layers above 0"),
        (LinkPredictor, {"top_q": 3}, "did you mean 'top_k'"),
    ],
)
def test_bad_options(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(*SIZES.get(kind, (6, 12)), **options)


def test_no_module_of_the_layers_retypes_an_option() -> None:
    names = "|".join(BlockOptions.options().keys() - {"backend", "init", "bias"})  # arguments of linear layers, too
    pattern = re.compile(rf"\s+({names}): [^=,]+ = (?!NamedOptions|options|settings|self)")
    for name in ("attention", "conv", "hops", "block", "encoder", "fused"):
        text = (ROOT / "src" / "magna" / "nn" / f"{name}.py").read_text()
        assert not [line for line in text.splitlines() if pattern.match(line)], name


def test_the_page_of_switches_names_options_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "switches.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| [^|]+\| `", line)]
    named = {name for row in rows if len(row) > 5 for name in re.findall(r"`(\w+)`", row[2])}
    assert len(named) > 25 and named <= MAGNAOptions.options().keys()
