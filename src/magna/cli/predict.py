"""The command predict: labels of nodes, or answers of a link predictor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magna.cli.command import Result, command
from magna.cli.options import (
    FIRST,
    LINKS,
    NODES,
    OUTPUT,
    DataDir,
    NewGraph,
    OnDevice,
    RunPath,
    TableFormat,
    option,
    plain_console,
    show_notes,
)
from magna.errors import ArgumentError

if TYPE_CHECKING:
    from magna.use.links import Query

_ROWS = 20


def _show(result: Result) -> None:
    show_notes(result)
    if "file" in result:
        unit = "answers" if "answers" in result else "nodes"
        count = result[unit]
        typer.echo(f"{result['dataset']}: {count:,} {unit if count != 1 else unit[:-1]} in {result['file']}")
    elif "queries" in result:
        show_links(result)
    else:
        show_nodes(result)


def show_nodes(result: Result) -> None:
    """Print the labels of the first nodes."""
    from rich.table import Table

    nodes = result["nodes"]
    table = Table("id", "label", "probability", "next best", "true label", title=result["dataset"])
    for row in nodes[:_ROWS]:
        second = sorted(row["probabilities"].items(), key=lambda entry: -entry[1])[1:2]
        then = ", ".join(f"{name} {100 * value:.1f} %" for name, value in second)
        share = f"{100 * row['probability']:.1f} %"
        table.add_row(row["id"], row["label"], share, then, row["true_label"] or "")
    plain_console().print(table)
    if len(nodes) > _ROWS:
        typer.echo(f"the first {_ROWS} of {len(nodes):,} nodes; all with --out FILE or --json")


def show_links(result: Result) -> None:
    """Print the answers of each query."""
    from rich.table import Table

    for query in result["queries"]:
        end = "tail" if query["tail"] is None else "head"
        whole = " · ".join(query[part] or "?" for part in ("head", "relation", "tail"))
        table = Table("rank", end, "probability", "score", "", title=f"{result['dataset']}: {whole}")
        for rank, answer in enumerate(query["answers"], start=1):
            share = f"{100 * answer['probability']:.1f} %"
            known = "known" if answer["known"] else ""
            table.add_row(str(rank), answer["entity"], share, f"{answer['score']:.2f}", known)
        plain_console().print(table)


@command(
    "magna predict runs/digits --node 3 --node 17",
    "magna predict runs/digits --out answers.csv",
    "magna predict runs/families --head adam-1172 --relation aunt_of",
    show=_show,
    panel=FIRST,
)
def predict(
    run: RunPath,
    node: Annotated[list[str] | None, option(NODES, "ID", "Id of a node; may be repeated. Default: all nodes.")] = None,
    nodes: Annotated[Path | None, option(NODES, "FILE", "File of ids: one a line, or a CSV with a column id.")] = None,
    head: Annotated[str | None, option(LINKS, "ENTITY", "The head; asks for tails.")] = None,
    tail: Annotated[str | None, option(LINKS, "ENTITY", "The tail; asks for heads.")] = None,
    relation: Annotated[str | None, option(LINKS, "NAME", "The relation of --head or --tail.")] = None,
    queries: Annotated[
        Path | None, option(LINKS, "FILE", "File of queries: head, relation, tail, one end empty; TSV or CSV.")
    ] = None,
    precision: Annotated[
        float | None,
        option(NODES, "SHARE", "Share of right labels, such as 0.9: says which nodes are sure enough by validation."),
    ] = None,
    top: Annotated[int | None, option(LINKS, "N", "Answers of each query. Default: 10.", min=1)] = None,
    new_triples: Annotated[
        Path | None, option(LINKS, "FILE", "TSV of new triples of known entities; no training.")
    ] = None,
    data: NewGraph = None,
    out: Annotated[Path | None, option(OUTPUT, "FILE", "File of the answers: .csv, .tsv, .json or .parquet.")] = None,
    form: Annotated[
        TableFormat | None,
        option(OUTPUT, "NAME", "csv, tsv, json or parquet, if the file's name does not say.", "--format"),
    ] = None,
    force: Annotated[bool, option(OUTPUT, "", "Replace the file of --out.", "--force")] = False,
    data_dir: DataDir = None,
    device: OnDevice = "auto",
) -> Result:
    """Predict labels of nodes, or the missing ends of links.

    Nodes get a label with the probability of each class. (head, relation) gets the best tails, (relation, tail) the
    best heads.
    """
    of_links = any(option is not None for option in (head, tail, relation, queries, new_triples))
    check_file(out, form, force)
    _check_kind(of_links, bool(node or nodes), top, precision)
    from magna.use import links
    from magna.use import nodes as node_labels

    if of_links:
        asked = _queries(head, relation, tail, queries)
        answers: links.LinkPredictions | node_labels.Predictions = links.predict_links(
            run, asked, data, top=top or 10, new_triples=new_triples, data_dir=data_dir, device=device
        )
    else:
        ids = [*(node or []), *(node_labels.read_ids(nodes) if nodes is not None else [])]
        answers = node_labels.predict_nodes(
            run, ids if node or nodes else None, data, data_dir=data_dir, device=device, precision=precision
        )
    if out is None:
        return answers.to_dict()
    answers.write(out, form)
    rows = len(next(iter(answers.columns().values())))
    unit = "answers" if of_links else "nodes"
    return {"dataset": answers.dataset, unit: rows, "file": str(out), "notes": list(answers.notes)}


def _check_kind(of_links: bool, of_nodes: bool, top: int | None, precision: float | None) -> None:
    """Refuse options of nodes and of links at once."""
    if of_links and of_nodes:
        raise ValueError("nodes and links are asked for at once; allowed: --node and --nodes, or the others")
    if precision is not None and of_links:
        raise ArgumentError("--precision", precision, "with labels of nodes alone")
    if top is not None and not of_links:
        raise ArgumentError("--top", top, "with --head, --tail or --queries")


def check_file(out: Path | None, form: TableFormat | None, force: bool) -> None:
    """Refuse a file that cannot be written, or that nobody wants replaced, before answers are computed."""
    from magna.use.files import check_format

    if out is None:
        if form is not None:
            raise ArgumentError("--format", form, "with --out FILE")
        return
    check_format(out, form)
    if not out.parent.is_dir() or (out.exists() and not out.is_file()):  # a device is not to be replaced
        raise ArgumentError("--out", str(out), "a file in an existing folder")
    if out.exists() and not force and not _replaces(out):
        raise ArgumentError("--out", str(out), "a new file, because this one exists", "--force to replace it")


def _replaces(out: Path) -> bool:
    """Answer of the person at the terminal; False without one."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return typer.confirm(f"replace {out}?", err=True)
    except typer.Abort:  # the end of input
        return False


def _queries(head: str | None, relation: str | None, tail: str | None, file: Path | None) -> list[Query]:
    from magna.use.links import Query, read_queries

    if relation is None and (head is not None or tail is not None or file is None):
        raise ValueError("--relation is missing; allowed: --head or --tail with --relation, or --queries FILE")
    asked = [] if relation is None else [Query(head, relation, tail)]
    return asked + (read_queries(file) if file is not None else [])
