"""`MAGNAClassifier`: a classifier in the form of scikit-learn, which is optional."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from magna.config.schema import Config, load_recipe
from magna.config.tables import NodeDataOptions
from magna.data import NodeData, Schema, from_pyg, load_user_graph
from magna.data.node_data import UNLABELLED
from magna.errors import ArgumentError
from magna.tasks import NodeClassification
from magna.training.capture import matmul_precision
from magna.training.loop import fit
from magna.training.run_folder import pick_device

_SETTINGS = {
    "hidden_channels": "model.hidden_channels",
    "num_layers": "model.num_layers",
    "K": "model.K",
    "alpha": "model.alpha",
    "lr": "train.lr",
    "epochs": "train.epochs",
}


class _Parameters:
    """The part of scikit-learn's base classes that this module needs where scikit-learn is absent."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 (the form of scikit-learn)
        """The arguments of the constructor."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor."""
        for name, value in params.items():
            if name not in self.get_params():
                raise ArgumentError("parameter", name, list(self.get_params()))
            setattr(self, name, value)
        return self

    def score(self, X: Any, y: Any) -> float:
        """Share of right labels."""
        return float((self.predict(X) == np.asarray(y)).mean())  # type: ignore[attr-defined]


def _bases() -> tuple[type, ...]:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin
    except ImportError:
        return (_Parameters,)
    return ClassifierMixin, BaseEstimator


if TYPE_CHECKING:
    _Base = _Parameters
else:
    _Base = type("_Base", _bases(), {})


