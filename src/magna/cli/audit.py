"""Audits of data as pages for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from magna.cli.options import plain_console
from magna.config.path_kind import SPLITS

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN_RELATIONS = 15
_NUMBERS_WIDTH = 58  # of the table of relations, without their names


def show_audit(report: dict[str, Any], console: Console | None = None) -> None:
    """Print an audit of a graph or of a knowledge graph."""
    from rich.table import Table

    from magna.config.registry import LINK_TASK

    triples = report.get("task") == LINK_TASK
    console = console or plain_console()
    console.print(report["dataset"], style="bold")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    for name, text in (_triple_facts(report) if triples else _node_facts(report)).items():
        facts.add_row(f"  {name}", text)
    console.print(facts)
    rows = report["relations"] if triples else report["classes"]
    if rows:
        console.print()
        (_print_relations if triples else _print_classes)(console, rows)
    console.print()
    notes = [f"note: {note}" for note in report["notes"]]
    faults = [f"look at: {fault}" for fault in report["warnings"]] or ["nothing suspicious was found"]
    for line in notes + faults:
        console.print(f"  {line}", soft_wrap=True)


def _node_facts(report: dict[str, Any]) -> dict[str, str]:
    """Line of each fact about a graph."""
    size, edges, degree = report["size"], report["edges"], report["degree"]
    components, distance, homophily = report["components"], report["distance"], report["homophily"]
    relations = f", {size['relations']:,} edge types" if size["relations"] else ""
    alike = "no edge joins two labelled nodes"
    if homophily is not None:
        alike = f"{100 * homophily:.1f} % of edges join nodes of one class"
    sources = "all pairs" if distance["exact"] else f"from {distance['sources']:,} random nodes"
    return {
        "nodes": f"{size['nodes']:,}, {size['labelled']:,} of them labelled; {degree['isolated']:,} without an edge",
        "edges": f"{size['edges']:,}, {'each in both directions' if edges['undirected'] else 'directed'}{relations}; "
        f"{edges['self_loops']:,} self-loops, {edges['duplicates']:,} duplicates",
        "degree": f"mean {degree['mean_in']:.1f}, median {degree['median_in']:g}, largest {degree['largest_in']:,}",
        "features": f"{size['features']:,}",
        **({"homophily": alike} if report["target"] == "classes" else {}),
        "components": f"{components['count']:,}; the largest has {100 * components['share_of_largest']:.1f} % of nodes",
        "distance": "no two nodes are joined"
        if distance["mean"] is None
        else f"{distance['mean']:.2f} on average in the largest component ({sources})",
        "suggested K": f"{report['suggested_K']}, to cross that distance",
        "split": _sizes(report["splits"]),
    }


def _triple_facts(report: dict[str, Any]) -> dict[str, str]:
    """Line of each fact about a knowledge graph."""
    size, degree, leakage = report["size"], report["degree"], report["leakage"]
    shared = {pair.replace("_", " and "): count for pair, count in leakage["shared_triples"].items() if count}
    inverse = ", ".join(
        f"{part['triples']:,} {split} triples ({100 * part['share']:.1f} %)"
        for split, part in leakage["inverse_in_train"].items()
    )
    rule = "; ".join(
        f"MRR {part['mrr']:.3f} on {split}, names {100 * part['answered']:.1f} % of the answers"
        for split, part in leakage["reverse_rule"].items()
    )
    return {
        "entities": f"{size['entities']:,}; {degree['isolated']:,} in no training triple",
        "relations": f"{size['relations']:,}; {len(report['symmetric']):,} are their own inverse, "
        f"{len(report['inverse_pairs']):,} pairs each other's",
        "triples": f"{size['triples']:,}; {sum(report['duplicates'].values()):,} listed again, "
        f"{degree['self_loops']:,} of one entity alone",
        "split": _sizes(report["splits"]),
        "queries": f"{size['queries']:,} distinct (head, relation) in training, both directions",
        "degree": f"mean {degree['mean']:.1f}, median {degree['median']:g}, largest {degree['largest']:,}",
        "hubs": ", ".join(f"{hub['entity']} ({hub['triples']:,})" for hub in report["hubs"]),
        "in two splits": ", ".join(f"{count:,} in {pair}" for pair, count in shared.items()) or "0 triples",
        "turned round": f"{inverse} are in train under an inverse relation" if inverse else "nothing is held out",
        "reverse rule": rule or "nothing is held out",
        "unseen entities": "; ".join(
            f"{part['entities']:,} in {part['triples']:,} {split} triples" for split, part in report["unseen"].items()
        ),
    }


def _sizes(splits: Mapping[str, int]) -> str:
    return ", ".join(f"{splits[name]:,} {name}" for name in SPLITS)


def _print_classes(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "class" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else value for value in row.values()))
    console.print(table)


def _print_relations(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("relation", no_wrap=True)
    for name in (*SPLITS, "kind", "tails/head", "heads/tail"):
        table.add_column(name, justify="right", no_wrap=True)
    width = console.width - _NUMBERS_WIDTH
    for row in rows[:_SHOWN_RELATIONS]:
        means = [f"{row[name]:.1f}" if row["train"] else "" for name in ("tails_per_head", "heads_per_tail")]
        name = row["relation"]
        name = name if len(name) <= width else f"…{name[1 - width :]}"  # the end of a name says more
        table.add_row(name, *(f"{row[split]:,}" for split in SPLITS), row["kind"] or "unseen", *means)
    console.print(table)
    if len(rows) > _SHOWN_RELATIONS:
        console.print(f"  and {len(rows) - _SHOWN_RELATIONS:,} more (--json has all)")
