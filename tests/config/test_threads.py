"""What other programs take of the machine is what its cores do beside this one."""

from __future__ import annotations

import time

import pytest

from magna.config import threads as cores


@pytest.mark.parametrize(
    ("machine", "own", "others"),
    [
        ((5.0, 5.8), (1.0, 1.2), 1.2),  # 0.8 s of work in half a second, 0.2 of them ours
        ((5.0, 5.1), (1.0, 1.2), 0.0),  # the machine counts in steps of its own
        ((None, 5.1), (1.0, 1.2), None),
    ],
)
def test_cores_of_others(
    machine: tuple[float | None, float],
    own: tuple[float, float],
    others: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for where, name, values in (
        (cores, "_busy_seconds", machine),
        (time, "process_time", own),
        (time, "perf_counter", (0.0, 0.5)),
    ):
        monkeypatch.setattr(where, name, iter(values).__next__)
    with cores.other_cores() as found:
        said = found()
    monkeypatch.undo()
    assert said == (None if others is None else pytest.approx(others))


def test_the_time_of_all_cores_grows_where_the_system_tells_it() -> None:
    before = cores._busy_seconds()
    if before is None:
        pytest.skip("there is no /proc/stat")
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    after = cores._busy_seconds()
    assert after is not None and after - before >= 0.05
