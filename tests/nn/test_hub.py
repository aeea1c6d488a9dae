"""Models as files: a wrong folder is refused in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from magna import MAGNA
from magna.nn.hub import Saved


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The call that asks the hub for a model; its answer is the folder `download`."""
    asked = Mock(return_value="download")
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=asked))
    return asked


@pytest.mark.parametrize("folder", ["nowhere", "./no/where", "runs/cora", "runs/cora/model", "/no/where", "a/", "/a"])
def test_a_path_that_is_not_there_is_refused_without_the_hub(download: Mock, folder: str) -> None:
    Path("runs").mkdir()
    with pytest.raises(ValueError, match=r"folder is .*allowed: a folder with config.json and model.safetensors"):
        MAGNA.from_pretrained(folder)
    download.assert_not_called()


def test_a_model_of_the_hub_is_downloaded(download: Mock) -> None:
    MAGNA(4, 8, 1, 3, heads=2).save_pretrained("download")
    model = MAGNA.from_pretrained("someone/model", backend="reference")
    assert (
        download.call_args.args == ("someone/model",) and model.config["backend"] == "reference" and not model.training
    )


def test_without_the_hub_s_package_its_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="folder is 'someone/model'"):
        MAGNA.from_pretrained("someone/model")


def test_a_misspelt_folder_names_the_nearest() -> None:
    MAGNA(4, 8, 1, 3, heads=2).save_pretrained("runs/digits/model")
    for wrong in ("runs/digits/modle", "runs/digit/model"):
        with pytest.raises(ValueError, match=f"folder is '{wrong}'; .*; try runs/digits/model"):
            MAGNA.from_pretrained(wrong)


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, **options: float) -> str:
        assert options["etag_timeout"] <= 10
        raise OSError(f"{name}: no connection\nmore words")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    with pytest.raises(ValueError, match=r"or a model on the Hugging Face Hub; .*no connection$"):
        MAGNA.from_pretrained("someone/model")


@pytest.mark.parametrize(
    ("name", "content"), [("config.json", b"{"), ("config.json", b"[]"), ("model.safetensors", b"")]
)
def test_a_damaged_file_is_named(name: str, content: bytes) -> None:
    MAGNA(4, 8, 1, 3, heads=2).save_pretrained("model")
    (Path("model") / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        MAGNA.from_pretrained("model")


def test_weights_that_share_their_memory_are_saved() -> None:
    class Tied(Saved):
        def __init__(self) -> None:
            super().__init__()
            self.config = {}
            self.one = torch.nn.Linear(3, 3)
            self.two = torch.nn.Linear(3, 3)
            self.two.weight = self.one.weight

    model = Tied()
    model.save_pretrained("tied")
    again = Tied.from_pretrained("tied")
    assert again.two.weight is again.one.weight and torch.equal(again.two.weight, model.two.weight)
