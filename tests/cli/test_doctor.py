"""`magna doctor`: what it lists, and a kernel that answers wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.support.running import Program

from magna.bench import doctor
from magna.ops.backend.registry import kernels, why_not
from magna.ops.self_check import KernelCheck, check_kernels

RIGHT = KernelCheck("edge softmax", "forward", "cpu", "cpu", 1e-7, True)
WRONG = KernelCheck("diffusion", "backward", "cpu", "cpu", 0.25, False)
RAISED = KernelCheck("dropout", "forward", "cpu", "cpu", None, False, "TypeError: no kernel")


@pytest.fixture(autouse=True)
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_kernels", lambda: [RIGHT])


def test_json_has_everything(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("MAGNA_DATA_DIR", str(tmp_path))
    result = json.loads(program("doctor", "--json")[0])
    assert set(result) == {
        *("versions", "extras", "devices", "backends", "kernels", "data", "disk", "faults", "notes", "seconds")
    }
    assert {"magna", "python", "torch", "triton", "numpy", "safetensors"} <= set(result["versions"])
    assert set(result["devices"]) == {"cpu", "gpus", "auto"}
    assert {"name", "cores", "threads", "instruction_set"} <= set(result["devices"]["cpu"])
    assert {row["backend"] for row in result["backends"]} == {"cpu", "triton"}
    assert all(row["runs"] == (row["reason"] is None) for row in result["backends"])
    assert result["kernels"] == [RIGHT._asdict()] and result["faults"] == []
    places = [(place["from"], place["chosen"]) for place in result["data"]["order"]]
    assert places == [("--data-dir", False), ("MAGNA_DATA_DIR", True), ("cache", False)]
    missing = {row["name"]: row["missing"] for row in result["data"]["datasets"]}
    assert missing["digits"] == 0 and missing["cora"] > 0
    assert all(row["free_bytes"] > 0 for row in result["disk"])


def test_the_data_folder_of_the_command_comes_first(program: Program, tmp_path: Any) -> None:
    result = json.loads(program("doctor", "--data-dir", tmp_path, "--json")[0])
    assert result["data"]["folder"] == str(tmp_path) and result["data"]["order"][0]["chosen"]


def test_a_page_for_people_fits_80_columns(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out, err = program("doctor")
    assert "all is well" in out and err == ""
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"\n{topic} " in f"\n{out}" for topic in ("versions", "extras", "CPU", "GPU", "kernels", "data", "disk"))


def test_a_kernel_that_differs_is_named_and_status_1(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_kernels", lambda: [RIGHT, WRONG, RAISED])
    out, err = program("doctor", status=1)
    assert "fault: diffusion (backward) of backend cpu on cpu is off by 2.5e-01" in out
    assert err.startswith("magna: diffusion (backward) of backend cpu on cpu is off by 2.5e-01; dropout (forward)")
    out, err = program("doctor", "--json", status=1)
    assert len(json.loads(out)["faults"]) == 2 and err.count("\n") == 1


@pytest.mark.skipif(why_not("cpu", torch.device("cpu")) is not None, reason="no compiled kernels")
def test_a_wrong_kernel_is_found_by_running_it(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = (check for check in check_kernels() if check.backend == "cpu")
    monkeypatch.setattr(doctor, "check_kernels", lambda: compiled)
    monkeypatch.setattr(kernels("cpu"), "head_scores", lambda x, vector, tanh: x.new_zeros(x.shape[:3]))
    assert "magna: head scores (forward) of backend cpu" in program("doctor", status=1)[1]


def test_a_missing_extra_is_listed() -> None:
    extras = doctor._extras(['optuna>=5; extra == "search"', 'no-such-thing>=1; extra == "search"'])
    assert extras["search"]["no-such-thing"] is None
