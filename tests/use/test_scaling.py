"""The scaling of features in a run: its saved model alone agrees with `magna predict` on every node."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.running import sign, small

from magna import MAGNA
from magna.data import load_digits
from magna.training import train as training
from magna.training.run_folder import RunFolder
from magna.use.nodes import predict_nodes
from magna.use.predict import evaluate

SCALINGS = [
    ("data.standardise_features=true",),
    ("data.normalise_features=true",),
    ("data.feature_transform=tfidf",),
    ("data.feature_transform=pca", "data.components=20"),
    (),
]


@pytest.mark.parametrize("settings", SCALINGS, ids="+".join)
def test_the_saved_model_takes_raw_features(settings: tuple[str, ...], tmp_path: Path) -> None:
    summary = training.train(small(*settings), run_dir=tmp_path, device="cpu")["runs"][0]
    answers, raw = predict_nodes(tmp_path, device="cpu"), load_digits()
    model = MAGNA.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        out = model(raw.x, raw.with_self_loops().edge_index).double()
    out = (out / RunFolder.open(tmp_path).calibration["temperature"]).softmax(1)
    torch.testing.assert_close(out, answers.probabilities, rtol=0, atol=1e-6)
    assert evaluate(tmp_path, device="cpu")["metrics"] == summary["test"]
    assert (model.detach_scaling() is None) == (not settings)


def test_a_run_of_an_earlier_version_is_scaled_by_its_schema(tmp_path: Path) -> None:
    training.train(small(*SCALINGS[0]), run_dir=tmp_path, device="cpu")
    before = predict_nodes(tmp_path, device="cpu").probabilities
    RunFolder.open(tmp_path).load_model().save_pretrained(tmp_path / "model")
    sign(tmp_path, "model/config.json", "model/model.safetensors")
    assert RunFolder.open(tmp_path).load_parts()[1] is None
    assert torch.equal(predict_nodes(tmp_path, device="cpu").probabilities, before)


def test_new_nodes_are_projected_as_in_training(tmp_path: Path) -> None:
    """Components of a new graph would be others: its features are those of training, without some rows."""
    folder = tmp_path / "all"
    _write_digits(folder, 120)
    settings = ("data.feature_transform=pca", "data.components=8", "train.epochs=3", f"data.name={folder}")
    training.train(small(*settings), run_dir=tmp_path / "run", device="cpu")
    _write_digits(tmp_path / "few", 60)
    whole, few = (predict_nodes(tmp_path / "run", data=data, device="cpu") for data in (None, tmp_path / "few"))
    torch.testing.assert_close(few.probabilities, whole.probabilities[:60])


def _write_digits(folder: Path, count: int) -> None:
    """The first images, each joined to itself alone."""
    digits = load_digits()
    assert digits.x is not None
    rows = [",".join([str(i), *map(str, digits.x[i].tolist()), str(int(digits.y[i]))]) for i in range(count)]
    header = ",".join(["id", *(f"pixel{i}" for i in range(64)), "label"])
    folder.mkdir()
    (folder / "nodes.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"{i},{i}\n" for i in range(count)))


@pytest.mark.parametrize("other", ["data.standardise_features=true", "data.normalise_features=true"])
def test_two_scalings_are_refused(other: str) -> None:
    with pytest.raises(ValueError, match="feature_transform is 'tfidf'; allowed: none with"):
        small("data.feature_transform=tfidf", other)
    with pytest.raises(ValueError, match="components is 8; allowed: only with feature_transform 'pca'"):
        small("data.components=8")
