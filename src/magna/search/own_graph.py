"""A graph of one's own from data to run folder: the portfolio is trained, its members are chosen, files are written."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magna.config.atomic_files import make_folder, write_whole
from magna.config.path_kind import SPLITS
from magna.config.registry import NODE_TASK
from magna.config.tables import NodeDataOptions
from magna.data import NodeData, load_node_data
from magna.data.node_data import UNLABELLED
from magna.errors import Diverged
from magna.search.facts import read_facts
from magna.search.greedy import chosen_weights
from magna.search.members import Member, load_members
from magna.search.node_portfolio import NodePortfolio
from magna.search.portfolio import Budget, Say
from magna.search.portfolio_files import as_result, check_folder, copy_run, write_recipe
from magna.training.run_folder import RunFolder, pick_device


def train_portfolio(
    options: NodeDataOptions,
    budget: Budget,
    folder: str | Path,
    *,
    members: Sequence[Member] | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    task_settings: Mapping[str, Any] | None = None,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Train the members on a graph, choose by validation, and leave a run folder with the best and their weights."""
    where = Path(folder)
    check_folder(where, resume)
    options = replace(options, structural_features=True)
    data = load_node_data(replace(options, standardise_features=False), data_dir)
    facts = read_facts(data)
    for line in (*data.notes, *facts.lines()):
        say(line)
    place = make_folder(where, "run_dir"), members or load_members(), budget, pick_device(device), say
    portfolio = NodePortfolio(*place, options, data, facts, task_settings or {})
    with RunFolder(where).alone():
        if resume:
            portfolio.resume()
        portfolio.run()
        return finish(portfolio)


def finish(portfolio: NodePortfolio) -> dict[str, Any]:
    """Choose, copy the best member to the root of the run folder, and return what `magna train` prints."""
    data, complete = portfolio.data, portfolio.complete()
    if not complete:
        raise Diverged("no member was trained to its end; try smaller features, or more minutes")
    folds = portfolio.has_folds(complete)
    truth = data.y[portfolio.judging_nodes(folds)]
    judged = [portfolio.judged(member, folds) for member in complete]
    judge = portfolio.judge
    scores = [judge.rank(each, truth) for each in judged]
    best = max(range(len(complete)), key=lambda index: (scores[index], -index))
    weights = [float(index == best) for index in range(len(complete))]
    if not portfolio.budget.single:
        weights = chosen_weights(judged, truth, judge)
    together = torch.stack([w * portfolio.answers(m) for w, m in zip(weights, complete, strict=True) if w]).sum(0)
    splits = ("valid", "test") if portfolio.budget.test and data.test.numel() else ("valid",)
    nodes = {split: data.split(split) for split in splits}
    metrics = {split: judge.metrics(together[at], data.y[at]) for split, at in nodes.items()}
    rows = _rows(portfolio, complete, judged, weights, truth)
    _write_files(portfolio, complete, weights, complete[best], together, {"table": rows, **metrics})
    head = {"task": NODE_TASK, "dataset": data.name, "notes": list(data.notes)}
    return as_result(portfolio, head, metrics["valid"], metrics.get("test")) | {
        "facts": portfolio.facts.to_dict(),
        "judged_on": f"{len(truth):,} nodes",
        "metric": judge.metric,
        "members": rows,
        "best": complete[best].name,
        "advice": _advice(portfolio, rows),
    }


def _write_files(
    portfolio: NodePortfolio,
    complete: Sequence[Member],
    weights: Sequence[float],
    winner: Member,
    together: Tensor,
    content: dict[str, Any],
) -> None:
    """Write the run folder of the best member, the weights of all, the recipe to refine, and the predictions."""
    copy_run(portfolio.path(winner), portfolio.folder)
    chosen = [
        {"run": str(portfolio.path(member).relative_to(portfolio.folder)), "weight": weight}
        for member, weight in zip(complete, weights, strict=True)
        if weight
    ]
    write_recipe(portfolio.config(winner), ("embed_dropout", "input_dropout", "dropout"), portfolio.folder)
    _write_predictions(portfolio, together)
    portfolio.save({"state": "done", "best": winner.name, "members": chosen, **content})


