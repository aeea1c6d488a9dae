"""The registry: every name of the paper's experiments, and what each entry needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from magna.paper.experiments import EXPERIMENTS
from magna.paper.registry import ALSO_CALLED, REGISTRY, entry_names, entry_of, function_of

NAMES = (
    "table1 table2 table3 table6 table7 nodes nodes-consistency ablations switches fig4a fig4b fig4c fig4d fig5 "
    "statistics search-spaces propositions complexity hops"
)


def test_every_experiment_of_the_interface_has_a_name() -> None:
    assert set(REGISTRY) == set(NAMES.split())
    assert entry_names() == [*REGISTRY, "random-splits", "all"] and ALSO_CALLED["random-splits"] == "table7"


@pytest.mark.parametrize("name", REGISTRY)
def test_an_entry_has_one_source_and_a_figure_a_function_that_draws_it(name: str) -> None:
    entry = REGISTRY[name]
    assert bool(entry.cells) != bool(entry.study)
    assert not entry.cells or entry.cells in EXPERIMENTS
    assert bool(entry.draw) == (entry.kind == "figure")
    assert all(callable(function_of(place)) for place in (entry.study, entry.draw) if place)
    assert (entry.seconds is not None) == bool(entry.study)


def test_every_trained_table_has_a_name() -> None:
    assert {entry.cells for entry in REGISTRY.values() if entry.cells} == set(EXPERIMENTS)


def test_an_unknown_name_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^experiment is 'fig6'; did you mean 'fig5'\? allowed: 'table1'"):
        entry_of("fig6")


def test_names_are_completed_without_torch() -> None:
    code = "import sys, magna.paper.registry as r; r.entry_names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
