"""`magna.load`: a finished run as a model with its names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from magna.config.tables import NodeTask
from magna.errors import ArgumentError
from magna.training.capture import matmul_precision
from magna.training.run_folder import RunFolder
from magna.use.embeddings import Embeddings
from magna.use.links import LinkPredictions, answer_queries, open_links, temperature_of
from magna.use.nodes import NodeScores, Predictions
from magna.use.triples import Links, TripleScores, numbered_triples


def load_run(
    run_dir: str | Path,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    model: nn.Module | None = None,
) -> LoadedNodes | LoadedLinks:
    """A finished run, ready for questions by names: `predict`, `embed` and `score`.

    Args:
        run_dir: the run folder, of one model or of a portfolio.
        data_dir: the data folder, for the run's data.
        device: "auto", "cpu" or "cuda".
        model: your own module, if it was trained; it gets the weights of the run.
    """
    run = RunFolder.open(run_dir)
    options: dict[str, Any] = {"data_dir": data_dir, "device": device}
    if isinstance(run.config.task, NodeTask):
        return LoadedNodes(run, model, options)
    if model is not None:
        raise ArgumentError("model", type(model).__name__, "none for a run of link prediction, which holds its model")
    return LoadedLinks(run, options)


class Loaded:
    """Base of loaded runs; data is read at the first question and kept until another is asked for."""

    kind: str

    def __init__(self, run: RunFolder, options: dict[str, Any]) -> None:
        self.run, self.options = run, options
        self._opened: dict[str | None, Any] = {}

    def opened(self, data: str | Path | None) -> Any:
        """The run on its data or on other `data`."""
        key = None if data is None else str(data)
        if key not in self._opened:
            self._opened = {key: self._open(data)}
        return self._opened[key]

    def __repr__(self) -> str:
        model = self.run.config.model.name
        members = self.run.members
        words = f"a portfolio of {len(members)} members, the best one {model}" if members else f"one model, {model}"
        return f"{type(self).__name__}({str(self.run.path)!r}): {self.kind} on {self.run.config.data.name}, {words}"

    def _open(self, data: str | Path | None) -> Any:
        raise NotImplementedError


class LoadedNodes(Loaded):
    """A finished run of node classification."""

    kind = "labels of nodes"

    def __init__(self, run: RunFolder, module: nn.Module | None, options: dict[str, Any]) -> None:
        super().__init__(run, options)
        self._module = module

    def predict(
        self,
        ids: Sequence[str | int] | None = None,
        data: str | Path | None = None,
        *,
        precision: float | None = None,
    ) -> Predictions:
        """Labels with probabilities, see :func:`magna.use.nodes.predict_nodes`."""
        scores: NodeScores = self.opened(data)
        return scores.predictions(ids, precision)

    def embed(self, ids: Sequence[str | int] | None = None, data: str | Path | None = None) -> Embeddings:
        """The last hidden states of nodes; those of the members of a portfolio stand side by side."""
        scores: NodeScores = self.opened(data)
        return scores.embeddings(ids)

    def unlabelled(self, data: str | Path | None = None) -> list[str]:
        """The ids of the nodes without a label."""
        scores: NodeScores = self.opened(data)
        return scores.unlabelled()

    def score(self, triples: Sequence[tuple[str, str, str]]) -> Links:
        """Refused: a run on nodes scores no triples."""
        raise ArgumentError("score", triples, "triples by a run of link prediction", "predict, for this run on nodes")

    def _open(self, data: str | Path | None) -> NodeScores:
        return NodeScores(self.run, data, model=self._module, **self.options)


class LoadedLinks(Loaded):
    """A finished run of link prediction."""

    kind = "links"

    def predict(
        self, queries: Sequence[Any] | None = None, data: str | Path | None = None, *, top: int = 10
    ) -> LinkPredictions:
        """The best answers to queries, see :func:`magna.use.links.predict_links`."""
        return answer_queries(self.run, self.opened(data), queries, top)

    def embed(self, ids: Sequence[str] | None = None, data: str | Path | None = None) -> Embeddings:
        """States of entities by name, None for all, as the decoder takes them."""
        task, model, notes = self.opened(data)
        names = task.graph.triples.entities
        chosen = range(len(names)) if ids is None else [task.graph.triples.entity_id(name) for name in ids]
        with matmul_precision(self.run.config.train.precision):
            states = task.states(model).float().cpu()
        return Embeddings(task.dataset, [names[at] for at in chosen], states[torch.tensor(list(chosen)).long()], notes)

    def score(self, triples: Sequence[tuple[str, str, str]], data: str | Path | None = None) -> Links:
        """Scores, probabilities and ranks of full triples."""
        scorer, dataset, notes = self._scorer(data)
        return Links(dataset, scorer.of(numbered_triples(scorer.task, triples)), notes)

    def relations(self, head: str, tail: str, data: str | Path | None = None) -> Links:
        """Every relation between two entities, best first."""
        scorer, dataset, notes = self._scorer(data)
        return Links(dataset, scorer.relations(head, tail), notes)

    def missing(self, relation: str, top: int = 100, data: str | Path | None = None) -> Links:
        """The best links of a relation that the data lacks, best first."""
        if top < 1:
            raise ArgumentError("top", top, "1 or more")
        scorer, dataset, notes = self._scorer(data)
        return Links(dataset, scorer.missing(relation, top), notes)

    def _scorer(self, data: str | Path | None) -> tuple[TripleScores, str, tuple[str, ...]]:
        task, model, notes = self.opened(data)
        return TripleScores(task, model, temperature_of(self.run)), task.dataset, notes

    def _open(self, data: str | Path | None) -> Any:
        return open_links(self.run, data, **self.options)


load = load_run  # its name in the package
