"""A search from end to end: counting, stopping early, choosing, its files, and that the test split stays closed."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="Optuna is not installed (the extra search)")

import torch
from rich.console import Console
from tests.support.graphs import ring_triples
from tests.support.running import Program, node_task

from magna.config.schema import Config, load_recipe
from magna.search import runs, sweep
from magna.search.report import show_search
from magna.search.study import Study
from magna.search.sweep import Plan, without
from magna.tasks import NodeClassification, make_task
from magna.training.loop import OnReport, OnResults, TrialResult

pytestmark = pytest.mark.slow

BASE = Config.from_dict(
    {
        "recipe": "toy",
        "train": {"epochs": 16},
        "search": {"model.alpha": {"low": 0.0, "high": 1.0}, "model.K, model.top_k": [2, 4]},
    }
)


class Trainer:
    """A stand-in for training: the accuracy is half of alpha plus noise by the seed, and rises evenly."""

    def __init__(self) -> None:
        self.configs: list[Config] = []
        self.noise: dict[int, float] = {}
        self.fails: BaseException | None = None
        self.fails_after = 0  # number of configs trained before it fails
        self.most_alpha = 1.0  # models with a larger alpha do not fit in memory

    def __call__(
        self,
        configs: Sequence[Config],
        task: Any,
        *,
        report_every: int,
        on_report: OnReport | None,
        on_results: OnResults,
        too_large: dict[int, str],
        **closed: Any,
    ) -> None:
        assert not closed, "a search reads neither the test split nor weights"
        if self.fails is not None and not self.fails_after:
            raise self.fails
        too_large |= {i: "out of memory" for i, one in enumerate(configs) if one.model.alpha > self.most_alpha}
        self.configs += configs
        final = [config.model.alpha / 2 + self.noise.get(config.train.seed, 0.0) for config in configs]
        epochs, stopped = [config.train.epochs for config in configs], set[int]()
        for epoch in range(report_every, max(epochs, default=0) + 1, report_every):
            running = [i for i in range(len(configs)) if i not in stopped]
            if on_report is not None:
                for i in on_report(epoch, running, [final[i] * epoch / epochs[i] for i in running]):
                    stopped.add(i)
                    epochs[i] = epoch
        for i, config in enumerate(configs):
            if self.fails is not None and i == self.fails_after:
                raise self.fails
            if i not in too_large:
                on_results({i: TrialResult(config, epochs[i], 0, 0.1, {"accuracy": final[i]}, None, [], None)})


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    trainer = Trainer()
    monkeypatch.setattr(runs, "train_trials", trainer)
    monkeypatch.setattr(sweep, "make_task", lambda *_: Toy())
    return trainer


class Toy:
    dataset, metric, SHARES_BATCH = "toy", "accuracy", True
    schema = {"fingerprint": "first"}  # noqa: RUF012

    def notes(self, config: Config) -> tuple[str, ...]:
        return ("a line was listed twice",)

    def make_model(self, model: Any) -> None:
        pass

    def objective(self, settings: Any, model: None) -> None:
        pass


COMPARABLE = sweep._comparable(BASE, Plan(1), Toy())  # type: ignore[arg-type]


def _sweep(folder: Path, config: Config = BASE, storage: str | None = None, **settings: Any) -> dict[str, Any]:
    settings = {"trials": 4, "confirm": 0, "prune": False} | settings
    say = settings.pop("say", print)
    return sweep.sweep(config, Plan(**settings), out=folder / "out", storage=storage, device="cpu", say=say)


def _trials(folder: Path) -> list[dict[str, Any]]:
    """The rows of `trials.json`."""
    rows: list[dict[str, Any]] = json.loads((folder / "out" / "trials.json").read_text())["trials"]
    return rows


def _shown(result: dict[str, Any], width: int = 200) -> str:
    """The printed table of a search."""
    text = io.StringIO()
    show_search(result, Console(file=text, width=width))
    return text.getvalue()


def test_it_goes_on_to_the_number_of_trials(tmp_path: Path, trainer: Trainer) -> None:
    _sweep(tmp_path, trials=3, batch=2)
    assert len(trainer.configs) == 3
    assert {config.train.seed for config in trainer.configs} == {1000}
    result = _sweep(tmp_path, trials=7, batch=3)
    assert result["states"] == {"complete": 7, "pruned": 0, "refused": 0, "too_large": 0, "fail": 0}
    assert len({config.model.alpha for config in trainer.configs}) == 7
    assert all(config.model.K == config.model.top_k for config in trainer.configs)
    assert _sweep(tmp_path, trials=7) == result
    assert len(trainer.configs) == 7


def test_its_files_hold_everything(tmp_path: Path, trainer: Trainer) -> None:
    result = _sweep(tmp_path, trials=9, prune=True, confirm=2, confirm_seeds=3)
    out = tmp_path / "out"
    best = load_recipe(str(out / "best.toml"))
    params = result["best"]["params"]
    assert (best.model.alpha, best.model.K, best.model.top_k) == (params["model.alpha"], *2 * (best.model.K,))
    assert best.search == BASE.search and best.train == BASE.train
    (search,) = best.source.search
    assert search.command == "magna sweep toy --sampler random --seed 0" and search.trials == 9
    for words in ("seed 1000", "best of 2", "seeds 1001 to 1003"):
        assert words in search.result
    everything = json.loads((out / "trials.json").read_text())
    assert {key: everything[key] for key in result} == json.loads(json.dumps(result))
    assert [row["number"] for row in everything["trials"]] == list(range(9))
    with (out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9 and float(rows[4]["model.alpha"]) == everything["trials"][4]["params"]["model.alpha"]
    assert {row["state"] for row in rows} == {"complete", "pruned"}
    assert result["importances"] == {}, "too few to tell"


@pytest.mark.parametrize("name", ["trials.csv", "best.toml"])
def test_files_of_others_are_kept(tmp_path: Path, trainer: Trainer, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(ValueError, match=f"it has {name} but no study .*try another out"):
        _sweep(tmp_path)
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_what_another_recipe_has_found_is_kept(tmp_path: Path, trainer: Trainer) -> None:
    _sweep(tmp_path)
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.name != "study.db"}
    words = r"holds the results of a search of toy, and this is one of other; .* another out"
    with pytest.raises(ValueError, match=words):
        _sweep(tmp_path, config=replace(BASE, recipe="other"))
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == files
    assert _sweep(tmp_path, trials=5)["states"]["complete"] == 5


@pytest.mark.parametrize(("every", "prune", "noted"), [(5, True, True), (5, False, False), (2, True, False)])
def test_validation_that_comes_too_late_to_stop_a_trial_is_said(
    tmp_path: Path, trainer: Trainer, every: int, prune: bool, noted: bool
) -> None:
    said: list[str] = []
    _sweep(tmp_path, config=BASE.with_values([f"train.eval_every={every}"]), prune=prune, say=said.append)
    words = "from epoch 2 of 16, but train.eval_every is 5, and no trial stops before its first validation"
    assert (f"note: trials may stop {words}; try train.eval_every=2" in said) == noted == ("note" in "".join(said))


def test_the_worse_half_stops_at_the_rungs(tmp_path: Path, trainer: Trainer) -> None:
    result = _sweep(tmp_path, trials=32, batch=32, prune=True)
    rows = _trials(tmp_path)
    rows.sort(key=lambda row: row["params"]["model.alpha"])
    # Of 32 the worse 16 stop after 2 of 16 epochs, of the other 16 the worse 8 after 4, and 4 after 8.
    assert [row["epochs"] for row in rows] == [2] * 16 + [4] * 8 + [8] * 4 + [16] * 4
    assert [row["state"] for row in rows] == ["pruned"] * 28 + ["complete"] * 4
    assert rows[0]["value"] == pytest.approx(rows[0]["params"]["model.alpha"] / 2 * 2 / 16)
    assert result["best"]["number"] == rows[-1]["number"]


def test_a_trial_alone_in_its_batch_is_judged_beside_all_before_it(tmp_path: Path, trainer: Trainer) -> None:
    _sweep(tmp_path, trials=48, batch=1, prune=True)
    alphas, ends = zip(*((row["params"]["model.alpha"], row["epochs"]) for row in _trials(tmp_path)), strict=True)
    # Seven trials are too few to compare; later ones stop at the first rung below the median of all before them.
    assert ends[:7] == (16,) * 7 and set(ends) == {2, 4, 8, 16}
    for place in range(7, 48):
        better_half = sorted(alphas[: place + 1], reverse=True)[: math.ceil((place + 1) / 2)]
        assert (ends[place] == 2) == (alphas[place] not in better_half), place


def test_a_study_of_other_data_is_refused(tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _sweep(tmp_path, trials=2)["notes"] == ["a line was listed twice"]
    monkeypatch.setattr(Toy, "schema", {"fingerprint": "second"})
    with pytest.raises(ValueError, match=r"was started with another content of its data; try .* another out"):
        _sweep(tmp_path, trials=3)


def test_a_search_whose_trials_all_diverge_is_an_error(tmp_path: Path, trainer: Trainer) -> None:
    with pytest.raises(RuntimeError, match=r"every trial diverged; try smaller values of train\.lr"):
        _sweep(tmp_path, replace(BASE, search={"model.alpha": [0.0]}))  # a score of 0


def test_several_seeds_count_by_their_mean(tmp_path: Path, trainer: Trainer) -> None:
    trainer.noise = {1000: 0.3, 1001: -0.1}
    result = _sweep(tmp_path, seeds_per_trial=2, prune=True, trials=10)
    assert [config.train.seed for config in trainer.configs] == [1000, 1001] * 10
    for row in result["top"]:
        assert row["value"] == pytest.approx(row["params"]["model.alpha"] / 2 + 0.1)


def test_the_choice_is_confirmed_with_further_seeds(tmp_path: Path, trainer: Trainer) -> None:
    result = _sweep(tmp_path, trials=6, batch=4, confirm=3, confirm_seeds=2)
    again = trainer.configs[6:]
    assert [config.train.seed for config in again] == [1001, 1002] * 3
    alphas = sorted(config.model.alpha for config in trainer.configs[:6])
    assert {config.model.alpha for config in again} == set(alphas[-3:])
    assert [row["confirmed"] is None for row in result["top"]] == [False] * 3 + [True] * 2
    # The best of the search is luck: with the further seeds the third is better.
    study = Study(f"sqlite:///{tmp_path / 'out' / 'study.db'}", "toy", BASE.search, COMPARABLE)
    study.confirm(study.best()[2].number, [1001, 1002], [0.9, 0.9])
    result = _sweep(tmp_path, trials=6, confirm=3, confirm_seeds=2)
    assert len(trainer.configs) == 12 and result["best"]["number"] == study.best()[2].number
    assert result["best"]["confirmed"] == pytest.approx(0.9)


def test_what_others_have_confirmed_meanwhile_is_not_trained_again(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.sample", lambda parts, count: parts[::-1])  # begins with the last
    _sweep(tmp_path, trials=6)
    study = Study(f"sqlite:///{tmp_path / 'out' / 'study.db'}", "toy", BASE.search, COMPARABLE)
    best = study.best()

    def meanwhile(*arguments: Any, **options: Any) -> None:
        study.confirm(best[1].number, [1001, 1002], [0.9, 0.9])
        trainer(*arguments, **options)

    monkeypatch.setattr(runs, "train_trials", meanwhile)
    result = _sweep(tmp_path, trials=6, batch=2, confirm=3, confirm_seeds=2)
    again = [config.model.alpha for config in trainer.configs[6:]]
    assert again == [best[place].params["model.alpha"] for place in (2, 2, 0, 0)]
    assert result["confirmed"] == 3 and result["best"]["number"] == best[1].number


def test_names_of_settings_are_whole_in_a_narrow_terminal(tmp_path: Path, trainer: Trainer) -> None:
    result = _sweep(tmp_path, trials=6, batch=6)
    row = {"params": {"model.dropout": 0.123456789, "train.weight_decay": 1.23456e-06}}
    out = _shown(result | {"top": [one | row for one in result["top"]]}, width=80)
    assert "…" not in out and "train.weight_decay" in out


def test_what_does_not_fit_in_memory_is_refused(tmp_path: Path, trainer: Trainer) -> None:
    trainer.most_alpha = 0.6
    result = _sweep(tmp_path, trials=12, batch=12, seeds_per_trial=2)
    rows = _trials(tmp_path)
    count = result["states"]["too_large"]
    assert 0 < count == sum(row["params"]["model.alpha"] > 0.6 for row in rows) < 12
    for row in rows:
        large = row["params"]["model.alpha"] > 0.6
        assert (row["state"], row["refused"]) == (("too_large", "out of memory") if large else ("complete", None))
        assert large or row["value"] == pytest.approx(row["params"]["model.alpha"] / 2)
    assert _sweep(tmp_path, trials=12, seeds_per_trial=2) == result
    out = _shown(result)
    assert f"{count} of 12 trials did not fit in memory: out of memory" in out and "built" not in out
    story = load_recipe(str(tmp_path / "out" / "best.toml")).source.search[-1].result
    assert f"not counting {count} that did not fit in memory" in story and "built" not in story
    # Nor does it end a search where only the further seeds do not fit.
    trainer.most_alpha = 0.0
    said: list[str] = []
    assert _sweep(tmp_path, trials=12, seeds_per_trial=2, confirm=1, say=said.append)["confirmed"] == 0
    assert said[-1] == f"trial {result['best']['number']} is not confirmed: out of memory"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no more")])
def test_trials_that_are_done_outlast_a_stop(tmp_path: Path, trainer: Trainer, error: BaseException) -> None:
    """Of four trials with two seeds each, two and a half are done: the others are begun again."""
    trainer.fails, trainer.fails_after = error, 5
    with pytest.raises(type(error)):
        _sweep(tmp_path, seeds_per_trial=2)
    trainer.fails, trainer.configs = None, []
    result = _sweep(tmp_path, seeds_per_trial=2)
    assert result["states"] == {"complete": 4, "pruned": 0, "refused": 0, "too_large": 0, "fail": 2}
    assert len(trainer.configs) == 4, "two trials"
    rows = _trials(tmp_path)
    assert len({row["params"]["model.alpha"] for row in rows if row["state"] == "complete"}) == 4, "none of them twice"
    # The settings of trials that were stopped by hand are drawn again.
    again = [row["params"] for row in rows[2:4]] == [row["params"] for row in rows[4:]]
    assert again == isinstance(error, KeyboardInterrupt)
    assert "2 more were interrupted and do not count" in _shown(result)
    # So do those that were trained again with further seeds.
    trainer.fails, trainer.fails_after = error, 5
    with pytest.raises(type(error)):
        _sweep(tmp_path, seeds_per_trial=2, confirm=4, confirm_seeds=2)
    trainer.fails, trainer.configs = None, []
    assert _sweep(tmp_path, seeds_per_trial=2, confirm=4, confirm_seeds=2)["confirmed"] == 4
    assert len(trainer.configs) == 4, "two trials"


def test_a_trial_that_was_given_up_is_no_peer(tmp_path: Path) -> None:
    study = Study(f"sqlite:///{tmp_path}/study.db", "toy", {"model.alpha": [0.1]}, {})
    for value in (0.5, 0.6):
        trial = study.ask()
        study.report(trial, value, 10)
    study.give_up([trial], again=True)
    assert study.values_at(10) == [0.5]


# Each value is allowed, but not every two of them.
CLASHING = Config.from_dict(
    BASE.to_dict()
    | {
        "train": {"epochs": 16, "patience": 400},
        "search": {"train.eval_every": [1, 300], "train.patience": [100, 400], "model.alpha": {"low": 0.1, "high": 1}},
    }
)


def test_settings_that_do_not_go_together_are_refused_and_the_search_goes_on(tmp_path: Path, trainer: Trainer) -> None:
    result = _sweep(tmp_path, CLASHING, trials=12, batch=5)
    states = result["states"]
    assert states["refused"] > 0 and states["complete"] == 12 - states["refused"] == len(trainer.configs)
    assert states["fail"] == 0 and "eval_every is 300; allowed: at most patience, 100" in result["refused"]["refused"]
    rows = _trials(tmp_path)
    for row in rows:
        clash = (row["params"]["train.eval_every"], row["params"]["train.patience"]) == (300, 100)
        assert (row["state"], row["refused"]) == (
            ("refused", result["refused"]["refused"]) if clash else ("complete", None)
        )
    # They are counted and not tried again.
    assert _sweep(tmp_path, CLASHING, trials=12) == result
    assert len(trainer.configs) == states["complete"]
    assert f"{states['refused']} of 12 trials could not be built: train.eval_every is 300" in _shown(result)
    best = load_recipe(str(tmp_path / "out" / "best.toml"))
    assert f"not counting {states['refused']} that could not be built" in best.source.search[-1].result
    assert best.search == CLASHING.search


def test_where_no_settings_give_a_model_the_error_says_why(tmp_path: Path, trainer: Trainer) -> None:
    clashing = replace(CLASHING, search={"train.eval_every": [300], "train.patience": [100]})
    for trials in (3, 4):
        with pytest.raises(ValueError, match=f"^{trials} of {trials} trials could not be built: train.eval_every is"):
            _sweep(tmp_path, clashing, trials=trials)
    assert trainer.configs == [] and not (tmp_path / "out" / "best.toml").exists()


def test_a_full_disk_keeps_the_files_of_the_last_call(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sweep(tmp_path, trials=2)
    files = {name: (tmp_path / "out" / name).read_bytes() for name in ("best.toml", "trials.csv", "trials.json")}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"trials.csv could not be written .* make room, then the same command"):
        _sweep(tmp_path, trials=3)
    monkeypatch.undo()
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == files
    assert not list((tmp_path / "out").glob(".*part"))


def test_it_waits_for_the_trials_of_another_process(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "WAIT_SECONDS", 0.05)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    other = Study(url, "toy", BASE.search, COMPARABLE)
    trial = other.ask()

    def finish() -> None:
        time.sleep(0.5)
        other.end(trial, "COMPLETE", 0.99, record={"epochs": 16, "seconds": 1.0})

    with other.alive([trial]):
        thread = threading.Thread(target=finish)
        thread.start()
        result = _sweep(tmp_path, storage=url)
        thread.join()
    assert len(trainer.configs) == 3 and result["states"]["complete"] == 4
    assert result["best"]["value"] == 0.99


def test_the_test_split_stays_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real training on digits: test labels that nobody could use change nothing."""
    config = load_recipe("digits").with_values(
        ["model.hidden_channels=16", "model.num_layers=1", "model.K=2", "train.epochs=6", "task.consistency=0.5"]
    )
    config = without(config.with_settings({"train.lr": 0.03}), ["train.lr"])
    plan = Plan(trials=4, confirm=1, confirm_seeds=2)
    clean = sweep.sweep(config, plan, out=tmp_path / "clean", device="cpu")

    nodes = NodeClassification.nodes

    def poisoned(*arguments: Any) -> NodeClassification:
        task = node_task(*arguments)
        task._y[nodes(task, "test")] = 10**6  # a class that is not there: the loss would raise
        return task

    def closed(self: NodeClassification, split: str, *arguments: Any) -> torch.Tensor:
        assert split != "test"
        return nodes(self, split, *arguments)

    monkeypatch.setattr(sweep, "make_task", poisoned)
    monkeypatch.setattr(NodeClassification, "nodes", closed)
    result = sweep.sweep(config, plan, out=tmp_path / "poisoned", device="cpu")
    assert result["best"] | {"seconds": 0} == clean["best"] | {"seconds": 0}
    assert "test" not in {key for row in result["top"] for key in row}
    assert result["best"]["value"] > 0.3


