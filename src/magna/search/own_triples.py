"""Triples of one's own from data to run folder: the members of the portfolio are trained, and the best one is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magna.config.atomic_files import make_folder
from magna.config.path_kind import SPLITS
from magna.config.registry import LINK_TASK
from magna.config.schema import Config
from magna.config.tables import LinkDataOptions
from magna.data import load_knowledge_graph
from magna.errors import Diverged
from magna.search.members import Member, load_members
from magna.search.portfolio import Budget, Say
from magna.search.portfolio_files import as_result, check_folder, copy_run, write_recipe
from magna.search.triple_portfolio import TriplePortfolio
from magna.tasks import LinkPrediction
from magna.training.run_folder import RunFolder, pick_device


def train_link_portfolio(
    options: LinkDataOptions,
    budget: Budget,
    folder: str | Path,
    *,
    members: Sequence[Member] | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Train the members on triples, keep the best by MRR on validation, and leave its run folder."""
    where, on = Path(folder), pick_device(device)
    check_folder(where, resume)
    graph = load_knowledge_graph(options.name, data_dir)
    triples = {split: len(getattr(graph.triples, split)) for split in SPLITS}
    has_test = budget.test and triples["test"] > 0
    task = LinkPrediction(graph, on, options.control, ("valid", "test") if has_test else ("valid",))
    for line in (f"{task.size}; {triples['valid']:,} valid, {triples['test']:,} test", *graph.triples.notes):
        say(line)
    place = make_folder(where, "run_dir"), members or load_members("links"), budget, on, say
    portfolio = TriplePortfolio(*place, options, task, triples)
    with RunFolder(where).alone():
        if resume:
            portfolio.resume()
        portfolio.run()
        return _finished(portfolio, has_test)


def _finished(portfolio: TriplePortfolio, has_test: bool) -> dict[str, Any]:
    """Keep the best member, score the test split once, and return what `magna train` prints."""
    rows = _rows(portfolio)
    scored = [row for row in rows if row["score"] is not None]
    if not scored:
        raise Diverged("no member was trained to its end; try more minutes")
    best = max(scored, key=lambda row: row["score"])
    best["weight"] = 1.0
    winner = next(member for member in portfolio.members if member.name == best["member"])
    copy_run(portfolio.path(winner), portfolio.folder)
    run = RunFolder.open(portfolio.folder)
    model: Any = run.load_model()
    summary = run.summary or {}
    test = portfolio.task.evaluate(model.to(portfolio.device), "test") if has_test else None
    config: Config = portfolio.config(winner)
    write_recipe(config, ("input_dropout", "decoder_dropout"), portfolio.folder)
    chosen = [{"run": str(portfolio.path(winner).relative_to(portfolio.folder)), "weight": 1.0}]
    content = {"state": "done", "best": winner.name, "members": chosen, "table": rows}
    portfolio.save(content | {"valid": summary["valid"], "test": test})
    head = {"task": LINK_TASK, "dataset": portfolio.task.dataset, "notes": []}
    return as_result(portfolio, head, summary["valid"], test) | {
        "facts": portfolio.facts_of_data(),
        "metric": "mrr",
        "judged_on": f"{portfolio.triples['valid']:,} triples",
        "members": rows,
        "best": winner.name,
        "advice": _advice(rows, best),
    }


def _rows(portfolio: TriplePortfolio) -> list[dict[str, Any]]:
    """The table of the end: MRR with a bound on its standard error, time and weight of each member."""
    error = 0.5 / math.sqrt(2 * max(1, portfolio.triples["valid"]))
    rows = []
    for member in portfolio.members:
        if (result := portfolio.results.get(member.name)) is not None:
            row: dict[str, Any] = {"member": member.name, "score": result.valid, "error": error, "weight": 0.0}
            rows.append(row | {"seconds": result.seconds, "fault": result.fault})
    return rows


def _advice(rows: Sequence[dict[str, Any]], best: dict[str, Any]) -> list[str]:
    """Advice where encoders bring nothing over embeddings alone."""
    encoders = [row["score"] for row in rows if row["member"].startswith("magna") and row["score"] is not None]
    if encoders and not best["member"].startswith("magna"):
        return ["the encoder brings nothing over embeddings alone on these triples"]
    return []
