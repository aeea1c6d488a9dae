"""The program as a user meets it: output, exit status, one line for an error, and a kill in the middle."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magna import __version__, cli

FAST = [
    *(
        "--set",
        "model.hidden_channels=16",
        "--set",
        "model.num_layers=1",
        "--set",
        "model.heads=4",
        "--set",
        "model.K=2",
    ),
    *("--device", "cpu"),
]


def _magna(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["magna", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_is_quick_and_does_not_load_torch() -> None:
    code = "import sys, magna.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    # Processor time, not the clock: the promise is about the program, not about what else the machine does.
    assert min(_processor_seconds([sys.executable, "-m", "magna", "--help"]) for _ in range(3)) < 0.5


def _processor_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("command", [["train"], ["evaluate"], ["bench"], ["data", "list"], ["data", "get"]])
def test_every_command_has_help_with_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert _magna(monkeypatch, *command, "--help") == 0
    assert f"Example: magna {' '.join(command)}" in capsys.readouterr().out


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _magna(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"magna {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "digit"], "did you mean 'digits'"),
        (["train", "nowhere.toml"], "nowhere.toml is not there"),
        (["train", "--set", "model.aplha=1"], "did you mean model.alpha"),
        (["train", "--set", "model.alpha=-1", "--device", "cpu"], "alpha is -1"),
        (["train", "--set", "data.name=karate", "--device", "cpu"], "allowed: digits"),
        (["train", "--sedes", "3"], "--seeds"),
        (["train", "--seeds", "0"], "--seeds"),
        (["train", "--device", "tpu"], "cuda"),
        (["train", "--resume", "--run-dir", "nowhere"], "no run to go on with"),
        (["evaluate", "nowhere"], "holds no run"),
        (["evaluate"], "try magna evaluate --help"),
        (["bench", "--graph", "karate"], "allowed: cora"),
        (["data", "get", "karate"], "allowed: digits"),
        (["sing"], "No such command"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert _magna(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    *progress, line = err.splitlines()
    assert line.startswith("magna: ") and words in line
    assert all(text.startswith("recipe ") or ": 1,797 nodes" in text for text in progress)
    assert out == ""


def test_a_failed_run_is_status_1_and_v_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", *FAST, "--set", "train.lr=1e30", "--set", "train.clip=0"]
    assert _magna(monkeypatch, *arguments) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert _magna(monkeypatch, *arguments, "-v") == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and "smaller train.lr" in err.splitlines()[-1]


def test_train_and_evaluate_print_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _magna(monkeypatch, "train", *FAST, "--set", "train.epochs=3", "--json") == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["recipe"] == "digits" and result["runs"][0]["run_dir"] == "runs/digits"
    assert "epoch 3/3" in err
    assert _magna(monkeypatch, "evaluate", "runs/digits", "--split", "valid", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert list(again) == ["task", "dataset", "split", "metrics"]
    assert again["metrics"] == result["runs"][0]["valid"]

    # A second run gets a folder of its own; a folder that is named twice is refused.
    assert _magna(monkeypatch, "train", *FAST, "--set", "train.epochs=1") == 0
    assert "run folder: runs/digits-2" in capsys.readouterr().out
    assert _magna(monkeypatch, "train", *FAST, "--run-dir", "runs/digits") == 2


def test_runs_of_several_seeds_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*FAST, "--set", "train.epochs=1", "--set", "train.seed=9"]
    assert _magna(monkeypatch, "train", *settings, "--seeds", "2", "--run-dir", "many", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    again = ["train", "--resume", "--run-dir", "many", "--device", "cpu"]
    assert _magna(monkeypatch, *again) == 2
    assert "several seeds" in capsys.readouterr().err
    assert _magna(monkeypatch, *again, "--seeds", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == result


def test_data_list_and_get(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _magna(monkeypatch, "data", "list", "--data-dir", "empty", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert rows["digits"]["here"] and not rows["cora"]["here"]
    assert _magna(monkeypatch, "data", "list", "--data-dir", "empty") == 0
    assert "github.com/kimiyoung/planetoid" in capsys.readouterr().out
    assert _magna(monkeypatch, "data", "get", "digits") == 0
    assert "comes with the installation" in capsys.readouterr().out


def test_a_killed_run_goes_on_bit_for_bit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = [*FAST, "--set", "train.epochs=100"]
    # Checkpoints come every few seconds; here they come at every epoch.
    code = "from magna import cli, train; train.CHECKPOINT_SECONDS = 0.0; cli.main()"
    command = [sys.executable, "-c", code, "train", *settings, "--run-dir", "killed"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and len(metrics.read_bytes().splitlines()) >= 5):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "summary.json").exists()
    assert _magna(monkeypatch, "train", "--resume", "--run-dir", "killed", "--device", "cpu") == 0
    assert _magna(monkeypatch, "train", *settings, "--run-dir", "whole") == 0
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