def test_a_batch_that_patience_has_ended_says_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SAY_SECONDS", 0)
    sets = ["model.hidden_channels=16", "model.num_layers=1", "model.K=1", "train.epochs=40", "train.patience=12"]
    config = without(load_recipe("digits").with_values([*sets, "train.lr=1e-9", "train.min_lr=1e-9"]), ["train.lr"])
    said: list[str] = []
    sweep.sweep(config, Plan(trials=1, confirm=0), out=tmp_path, device="cpu", say=said.append)
    assert any("1 running" in line for line in said) and not any("0 running" in line for line in said)


def test_the_command(tmp_path: Path, trainer: Trainer, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "make_task", make_task)
    monkeypatch.chdir(tmp_path)
    arguments = ["digits", "--trials", "3", "--confirm", "0", "--set", "train.lr=0.01", "--device", "cpu"]
    result = json.loads(program("sweep", *arguments, "--json")[0])
    assert result["out"] == "sweeps/digits"
    assert set(result["best"]["params"]) == {"model.input_dropout", "train.weight_decay"}
    assert all(config.train.lr == 0.01 for config in trainer.configs)
    out, err = program("sweep", *arguments)
    assert "the best of 3 trials" in out and "magna train sweeps/digits/best.toml" in out
    assert "3 of 3 trials are done" in err
    assert "magna train 'my sweep/best.toml'\n" in program("sweep", *arguments, "--out", "my sweep")[0]
    # What means something else in a URL is a letter of a folder's name; an empty URL is not the one of the folder.
    for folder in ("a?b=c", "{a}", "a%20b"):
        program("sweep", *arguments, "--out", folder)
        assert (tmp_path / folder / "study.db").is_file()
    assert "cannot be opened" in program("sweep", *arguments, "--storage", "", status=2)[1]
    # Another space: refused, and the study is still there.
    said = program("sweep", *arguments[:5], "--device", "cpu", status=2)[1]
    assert "another search.train.lr; try the settings it was started with, or another --out" in said
    program("sweep", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("digits --trials 0", "--trials is 0; allowed: 1 or more"),
        ("digits", "--trials"),
        ("digit --trials 1", "recipe is 'digit'; did you mean 'digits'? allowed: "),
        ("plain.toml --trials 1", "recipe is 'plain'; allowed: a recipe with a [search] table"),
        ("typo.toml --trials 1", "did you mean 'search.model.K'"),
        (
            "digits --trials 1 --storage sqlite:////x/y.db",
            "--storage is 'sqlite:////x/y.db'; allowed: the URL of a database",
        ),
        ("digits --trials 1 --out plain.toml", "a folder that can be made"),
        ("digits --trials 1 --sampler grid", "tpe"),
        ("digits --trials 1 --seeds-per-trial 0", "--seeds-per-trial is 0"),
        ("digits --trials 1 --set model.heads=7", "model.heads is 7; allowed"),
        ("families --trials 9 --batch 4", "--batch is 4; allowed: 1 for link prediction"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program, arguments: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.toml").write_text("[train]\nepochs = 2\n")
    (tmp_path / "typo.toml").write_text('[search]\n"model.k" = [1, 2]\n')
    out, err = program("sweep", *arguments.split(), status=2)
    line = err.splitlines()[-1]
    assert line.startswith("magna: ") and words in line
    assert out == "" and "Traceback" not in err


@pytest.fixture
def ring(tmp_path: Path) -> Config:
    """A small link predictor on files of triples."""
    folder = tmp_path / "ring"
    folder.mkdir()
    rows = ["\t".join(triple) + "\n" for triple in ring_triples(20)]
    for split, part in {"train": rows[6:34], "valid": rows[:6], "test": rows[34:]}.items():
        (folder / f"{split}.tsv").write_text("".join(part))
    return load_recipe(str(folder)).with_values(
        ["model.hidden_channels=8", "model.num_layers=1", "train.epochs=4", "train.eval_every=1"]
    )


def test_link_predictors_are_searched_one_after_the_other(tmp_path: Path, ring: Config) -> None:
    config = replace(ring, search={"task.label_smoothing": [0.0, 0.2], "model.K": [1, 2]})
    said: list[str] = []
    result = _sweep(tmp_path, config, trials=3, confirm=1, confirm_seeds=2, say=said.append)
    assert f"best MRR {max(row['value'] for row in result['top']):.3f} (trial" in said[-2]
    table = _shown(result)
    assert "valid, MRR" in table and f" {result['best']['value']:.3f} " in table
    assert result["task"] == "link_prediction" and result["states"]["complete"] == 3
    assert 0 < result["best"]["value"] <= 1 and result["best"]["confirmed"] is not None
    best = Config.from_toml(tmp_path / "out" / "best.toml")
    assert "validation MRR" in best.source.search[-1].result and best.task.name == "link_prediction"


def test_settings_that_a_model_or_its_objective_refuses_have_a_reason(ring: Config) -> None:
    digits = load_recipe("digits").with_values(["model.hidden_channels=8"])
    fault = runs.fault_of(digits, {"model.heads": 3}, node_task(digits))
    assert fault is not None and "heads is 3; allowed: divisors of hidden_channels" in fault
    task = make_task(ring, None, torch.device("cpu"))
    guess = {"task.relation_prediction": 1.0, "task.relation_guess": "embeddings"}
    fault = runs.fault_of(ring, guess | {"model.relation_channels": 7}, task)
    assert fault is not None and "relations of width 7; try equal widths" in fault
    assert runs.fault_of(ring, guess, task) is None


def test_a_link_predictor_that_diverges_counts_as_the_worst(tmp_path: Path, ring: Config) -> None:
    config = replace(ring, search={"train.lr": [1e30, 0.01]})
    result = _sweep(tmp_path, config, trials=4)
    values = {row["params"]["train.lr"]: row["value"] for row in _trials(tmp_path)}
    assert values[1e30] == 0 < values[0.01] == result["best"]["value"]
