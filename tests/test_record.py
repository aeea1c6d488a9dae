"""The comparison with the old commit notices a difference in any part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tools.record import differences, report, stale_sources
from tools.record_probe import BLOCK_OPTIONS, CONV_OPTIONS, CONVS, Draws, drawn, hashed

HASHES = {"output": "a" * 64, "gradients": "b" * 64}


def test_equal_parts_are_the_same() -> None:
    parts = {**HASHES, "losses": [1.5, None, {"mrr": 0.25}], "~losses": [3.0]}
    assert differences(parts, {**parts, "~losses": [3.00002]}) == []


@pytest.mark.parametrize(
    "new",
    [
        {**HASHES, "output": "c" * 64},
        {"output": "a" * 64},
        {**HASHES, "more": 1},
        {"failed": "ValueError: K is -1"},
        {},
    ],
)
def test_any_other_part_is_a_difference(new: dict[str, str]) -> None:
    assert differences(HASHES, new) and differences(new, HASHES)


def test_a_last_bit_of_a_loss_is_a_difference_and_a_batch_has_its_tolerance() -> None:
    losses = [1.0, 1.0 + 2**-52]
    assert differences({"losses": losses[:1]}, {"losses": losses[1:]}) == [f"losses: entry 0 is 1.0, now {losses[1]}"]
    assert differences({"~losses": [1.0]}, {"~losses": [1.00002]}) == ["losses: entry 0 is 1.0, now 1.00002"]
    assert differences({"~losses": [1.0]}, {"~losses": [float("nan")]})


def test_two_sides_that_both_fail_are_not_the_same() -> None:
    failed = {"failed": "ValueError: K is -1"}
    assert len(differences(failed, failed)) == 2


def test_every_comparison_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    other = {**HASHES, "output": "c" * 64}
    assert report({"conv": HASHES, "block": HASHES}, {"conv": HASHES, "block": other, "link": HASHES}) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["same", "conv"] and lines[1].split() == ["DIFFERS", "block"]
    assert lines[2].strip() == "output: is aaaaaaaaaaaa, now cccccccccccc"


def test_the_hash_sees_shape_type_and_bytes_but_no_order() -> None:
    x, y = torch.arange(6.0), torch.ones(2)
    assert hashed([x, y]) == hashed([y, x])
    others = [x.view(2, 3), x.double(), x.view(torch.int32), x.nextafter(torch.tensor(9.0))]
    assert len({hashed([x]), *(hashed([other]) for other in others)}) == 1 + len(others)


def test_each_value_of_each_option_is_drawn() -> None:
    settings = drawn(CONVS, CONV_OPTIONS, seed=1)
    for name, values in CONV_OPTIONS.items():
        assert {options.get(name) for options in settings} >= set(values), name
    assert all("diffusion" in options for options in drawn(4, {**CONV_OPTIONS, **BLOCK_OPTIONS}, seed=2))


def test_draws_are_seen_under_vmap() -> None:
    torch.manual_seed(0)
    with Draws() as draws:
        torch.vmap(lambda x: x + torch.randn(3), randomness="different")(torch.zeros(2, 3))
        torch.empty(4).uniform_()
    assert [line.split(" ")[0] for line in draws.seen] == ["randn", "uniform_"]


def test_a_source_that_is_newer_than_the_kernels_is_named(tmp_path: Path) -> None:
    library, sources = tmp_path / "src/magna/ops/cpu/libmagna.so", tmp_path / "src/magna/ops/cpu/kernels"
    sources.mkdir(parents=True)
    (sources / "edges.cpp").touch()
    assert stale_sources(tmp_path) is None
    library.write_bytes(b"")
    assert stale_sources(tmp_path) is None
    (sources / "edges.cpp").touch()
    modified = library.stat().st_mtime + 1
    import os

    os.utime(sources / "edges.cpp", (modified, modified))
    assert stale_sources(tmp_path) == "edges.cpp"
