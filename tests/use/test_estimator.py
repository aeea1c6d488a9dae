"""The estimator in scikit-learn's tools, and without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from magna import MAGNAClassifier
from magna.config.schema import load_recipe
from magna.data import load_digits, to_pyg

DIGITS = load_digits()
NODES, Y = np.arange(DIGITS.num_nodes)[:, None], DIGITS.y.numpy()
SMALL: dict[str, Any] = {"hidden_channels": 16, "num_layers": 1, "epochs": 12, "lr": 0.03, "device": "cpu"}

# The checks of scikit-learn that do not apply, and why.
SKIPPED = {
    "check_classifiers_classes": "its labels are -1 and 1, and -1 stands for no label",
    "check_methods_subset_invariance": "float32 sums over other numbers of rows differ by 1e-7",
}


def test_nodes_get_the_labels_of_their_images() -> None:
    hidden = Y.copy()
    hidden[::3] = -1
    before = torch.get_rng_state()
    model = MAGNAClassifier(DIGITS, **SMALL).fit(NODES, hidden)
    assert torch.equal(before, torch.get_rng_state()) and model.classes_.tolist() == list(range(10))
    shares = model.predict_proba(NODES[::3])
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (model.predict(NODES[::3]) == shares.argmax(1)).all() and model.score(NODES[::3], Y[::3]) > 0.8
    again = MAGNAClassifier(DIGITS, **SMALL).fit(NODES, hidden)
    assert (again.predict_proba(NODES[::3]) == shares).all()
    other = MAGNAClassifier(DIGITS, **SMALL, random_state=1).fit(NODES, hidden)
    assert (other.predict_proba(NODES[::3]) != shares).any()


def test_unlabelled_nodes_are_not_read() -> None:
    """The truth of a node outside of X, or with -1, changes nothing."""
    shuffled = np.random.default_rng(0).permutation(Y)
    hidden = np.where(np.arange(len(Y)) % 2 == 0, Y, -1)
    first = MAGNAClassifier(DIGITS, **SMALL).fit(NODES, hidden)
    second = MAGNAClassifier(DIGITS, **SMALL).fit(NODES[::2], Y[::2])
    wrong = MAGNAClassifier(replace(DIGITS, y=torch.from_numpy(shuffled)), **SMALL)
    shares = [model.predict_proba(NODES) for model in (first, second, wrong.fit(NODES[::2], Y[::2]))]
    assert (shares[0] == shares[1]).all() and (shares[0] == shares[2]).all()


def test_tools_of_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_score

    model = MAGNAClassifier(DIGITS, **SMALL)
    copy = clone(model)
    assert copy.get_params().keys() == model.get_params().keys() and copy.get_params()["epochs"] == 12
    assert cross_val_score(model, NODES, Y, cv=3).min() > 0.8
    search = GridSearchCV(model, {"K": [1, 3], "settings": [None, {"train.lr": 1e-6}]}, cv=2).fit(NODES, Y)
    assert search.best_params_["settings"] is None and search.best_score_ > 0.8


def test_a_pyg_graph_and_names_as_labels() -> None:
    pytest.importorskip("torch_geometric")
    names = np.array([f"digit {label}" for label in Y])
    model = MAGNAClassifier(to_pyg(DIGITS), **SMALL, settings={"data.feature_transform": "pca"} | _UNSCALED)
    assert set(model.fit(NODES[:900], names[:900]).predict(NODES[900:])) <= set(names)
    refitted = model.fit(NODES[:900], names[:900]).predict_proba(NODES)
    assert (refitted == model.predict_proba(NODES)).all()


_UNSCALED = {"data.standardise_features": False}


@pytest.mark.parametrize(
    ("nodes", "labels", "words"),
    [
        (NODES - 1, Y, "allowed: a column of node indices, 0 to 1796"),
        (NODES + 0.5, Y, "allowed: a column of node indices, 0 to 1796"),
        (np.hstack([NODES, NODES]), Y, "allowed: a column of node indices"),
        (NODES, np.full_like(Y, -1), "y has 0 class"),
        (NODES, None, "requires y to be passed"),
    ],
)
def test_wrong_input_is_one_line(nodes: np.ndarray, labels: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MAGNAClassifier(DIGITS, **SMALL).fit(nodes, labels)


def test_the_checks_of_scikit_learn() -> None:
    """Without a graph the rows of X are features, as these checks have them."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    model = MAGNAClassifier(**SMALL | {"epochs": 40, "lr": 0.02})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = checks.check_estimator(model, expected_failed_checks=SKIPPED, on_fail=None, on_skip=None)
    status = {result["check_name"]: result["status"] for result in results}
    assert {name for name, each in status.items() if each == "xfail"} == SKIPPED.keys()
    assert [name for name, each in status.items() if each == "failed"] == []
    assert [name for name, each in status.items() if each == "skipped"] in ([], ["check_array_api_input"])


def test_scikit_learn_is_optional() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import numpy as np
from magna import MAGNAClassifier
from magna.data import load_digits
digits, nodes = load_digits(), np.arange(1797)[:, None]
model = MAGNAClassifier(digits, hidden_channels=16, num_layers=1, lr=0.03).set_params(epochs=12)
assert model.get_params()["epochs"] == 12
assert model.fit(nodes[:900], digits.y[:900]).score(nodes[900:], digits.y[900:]) > 0.5
for call in (lambda: model.set_params(epoch=1), lambda: MAGNAClassifier(digits).predict(nodes)):
    try:
        call()
    except ValueError:
        continue
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_are_those_of_a_recipe() -> None:
    model = MAGNAClassifier(DIGITS, recipe="cora", **SMALL, settings=_UNSCALED | {"model.alpha": 0.3})
    config = model._config()
    assert config.model.alpha == 0.3 and config.model.hidden_channels == 16
    assert config.train.epochs == 12 and config.task == load_recipe("cora").task != load_recipe("digits").task
