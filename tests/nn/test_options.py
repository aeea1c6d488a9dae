"""Options that pass through: complete, and an unknown one names its neighbour."""

import re
from pathlib import Path

import pytest

from magna.nn import MAGNA, MAGNABlock, MAGNAConv
from magna.nn.options import complete, defaults


def test_given_options_stand_over_the_defaults():
    options = complete({"K": 3}, MAGNABlock, MAGNAConv)
    assert options["K"] == 3
    assert options["alpha"] == 0.1 and options["feed_forward"] is True
    assert options.keys() == defaults(MAGNABlock, MAGNAConv).keys()


def test_a_typo_names_the_nearest_option():
    with pytest.raises(
        ValueError, match="'feature_droput' is no option of MAGNABlock or MAGNAConv; did you mean 'feature_dropout'"
    ):
        MAGNA(4, 8, 1, feature_droput=0.5)
    with pytest.raises(ValueError, match="'head_from' is no option of MAGNAConv; did you mean 'head_form'"):
        MAGNABlock(4, 8, head_from="full")


def test_a_far_name_lists_what_is_allowed():
    with pytest.raises(ValueError, match=r"'zzz' is no option .*; allowed: K, add_self_loops, alpha"):
        MAGNA(4, 8, 1, zzz=1)


def test_the_page_of_switches_names_what_exists():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "switches.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| [^|]+\| `", line)]
    named = {name for row in rows if len(row) > 5 for name in re.findall(r"`(\w+)`", row[2])}
    assert len(named) > 25
    assert named <= MAGNA.defaults().keys() | {"num_layers", "hidden_channels"}
    for file, test in re.findall(r"(test_\w+\.py)::(test_\w+)", page):
        assert f"def {test}(" in (root / "tests" / "nn" / file).read_text(), test
