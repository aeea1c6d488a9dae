"""A finished run put to use: predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from magna.cli.command import finish
from magna.cli.options import (
    AsJson,
    DataDir,
    Device,
    NewGraph,
    OnDevice,
    RunPath,
    TableFormat,
    Verbose,
    plain_console,
    show_notes,
)

_ROWS = 20
use_app = typer.Typer()


@use_app.command(epilog="Example: magna predict runs/digits --node 3 --node 17 --out answers.csv")
def predict(
    run: RunPath,
    node: Annotated[
        list[str] | None, typer.Option(help="Id of a node; may be repeated. Else all nodes.", show_default=False)
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option(help="File with an id on each line, or a CSV with an id column.", show_default=False)
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Of a link predictor: whose tails are asked for.", show_default=False)
    ] = None,
    tail: Annotated[
        str | None, typer.Option(help="Of a link predictor: whose heads are asked for.", show_default=False)
    ] = None,
    relation: Annotated[str | None, typer.Option(help="With --head or --tail.", show_default=False)] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="File of queries: head, relation, tail, one end empty; TSV or CSV.", show_default=False),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Of a link predictor: answers of each query; 10 if not said.", min=1, show_default=False),
    ] = None,
    new_triples: Annotated[
        Path | None,
        typer.Option(
            help="Of a link predictor: TSV of new triples of known entities; no training.", show_default=False
        ),
    ] = None,
    data: NewGraph = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the answers: .csv, .json or .parquet.", show_default=False)
    ] = None,
    form: Annotated[
        TableFormat | None,
        typer.Option("--format", help="Where the name of the file does not say.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    device: OnDevice = Device.auto,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Labels of nodes with probabilities, or the best tails of (head, relation) and heads of (relation, tail)."""
    asks_links = any(option is not None for option in (head, tail, relation, queries, new_triples))
    what = "answers" if asks_links else "nodes"

    def work() -> dict[str, Any]:
        from magna.use.files import file_format

        if form is not None and out is None:
            raise ValueError(f"--format is {form.value} without a file; allowed: with --out FILE")
        if out is not None:
            file_format(out, form)
            if not out.parent.is_dir() or (out.exists() and not out.is_file()):  # a device is not to be replaced
                raise ValueError(f"--out is {out}; allowed: a file in a folder that is there")
        if asks_links and (node or nodes):
            raise ValueError("nodes and links are asked for at once; allowed: --node and --nodes, or the others")
        if top is not None and not asks_links:
            raise ValueError(f"--top is {top} without a query; allowed: with --head, --tail or --queries")
        found = links() if asks_links else labels()
        if out is None:
            return found.to_dict()
        found.write(out, form)
        rows = len(next(iter(found.columns().values())))
        return {"dataset": found.dataset, what: rows, "file": str(out), "notes": list(found.notes)}

    def labels() -> Any:
        from magna.use.nodes import predict, read_ids

        asked = [*(node or []), *(read_ids(nodes) if nodes is not None else [])]
        return predict(run, asked if node or nodes else None, data, data_dir=data_dir, device=device.value)

    def links() -> Any:
        from magna.use.links import Query, predict_links, read_queries

        if relation is None and (head is not None or tail is not None or queries is None):
            raise ValueError("--relation is missing; allowed: --head or --tail with --relation, or --queries FILE")
        asked = [] if relation is None else [Query(head, relation, tail)]
        asked += read_queries(queries) if queries is not None else []
        return predict_links(
            run, asked, data, top=top or 10, new_triples=new_triples, data_dir=data_dir, device=device.value
        )

    def show(result: dict[str, Any]) -> None:
        show_notes(result)
        if out is not None:
            typer.echo(f"{result['dataset']}: {result[what]:,} {what} in {result['file']}")
        elif asks_links:
            _show_links(result)
        else:
            _show_predictions(result)

    finish(work, verbose, as_json, show)


def _show_predictions(result: dict[str, Any]) -> None:
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


def _show_links(result: dict[str, Any]) -> None:
    from rich.table import Table

    for query in result["queries"]:
        asked = "tail" if query["tail"] is None else "head"
        whole = " · ".join(query[part] or "?" for part in ("head", "relation", "tail"))
        table = Table("rank", asked, "probability", "score", "", title=f"{result['dataset']}: {whole}")
        for rank, answer in enumerate(query["answers"], start=1):
            share = f"{100 * answer['probability']:.1f} %"
            known = "known" if answer["known"] else ""
            table.add_row(str(rank), answer["entity"], share, f"{answer['score']:.2f}", known)
        plain_console().print(table)
