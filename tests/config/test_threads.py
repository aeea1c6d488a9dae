"""Cores that other programs use: busy time of the machine minus that of this process."""

from __future__ import annotations

import time

import pytest

from magna.config import threads as cores


@pytest.mark.parametrize(
    ("machine", "ours", "others"),
    [
        ((5.0, 5.8), (1.0, 1.2), 1.2),  # 0.8 s of work in half a second, 0.2 of them ours
        ((5.0, 5.1), (1.0, 1.2), 0.0),  # the machine counts in steps of its own
        ((None, 5.1), (1.0, 1.2), None),
    ],
)
def test_cores_of_others(
    machine: tuple[float | None, float],
    ours: tuple[float, float],
    others: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name, values in (
        (cores, "_busy_seconds", machine),
        (time, "process_time", ours),
        (time, "perf_counter", (0.0, 0.5)),
    ):
        monkeypatch.setattr(module, name, iter(values).__next__)
    with cores.other_cores() as others_busy:
        busy = others_busy()
    monkeypatch.undo()
    assert busy == (None if others is None else pytest.approx(others))


def test_busy_time_grows_with_work() -> None:
    before = cores._busy_seconds()
    if before is None:
        pytest.skip("there is no /proc/stat")
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    after = cores._busy_seconds()
    assert after is not None and after - before >= 0.05
