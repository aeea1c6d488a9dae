"""The command predict: labels of nodes, or answers of a link predictor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from magna.use.embeddings import Embeddings

_ROWS = 20


def _show(result: Result) -> None:
    show_notes(result)
    if "file" in result:
        unit = "answers" if "answers" in result else "nodes"
        count = result[unit]
        typer.echo(f"{result['dataset']}: {count:,} {unit if count != 1 else unit[:-1]} in {result['file']}")
    elif "files" in result:
        typer.echo(f"{result['dataset']}: {result['vectors']:,} x {result['width']} in {' and '.join(result['files'])}")
    elif "queries" in result:
        show_links(result)
    elif "links" in result:
        show_triples(result)
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


def show_triples(result: Result) -> None:
    """Print the first triples with their scores."""
    from rich.table import Table

    links = result["links"]
    table = Table("head", "relation", "tail", "score", "p(tail)", "p(head)", "", title=result["dataset"])
    for link in links[:_ROWS]:
        shares = (f"{100 * link[name]:.1f} %" for name in ("tail_probability", "head_probability"))
        names = (link[name] for name in ("head", "relation", "tail"))
        table.add_row(*names, f"{link['score']:.2f}", *shares, "known" if link["known"] else "")
    plain_console().print(table)
    if len(links) > _ROWS:
        typer.echo(f"the first {_ROWS} of {len(links):,} triples; all with --out FILE or --json")


Precision = Annotated[
    float | None,
    option(NODES, "SHARE", "Share of right labels, such as 0.9: says which nodes are sure enough by validation."),
]
VectorFile = Annotated[
    Path | None,
    option(OUTPUT, "FILE", "File of hidden states of nodes or entities: .npy, or .tsv for projectors."),
]


@command(
    "magna predict runs/digits --node 3 --node 17",
    "magna predict runs/digits --unlabelled --out answers.csv",
    "magna predict runs/digits --embeddings states.npy",
    "magna predict runs/families --head adam-1172 --relation aunt_of",
    "magna predict runs/families --pair adam-1172 anna-1171",
    "magna predict runs/families --missing aunt_of --top 100 --out missing.csv",
    show=_show,
    panel=FIRST,
)
def predict(
    run: RunPath,
    node: Annotated[list[str] | None, option(NODES, "ID", "Id of a node; may be repeated. Default: all nodes.")] = None,
    nodes: Annotated[Path | None, option(NODES, "FILE", "File of ids: one a line, or a CSV with a column id.")] = None,
    unlabelled: Annotated[bool, option(NODES, "", "Only nodes without a label.", "--unlabelled")] = False,
    head: Annotated[str | None, option(LINKS, "ENTITY", "The head; asks for tails.")] = None,
    tail: Annotated[str | None, option(LINKS, "ENTITY", "The tail; asks for heads.")] = None,
    relation: Annotated[str | None, option(LINKS, "NAME", "The relation of --head or --tail.")] = None,
    queries: Annotated[
        Path | None, option(LINKS, "FILE", "File of queries: head, relation, tail, one end empty; TSV or CSV.")
    ] = None,
    score: Annotated[Path | None, option(LINKS, "FILE", "File of triples to score: TSV or CSV.")] = None,
    pair: Annotated[tuple[str, str] | None, option(LINKS, "HEAD TAIL", "Two entities; ranks the relations.")] = None,
    missing: Annotated[
        str | None, option(LINKS, "RELATION", "Links of a relation that the data lacks, best first.")
    ] = None,
    precision: Precision = None,
    top: Annotated[
        int | None, option(LINKS, "N", "Answers of each query, default: 10, or of --missing, default: 100.", min=1)
    ] = None,
    new_triples: Annotated[
        Path | None, option(LINKS, "FILE", "TSV of new triples of known entities; no training.")
    ] = None,
    data: NewGraph = None,
    out: Annotated[Path | None, option(OUTPUT, "FILE", "File of the answers: .csv, .tsv, .json or .parquet.")] = None,
    form: Annotated[
        TableFormat | None,
        option(OUTPUT, "NAME", "csv, tsv, json or parquet, if the file's name does not say.", "--format"),
    ] = None,
    embeddings: VectorFile = None,
    force: Annotated[bool, option(OUTPUT, "", "Replace files that exist.", "--force")] = False,
    data_dir: DataDir = None,
    device: OnDevice = "auto",
) -> Result:
    """Predict labels of nodes, or the missing parts of links.

    Nodes get a label with the probability of each class. (head, relation) gets the best tails, (relation, tail) the
    best heads.
    """
    check_file(out, form, force)
    from magna.cli.questions import Question, answer

    question = Question(
        *(node or [], nodes, unlabelled, head, tail, relation, queries, score, pair, missing, top, new_triples),
        embeddings=embeddings,
        precision=precision,
    )
    of_links = question.check()
    if embeddings is not None:
        check_embeddings(embeddings, out, force)
    answers = answer(run, question, data, data_dir, device)
    if embeddings is not None:
        return _written_vectors(answers, embeddings)
    return _written(answers, out, form, "answers" if of_links else "nodes") if out else answers.to_dict()


def _written_vectors(answers: Embeddings, file: Path) -> Result:
    rows, width = answers.vectors.shape
    files = [str(each) for each in answers.write(file)]
    return {"dataset": answers.dataset, "vectors": rows, "width": width, "files": files, "notes": list(answers.notes)}


def _written(answers: Any, out: Path, form: TableFormat | None, unit: str) -> Result:
    answers.write(out, form)
    rows = len(next(iter(answers.columns().values())))
    return {"dataset": answers.dataset, unit: rows, "file": str(out), "notes": list(answers.notes)}


def check_embeddings(file: Path, out: Path | None, force: bool) -> None:
    """Refuse files of embeddings that cannot be written, or that nobody wants replaced."""
    from magna.use.embeddings import names_file

    if out is not None:
        raise ArgumentError("--out", str(out), "without --embeddings, which names its own file")
    for each in (file, names_file(file)):
        _check_place("--embeddings", each, force)


def check_file(out: Path | None, form: TableFormat | None, force: bool) -> None:
    """Refuse a file that cannot be written, or that nobody wants replaced, before answers are computed."""
    from magna.use.files import check_format

    if out is None:
        if form is not None:
            raise ArgumentError("--format", form, "with --out FILE")
        return
    check_format(out, form)
    _check_place("--out", out, force)


def _check_place(flag: str, file: Path, force: bool) -> None:
    if not file.parent.is_dir() or (file.exists() and not file.is_file()):  # a device is not to be replaced
        raise ArgumentError(flag, str(file), "a file in an existing folder")
    if file.exists() and not force and not _replaces(file):
        raise ArgumentError(flag, str(file), "a new file, because this one exists", "--force to replace it")


def _replaces(out: Path) -> bool:
    """Answer of the person at the terminal; False without one."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return typer.confirm(f"replace {out}?", err=True)
    except typer.Abort:  # the end of input
        return False