class MAGNAClassifier(_Base):
    """Labels of the nodes of one graph, fitted and asked by node indices.

    The graph, with the features of all nodes, is given at construction. X is a column of node indices, y has their
    labels, and -1 stands for no label. So `cross_val_score(MAGNAClassifier(graph), nodes, y)` divides the labels, while
    the model always sees the whole graph. A part of the labels chooses the best epoch.

    Args:
        graph: :class:`magna.data.NodeData`, a PyG `Data`, or the path of your own data; its labels and splits are not
            read. None: the rows of X are features of nodes without edges.
        recipe: the recipe of all other settings.
        settings: values by their keys, such as `{"task.consistency": 1.0}`.
        hidden_channels, num_layers, K, alpha, lr, epochs: the settings of these names; None: those of the recipe.
        validation_fraction: share of the labels of each class that chooses the epoch.
        random_state: seed of starting values, dropout and the validation labels.
        device: "auto", "cpu" or "cuda".

    >>> from magna.data import load_digits
    >>> digits = load_digits()
    >>> nodes = np.arange(digits.num_nodes)[:, None]
    >>> model = MAGNAClassifier(digits, hidden_channels=16, epochs=3).fit(nodes[:900], digits.y[:900])
    >>> model.predict_proba(nodes[900:]).shape
    (897, 10)
    """

    def __init__(
        self,
        graph: Any = None,
        *,
        recipe: str = "digits",
        settings: Any = None,
        hidden_channels: int | None = None,
        num_layers: int | None = None,
        K: int | None = None,
        alpha: float | None = None,
        lr: float | None = None,
        epochs: int | None = None,
        validation_fraction: float = 0.2,
        random_state: int = 0,
        device: str = "auto",
    ) -> None:
        self.graph, self.recipe, self.settings = graph, recipe, settings
        self.hidden_channels, self.num_layers, self.K, self.alpha = hidden_channels, num_layers, K, alpha
        self.lr, self.epochs, self.validation_fraction = lr, epochs, validation_fraction
        self.random_state, self.device = random_state, device

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the labels of some nodes."""
        if y is None:
            raise ValueError("this requires y to be passed, but the target y is None; allowed: a label for each row")
        X, y = self._checked(X, y)
        known = np.ones(len(y), dtype=bool) if y.dtype.kind not in "iuf" else y != UNLABELLED
        self.classes_, labels = np.unique(y[known], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has {len(self.classes_)} class; allowed: two classes or more")
        data = self._data(X)
        nodes = torch.arange(len(X)) if self.graph is None else self._nodes(X, data.num_nodes)
        nodes = nodes[torch.from_numpy(known)]
        self._schema, self._scaling = Schema(), None
        config = self._config()
        train, valid = self._divided(labels)
        data = replace(
            data,
            y=torch.full((data.num_nodes,), UNLABELLED).index_copy_(0, nodes, torch.from_numpy(labels).long()),
            num_classes=len(self.classes_),
            train=nodes[train],
            valid=nodes[valid],
            test=nodes[:0],
        )
        with torch.random.fork_rng(), matmul_precision(config.train.precision):
            torch.manual_seed(config.train.seed)
            task = self._task(data, config, ("train", "valid"))
            self._scaling = task.scaling
            self.model_ = task.make_model(config.model).to(task.device)
            self.n_iter_ = fit(config, task, self.model_, lambda epoch: None).epoch
            self._probabilities = self._shares(task)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [n, classes] of nodes, in the order of `classes_`."""
        if not hasattr(self, "model_"):
            raise _not_fitted(self)
        X, _ = self._checked(X)
        if self.graph is None:
            config = self._config()
            return self._shares(self._task(self._data(X), config, ())).numpy()
        return self._probabilities[self._nodes(X, len(self._probabilities))].numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Labels [n] of nodes."""
        probabilities = self.predict_proba(X)
        labels: np.ndarray = self.classes_[probabilities.argmax(1)]
        return labels

    def _config(self) -> Config:
        changes = {key: value for name, key in _SETTINGS.items() if (value := getattr(self, name)) is not None}
        data = NodeDataOptions(name="data", standardise_features=True)
        config = replace(load_recipe(self.recipe), data=data).with_settings(changes | dict(self.settings or {}))
        return config.with_seed(int(self.random_state or 0))

    def _data(self, X: np.ndarray) -> NodeData:
        """The graph without labels."""
        graph: Any = self.graph
        if graph is None:
            nothing = torch.zeros(0, dtype=torch.int64)
            edges, y = torch.zeros(2, 0, dtype=torch.int64), torch.full((len(X),), UNLABELLED)
            x = torch.from_numpy(np.ascontiguousarray(X, dtype=np.float32))
            return NodeData("data", edges, y, 0, nothing, nothing, nothing, x=x)
        if isinstance(graph, NodeData):
            return graph
        if hasattr(graph, "edge_index"):
            return from_pyg(graph).with_both_directions()
        return load_user_graph(graph).with_both_directions()

    def _task(self, data: NodeData, config: Config, splits: tuple[str, ...]) -> NodeClassification:
        assert isinstance(config.data, NodeDataOptions)
        if config.data.standardise_features:
            data = replace(data, schema=self._schema).with_standardised_features()
            self._schema = data.schema
        data = data if splits else replace(data, num_classes=len(self.classes_))
        return NodeClassification(data, config, pick_device(self.device), splits, self._scaling)

    def _shares(self, task: NodeClassification) -> Tensor:
        return task.finite_scores(self.model_).cpu().double().softmax(1)

    def _divided(self, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        """Positions of training and validation; a class with one label stays in training."""
        if not 0 < self.validation_fraction < 1:
            raise ArgumentError("validation_fraction", self.validation_fraction, "above 0 and below 1")
        draw, valid = np.random.default_rng(int(self.random_state or 0)), []
        for label in range(len(self.classes_)):
            places = draw.permutation((labels == label).nonzero()[0])
            count = max(1, round(self.validation_fraction * len(places))) if len(places) > 1 else 0
            valid.append(places[:count])
        chosen = np.sort(np.concatenate(valid))
        train = np.setdiff1d(np.arange(len(labels)), chosen)
        return torch.from_numpy(train), torch.from_numpy(chosen if len(chosen) else train)

    def _nodes(self, X: np.ndarray, num_nodes: int) -> Tensor:
        nodes = X.astype(np.int64).ravel()
        if X.shape[1] != 1 or (nodes != X.ravel()).any() or ((nodes < 0) | (nodes >= num_nodes)).any():
            raise ArgumentError("X", X, f"a column of node indices, 0 to {num_nodes - 1}")
        return torch.from_numpy(nodes)

    def _checked(self, X: Any, y: Any = None) -> tuple[np.ndarray, Any]:
        """X and y as arrays, by scikit-learn's checks where it is installed."""
        try:
            from sklearn.utils.multiclass import check_classification_targets
            from sklearn.utils.validation import validate_data
        except ImportError:
            X = np.asarray(X)
            if X.ndim != 2 or (y is not None and np.shape(y) != (len(X),)):
                raise ArgumentError("X", X, "a column of node indices, with a label each") from None
            return X, None if y is None else np.asarray(y)
        if y is None:
            return validate_data(self, X, reset=False, dtype="numeric"), None
        X, y = validate_data(self, X, y, dtype="numeric")
        check_classification_targets(y)
        return X, y


def _not_fitted(estimator: MAGNAClassifier) -> Exception:
    words = f"this {type(estimator).__name__} is not fitted yet; try fit(X, y) before predict"
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return ValueError(words)
    error: Exception = NotFittedError(words)
    return error
