"""`magna.predict`: the answers of a finished run of any task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magna.config.tables import LinkTask, NodeTask
from magna.training.run_folder import RunFolder
from magna.use.links import LinkPredictions, predict_links
from magna.use.nodes import Predictions, predict_nodes

_PREDICT: dict[type, Any] = {NodeTask: predict_nodes, LinkTask: predict_links}


def predict(
    run_dir: str | Path, asked: Sequence[Any] | None = None, data: str | Path | None = None, **options: Any
) -> Predictions | LinkPredictions:
    """Labels of nodes, or the entities that complete queries, by a finished run.

    Args:
        run_dir: the run folder.
        asked: ids of nodes, None for all; for links queries by names, (head, relation, None) or (None, relation, tail).
        data: other data of the same form, or the present place of the run's data.
        options: further arguments of :func:`magna.use.nodes.predict_nodes` or :func:`magna.use.links.predict_links`.
    """
    run = RunFolder.open(run_dir)
    answers: Predictions | LinkPredictions = _PREDICT[type(run.config.task)](run, asked, data, **options)
    return answers
