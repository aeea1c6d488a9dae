"""One definition of an option: its dataclass field, which layers, models and files read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import magna
from magna.config.layers import BlockOptions, ConvOptions, ConvSettings, EncoderOptions, MAGNAOptions
from magna.nn import MAGNA, MAGNABlock, MAGNAConv

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