def _rows(
    portfolio: NodePortfolio,
    complete: Sequence[Member],
    judged: Sequence[Tensor],
    weights: Sequence[float],
    truth: Tensor,
) -> list[dict[str, Any]]:
    """The table of the end: the metric with its standard error, time and weight of each member."""
    rows = []
    for member in portfolio.members:
        result = portfolio.results.get(member.name)
        if result is None:
            continue
        row: dict[str, Any] = {"member": member.name, "score": None, "error": None, "weight": 0.0}
        row |= {"seconds": result.seconds, "fault": result.fault or "folds not trained" * (member not in complete)}
        if member in complete:
            index = complete.index(member)
            answers = judged[index]
            row |= {"score": portfolio.judge.value(answers, truth), "error": portfolio.judge.error(answers, truth)}
            row |= {"weight": weights[index]}
        rows.append(row)
    return rows


def _write_predictions(portfolio: NodePortfolio, together: Tensor) -> None:
    """Answers, split and truth of every node: labels with probabilities, or values."""
    data, text = portfolio.data, io.StringIO(newline="")
    splits = {node: split for split in SPLITS for node in data.split(split).tolist()}
    names = [] if data.target == "number" else [data.class_name(label) for label in range(data.num_classes)]
    first = {"classes": ["label", "probability"], "labels": ["labels"], "number": ["value"]}[data.target]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", *first, *(f"probability_{name}" for name in names), "split", f"true_{first[0]}"])
    for node, (answer, truth) in enumerate(zip(together.tolist(), data.y.tolist(), strict=True)):
        shown, known = _answer(data, answer), _truth(data, truth)
        writer.writerow([data.id_of(node), *shown, splits.get(node, ""), known])
    write_whole(portfolio.folder / "predictions.csv", text.getvalue().encode())


def _answer(data: NodeData, answer: Any) -> list[str]:
    """The cells of a node: its label and shares, its labels and shares, or its value."""
    if data.target == "number":
        return [f"{answer:.6g}"]
    shares = [f"{share:.6g}" for share in answer]
    if data.target == "labels":
        return ["; ".join(data.class_name(at) for at, share in enumerate(answer) if share >= 0.5), *shares]
    label = max(range(len(answer)), key=answer.__getitem__)
    return [data.class_name(label), shares[label], *shares]


def _truth(data: NodeData, truth: Any) -> str:
    """The true label, labels or value of a node; empty where it is unknown."""
    if data.target == "classes":
        return "" if truth == UNLABELLED else data.class_name(truth)
    if data.target == "number":
        return "" if math.isnan(truth) else f"{truth:.6g}"
    return "; ".join(data.class_name(at) for at, share in enumerate(truth) if share == 1)


def _advice(portfolio: NodePortfolio, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Advice on labels, features and edges, where the results show it."""
    facts, advice = portfolio.facts, []
    form = portfolio.judge.form
    known = {row["member"]: form.score(row["score"]) for row in rows if row["score"] is not None}
    alone = max((value for name, value in known.items() if name.startswith("mlp")), default=None)
    joined = max((value for name, value in known.items() if not name.startswith("mlp")), default=None)
    if alone is not None and joined is not None:
        error = max(row["error"] or 0.0 for row in rows)
        if joined <= alone + error:
            advice.append("the edges bring nothing over the features alone: look at what they mean")
    if portfolio.data.target == "classes" and facts.smallest_class < 10:
        advice.append(f"a class has {facts.smallest_class} training labels: more labels would help most")
    if facts.feature_kind == "none":
        advice.append("features of the nodes would help: columns of numbers or words in nodes.csv")
    return advice
