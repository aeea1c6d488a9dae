"""One definition of an option: its dataclass field, which layers, models and files read."""

from __future__ import annotations

import re
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from magna.config.layers import BlockOptions, ConvOptions, ConvSettings, EncoderOptions, MAGNAOptions
from magna.config.options import option
from magna.nn import MAGNA, MAGNABlock, MAGNAConv
from magna.nn import conv as conv_module

ROOT = Path(__file__).parents[2]


def test_options_come_as_one_object_flat_or_both() -> None:
    both = MAGNAConv(4, 8, options=ConvOptions(top_k=3, tanh=False), top_k=4)
    assert both.options == MAGNAConv(4, 8, top_k=4, tanh=False).options
    assert MAGNAConv(4, 8, options=ConvSettings(K=3, dropout=0.2)).options.K == 3
    assert MAGNABlock(4, 8, options=BlockOptions(K=3)).conv.options.K == 3
    assert MAGNA(4, 8, 1, options=EncoderOptions(norm="none"), K=2).config["K"] == 2
    with pytest.raises(ValueError, match="allowed: ConvSettings, or a class that it extends"):
        MAGNAConv(4, 8, options=BlockOptions())


def test_a_typo_names_the_nearest_option() -> None:
    with pytest.raises(ValueError, match="option is 'feature_droput'; did you mean 'feature_dropout'"):
        MAGNA(4, 8, 1, feature_droput=0.5)
    with pytest.raises(ValueError, match="option is 'attention_dropout'; allowed: dropout, its new name"):
        MAGNABlock(4, 8, attention_dropout=0.5)


def test_the_defaults_of_the_signature_are_those_of_the_options() -> None:
    assert MAGNAConv(4, 8).options == ConvSettings()
    assert MAGNABlock(4, 8).options == BlockOptions()
    assert MAGNA(4, 8, 1).config == MAGNA(4, 8, 1, options=EncoderOptions()).config


def test_a_new_field_is_an_option_of_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class with one field more is all that changes; the layer hands the value on."""
    field = ("sharpness", float, option(2.0, "Exponent of the attention.", above=0))
    wider: Any = make_dataclass("ConvSettings", [field], bases=(ConvSettings,), frozen=True, kw_only=True)
    monkeypatch.setattr(conv_module, "ConvSettings", wider)
    assert MAGNAConv(4, 8).options.sharpness == 2.0  # type: ignore[attr-defined]
    assert MAGNAConv(4, 8, sharpness=3.0).options.sharpness == 3.0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"sharpness is -1\.0; allowed: above 0"):
        MAGNAConv(4, 8, sharpness=-1.0)


def test_no_module_of_the_layers_retypes_an_option() -> None:
    names = "|".join(BlockOptions.options().keys() - {"backend", "init", "bias"})  # arguments of linear layers, too
    pattern = re.compile(rf"\s+({names}): [^=,]+ = (?!NamedOptions|options|settings|self)")
    for name in ("attention", "conv", "hops", "block", "encoder", "fused"):
        text = (ROOT / "src" / "magna" / "nn" / f"{name}.py").read_text()
        assert not [line for line in text.splitlines() if pattern.match(line)], name


def test_the_page_of_switches_names_options_that_exist() -> None:
    page = (ROOT / "docs" / "switches.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| [^|]+\| `", line)]
    named = {name for row in rows if len(row) > 5 for name in re.findall(r"`(\w+)`", row[2])}
    assert len(named) > 25
    assert named <= MAGNAOptions.options().keys()
    for file, test in re.findall(r"(test_\w+\.py)::(test_\w+)", page):
        assert f"def {test}(" in (ROOT / "tests" / "nn" / file).read_text(), test
