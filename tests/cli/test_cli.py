"""The program as a user meets it: output, exit status, one line for an error, and a kill in the middle."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import typer
from tests.support.running import Program, sign

from magna import __version__
from magna.cli import command as commands
from magna.cli.command import finish
from magna.cli.predict import check_file, show_nodes
from magna.config.schema import DEFAULT_RECIPE
from magna.training import run_folder as run
from magna.training.checkpoint import load_checkpoint

SMALL = ("model.hidden_channels=16", "model.num_layers=1", "model.heads=4", "model.K=2")
FAST = [*(word for setting in SMALL for word in ("--set", setting)), "--device", "cpu"]
LONG = "n" * 300
CORES = os.cpu_count() or 1


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_loads_neither_torch_nor_the_settings() -> None:
    code = (
        "import sys, magna.cli; sys.exit(len({'torch', 'magna.config.schema', 'importlib.metadata'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_names_the_default_recipe(program: Program) -> None:
    assert f"Default: {DEFAULT_RECIPE}." in " ".join(program("plan", "--help")[0].split())


@pytest.mark.slow
def test_a_run_describes_its_model(program: Program) -> None:
    said = program("train", "families", *FAST, "--set", "train.epochs=1", "--set", "model.skip_channels=8")[1]
    assert "× 16 magna, heads=4, K=2," in said and ", skip_channels=8 · cpu" in said


def test_version(program: Program) -> None:
    assert program("--version")[0] == f"magna {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "digit"], "did you mean 'digits'"),
        (["train", "nowhere.toml"], "recipe is 'nowhere.toml'"),
        (["train", "--set", "model.aplha=1"], "did you mean 'model.alpha'"),
        (["train", "--set", "model.alpha=-1", "--device", "cpu"], "model.alpha is -1"),
        (["train", "--set", "model.heads=7", "--device", "cpu"], "model.heads is 7; allowed: divisors of hidden_ch"),
        (["train", "--set", "data.name=karate", "--device", "cpu"], "allowed: digits"),
        (["train", "--sedes", "3"], "--seeds"),
        (["train", "--epochs", "3"], "try --set train.epochs=3 or magna train --help"),
        (["plan", "--lr=0.1"], "try --set train.lr=0.1 or magna plan --help"),
        (["train", "--epochs", "--json"], "try --set train.epochs=VALUE or magna train --help"),
        (["evaluate", "run", "--epochs", "3"], "No such option: --epochs; try magna evaluate --help"),
        (["train", "--data-dir"], "try magna train --help"),
        (["train", "--set", "foo=1"], "setting is 'foo'; allowed: a key such as train.epochs or model.alpha"),
        (["train", "--seeds", "0"], "--seeds"),
        (["train", "--device", "tpu"], "cuda"),
        (["train", "--resume", "--run-dir", "nowhere"], "holds no run to resume"),
        (["evaluate", "nowhere"], "holds no run"),
        (["predict", "nowhere"], "holds no run"),
        (["predict", "nowhere", "--out", "a.xls"], "--format is 'xls'; allowed: 'csv', 'tsv', 'json', 'parquet'"),
        (["predict", "nowhere", "--out", "no/where/a.csv"], "allowed: a file in an existing folder"),
        (["predict", "nowhere", "--out", "/dev/null", "--format", "csv"], "allowed: a file in an existing folder"),
        (["predict", "nowhere", "--format", "csv"], "allowed: with --out FILE"),
        (["predict", "nowhere", "--top", "3"], "allowed: with --head, --tail or --queries"),
        (["plan", "digit"], "did you mean 'digits'"),
        (["plan", "--set", "model.aplha=1"], "did you mean 'model.alpha'"),
        (["evaluate"], "try magna evaluate --help"),
        (["bench", "--graph", "karate"], "--graph is 'karate'; allowed: 'cora'"),
        (["data", "get", "cora2"], "data set is 'cora2'; did you mean 'cora'?"),
        (["sing"], "No such command"),
        (["train", LONG], "File name too long; try a shorter one"),
        (["train", "--run-dir", LONG, "--device", "cpu"], "File name too long; try a shorter one"),
        (["predict", LONG], "File name too long; try a shorter one"),
        (["predict", "nowhere", "--out", f"{LONG}.csv"], "File name too long; try a shorter one"),
        (["data", "audit", LONG], "File name too long; try a shorter one"),
        (["data", "list", "--data-dir", LONG], "File name too long; try a shorter one"),
        (["reproduce", "table1", "--out", LONG], "a folder that can be made (File name too long)"),
        (["reproduce", "table9"], "experiment is 'table9'; did you mean 'table1'? allowed: 'table1', 'table2'"),
        (["reproduce", "tabel7"], "did you mean 'table7'?"),
        (["data", "audit", "nowhere"], "allowed: 'digits', 'cora'"),
        (["data", "audit", "families", "--set", "data.undirected=false"], "families is a knowledge graph"),
        (["data", "audit", "ogbn-arxiv", "--data-dir", "empty"], "data.features=stand-in"),
        (["train", "--set", "data.split=public2"], "allowed: 'public', 'random'"),
        (["train", "families", "--together"], "--together is True; allowed: False for link prediction"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(program: Program, arguments: list[str], words: str) -> None:
    out, err = program(*arguments, status=2)
    *progress, line = err.splitlines()
    assert line.startswith("magna: ") and words in line
    assert all(text.startswith("recipe ") or ": 1,797 nodes" in text for text in progress)
    assert out == ""


def test_a_failed_run_is_status_1_and_v_shows_where(program: Program) -> None:
    arguments = ["train", *FAST, "--set", "train.lr=1e30", "--set", "train.clip=0"]
    assert "Traceback" not in program(*arguments, status=1)[1]
    err = program(*arguments, "-v", status=1)[1]
    assert "Traceback" in err and "smaller train.lr" in err.splitlines()[-1]


def test_train_and_evaluate_print_one_json_object(program: Program) -> None:
    out, err = program("train", *FAST, "--set", "train.epochs=3", "--json")
    result = json.loads(out)
    assert result["recipe"] == "digits" and result["runs"][0]["run_dir"] == "runs/digits"
    assert "epoch 3/3" in err
    again = json.loads(program("evaluate", "runs/digits", "--split", "valid", "--json")[0])
    parts = ["metrics", "classes", "confusion", "calibration", "trivial", "remarks", "notes"]
    assert list(again) == ["task", "dataset", "split", *parts]
    assert (len(again["classes"]), len(again["confusion"]["rows"]), again["calibration"]["n"]) == (10, 10, 500)
    assert sum(map(sum, again["confusion"]["rows"])) == 500
    first = json.loads(program("evaluate", "runs/digits", "--metric", "macro_f1", "--json")[0])["metrics"]
    assert next(iter(first)) == "macro_f1"
    assert "allowed: accuracy" in program("evaluate", "runs/digits", "--metric", "mae", status=2)[1]
    assert again["metrics"] == result["runs"][0]["valid"]

    # A second run gets a folder of its own; a folder that is named twice is refused.
    out, err = program("train", *FAST, "--set", "train.epochs=1")
    assert "run folder: runs/digits-2" in out
    assert "note: runs/digits exists; this run writes runs/digits-2" in err
    assert "it holds no run (no config.toml); try runs/digits" in program("evaluate", "runs/digit", status=2)[1]
    program("train", *FAST, "--run-dir", "runs/digits", status=2)


def test_runs_of_several_seeds_go_on(program: Program) -> None:
    settings = [*FAST, "--set", "train.epochs=1", "--set", "train.seed=9"]
    result = json.loads(program("train", *settings, "--seeds", "2", "--run-dir", "many", "--json")[0])
    again = ["train", "--resume", "--run-dir", "many", "--device", "cpu"]
    assert "several seeds" in program(*again, status=2)[1]
    assert json.loads(program(*again, "--seeds", "2", "--json")[0]) == result


def test_commands_to_copy_are_quoted(program: Program) -> None:
    folder = "my  runs; $1"
    out = program("train", *FAST, "--set", "train.epochs=1", "--run-dir", folder)[0]
    assert f"magna predict '{folder}'\n" in out and f"magna evaluate '{folder}'\n" in out
    assert f"try resuming the run in '{Path(folder).resolve()}'\n" in program("train", folder, status=2)[1]
    (Path(folder) / "summary.json").unlink()
    assert "its run has not ended; try" in program("predict", folder, status=2)[1]
    assert "magna data get cora --data-dir 'my data')" in program("data", "list", "--data-dir", "my data")[0]


def test_predict_prints_a_table_or_everything(program: Program, tmp_path: Path) -> None:
    program("train", *FAST, "--set", "train.epochs=2", "--run-dir", "run")
    ask = ["predict", "run", "--device", "cpu"]
    assert "the first 20 of 1,797 nodes" in program(*ask)[0]
    (tmp_path / "ids.txt").write_text("17\n")
    result = json.loads(program(*ask, "--node", "3", "--nodes", "ids.txt", "--json")[0])
    assert [row["id"] for row in result["nodes"]] == ["3", "17"]
    assert "1,797 nodes in all.csv" in program(*ask, "--out", "all.csv")[0]
    assert "try --force to replace it" in program(*ask, "--node", "3", "--out", "all.csv", status=2)[1]
    assert "1 node in few.csv" in program(*ask, "--node", "3", "--out", "few.csv")[0]
    assert "1 node in few.csv" in program(*ask, "--node", "3", "--out", "few.csv", "--force")[0]
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1798
    assert "allowed: 0 to 1796" in program(*ask, "--node", "1798", status=2)[1]


@pytest.mark.parametrize(("answer", "replaced"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_person_is_asked_before_a_file_is_replaced(
    answer: str, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", Terminal())
    Path("answers.csv").touch()
    with nullcontext() if replaced else pytest.raises(ValueError, match="try --force to replace it"):
        check_file(Path("answers.csv"), None, force=False)


def test_names_are_printed_letter_by_letter(capsys: pytest.CaptureFixture[str]) -> None:
    shares = {"[red]": 0.75, ":cat:": 0.25}
    row = {"id": "[/b]", "label": "[red]", "probability": 0.75, "probabilities": shares, "true_label": ":cat:"}
    show_nodes({"dataset": "mine", "nodes": [row]})
    out = capsys.readouterr().out
    assert all(name in out for name in ("[/b]", "[red]", ":cat: 25.0 %"))


LITTLE_MEMORY = "memory is not enough (.*); magna plan says what a run needs and what would make it smaller"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (OSError(errno.ENOENT, "No such file or directory", "gone"), 1, "gone: No such file or directory"),
        (
            PermissionError(errno.EACCES, "Permission denied", "kept/train.tsv"),
            2,
            "kept/train.tsv: Permission denied; try a file or folder that you may read and write",
        ),
        (MemoryError(), 1, LITTLE_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, LITTLE_MEMORY),
        (torch.OutOfMemoryError("CUDA"), 1, LITTLE_MEMORY),
    ],
)
@pytest.mark.parametrize("shows", [False, True], ids=["work", "show"])
def test_an_error_is_one_line(
    error: Exception, status: int, line: str, shows: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> NoReturn:
        raise error

    run = partial(finish, dict, show=fails) if shows else partial(finish, fails, show=print)
    with pytest.raises(typer.Exit) as end:
        run(verbose=False, as_json=not shows)
    assert end.value.exit_code == status and re.fullmatch(f"magna: {line}\n", capsys.readouterr().err)


@pytest.mark.slow
def test_plan_says_memory_and_time(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = program("plan", *FAST, "--seeds", "2")
    assert "timing a few steps, which --no-measure leaves out" in err
    assert "peak memory" in out and ", fits into" in out and "evaluations, " in out and "for each of 2 seeds" in out
    assert "measured: the median of" in out
    out, err = program("plan", *FAST, "--no-measure", "--json")
    result = json.loads(out)
    assert result["time"]["seconds"] is None and result["memory"]["fits"] and not err
    assert list(Path().iterdir()) == []  # nothing is left behind
    monkeypatch.setattr("magna.training.plan.MOST_SECONDS", 0.0)
    monkeypatch.setattr("magna.training.plan._SLOW_STEP", 0.0)
    out = program("plan", *FAST)[0]
    assert "evaluations, counted like a step" in out and "measured: one step and no evaluation" in out
    assert "time: not measured" in program("plan", *FAST, "--no-measure")[0]


def test_seeds_together_from_the_command_line(program: Program) -> None:
    settings = [*FAST, "--set", "train.epochs=10", "--seeds", "3", "--run-dir", "many"]
    out, err = program("train", *settings, "--together")
    assert "mean of 3 seeds" in out and "3 seeds together · epoch 10/10" in err


def test_a_run_of_another_version(program: Program) -> None:
    program("train", *FAST, "--set", "train.epochs=1", "--run-dir", "run")
    environment = Path("run/environment.json")
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {"format": 99}))
    config = Path("run/config.toml")
    config.write_text(config.read_text() + "of_tomorrow = 1\n")  # settings that only the later version knows
    sign(Path("run"), "environment.json", "config.toml")
    resume = ["train", "--resume", "--run-dir", "run"]
    for command in (["evaluate", "run"], ["predict", "run"], resume):
        line = program(*command, "--device", "cpu", status=2)[1].splitlines()[-1]
        assert "run format 99" in line and "try the version that wrote it" in line


def test_data_list_and_get(program: Program) -> None:
    listed = json.loads(program("data", "list", "--data-dir", "empty", "--json")[0])
    rows = {row["name"]: row for row in listed["datasets"]}
    assert "stand-in features" in rows["ogbn-arxiv"]["size"]
    assert rows["digits"]["here"] and not rows["cora"]["here"]
    assert "github.com/kimiyoung/planetoid" in program("data", "list", "--data-dir", "empty")[0]
    assert "comes with the installation" in program("data", "get", "digits")[0]


# Checkpoints come every few seconds; here they come at every epoch. Jobs in a shell's background ignore SIGINT.
EVERY_EPOCH = """
import os, signal, resource
from magna import cli
from magna.training import loop
from magna.training import run_folder as run
loop.CHECKPOINT_SECONDS = 0.0
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
# From the third epoch on no file may grow beyond what the small files need, as on a disk that is full.
FULL_DISK = """
rates = loop.Schedule.rates
def full_from_the_third_epoch(self, epoch):
    if epoch == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    return rates(self, epoch)
loop.Schedule.rates = full_from_the_third_epoch
"""
# A process that stops itself does so at the same moment on every machine.
AFTER_THE_TENTH_ROW = """
log = run.RunFolder.log
def log_and_stop(self, *rows):
    log(self, *rows)
    if rows[0]["epoch"] == 9:
        os.kill(os.getpid(), signal.{})
run.RunFolder.log = log_and_stop
"""
INSIDE_A_CHECKPOINT = """
replace, checkpoints = os.replace, []
def replace_or_stop(part, whole):
    checkpoints.extend([whole] * (whole.name == "state.safetensors"))
    if len(checkpoints) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(part, whole)
os.replace = replace_or_stop
"""
KILLED_AT_THE_END = """
run.RunFolder.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, "-m", "magna", "train", *FAST, "--set", "train.epochs=40", "--run-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def _start(code: str) -> subprocess.Popen[str]:
    arguments = ["train", *FAST, "--set", "train.epochs=40", "--run-dir", "run"]
    command = [sys.executable, "-c", f"{EVERY_EPOCH}\n{code}\ncli.main()", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _goes_on_bit_for_bit(program: Program, whole: Path) -> None:
    assert not Path("run/summary.json").exists()
    program("train", "--resume", "--run-dir", "run", "--device", "cpu")
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (Path("run") / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", [AFTER_THE_TENTH_ROW.format("SIGKILL"), INSIDE_A_CHECKPOINT, KILLED_AT_THE_END], ids=["row", "save", "end"]
)
def test_a_killed_run_goes_on_bit_for_bit(program: Program, never_stopped: Path, code: str) -> None:
    process = _start(code)
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    _goes_on_bit_for_bit(program, never_stopped)
    assert not list(Path("run").rglob(".*"))


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_nothing_is_lost(program: Program, never_stopped: Path) -> None:
    process = _start(FULL_DISK)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "state.safetensors could not be written (File too large)" in err.splitlines()[-1]
    assert "Traceback" not in err and not list(Path("run").rglob(".*"))
    state = load_checkpoint(run.RunFolder.open("run").checkpoint)
    assert state is not None and state[1]["epoch"] == 3
    _goes_on_bit_for_bit(program, never_stopped)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SIGINT", "SIGTERM"])
def test_a_run_that_is_asked_to_stop_says_one_line(kind: str) -> None:
    process = _start(AFTER_THE_TENTH_ROW.format(kind))
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("magna: stopped; a training run goes on with --resume")


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.002, 0.02, 0.2])
def test_a_second_ctrl_c_still_ends_in_one_line(pause: float) -> None:
    process = _start("")
    assert process.stderr is not None
    while "epoch 1/40" not in (line := process.stderr.readline()):
        assert line, "it ended before its first epoch"
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(pause)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    said = [line for line in err.splitlines() if "epoch" not in line]
    assert len(said) == 1 and said[0].startswith("magna: stopped; a training run goes on with --resume")


@pytest.mark.parametrize(
    ("others", "policy", "waits"),
    [
        (0.1, None, None),
        (CORES - 0.1, None, "passive"),
        (CORES / 2 - 0.6, None, None),  # less than half of them, in whole cores
        (CORES, "active", "active"),  # as the user says
        (None, None, None),  # a system that does not say
    ],
)
def test_threads_wait_briefly_where_others_are_at_work(
    others: float | None, policy: str | None, waits: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that it is put back as it was
        monkeypatch.delenv(name)
    if policy is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(commands, "other_cores", lambda: nullcontext(lambda: others))
    commands.share_cores()
    assert os.environ.get("OMP_WAIT_POLICY") == waits
    assert os.environ.get("GOMP_SPINCOUNT") == ("1000" if waits == "passive" else None)
