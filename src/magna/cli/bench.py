"""The command bench: kernels against their peers."""

from __future__ import annotations

from typing import Annotated

import typer

from magna.cli.command import Result, command, say
from magna.cli.options import DataDir, OnDevice


def _show(result: Result) -> None:
    from rich.console import Console

    from magna.bench import show_benchmark

    show_benchmark(result, Console())


@command("magna bench --graph cora", _show)
def bench(
    graph: Annotated[
        list[str] | None, typer.Option(help="cora, pubmed, wn18rr, fb15k-237 or ogbn-arxiv; may be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Cora alone, a few seconds.")] = False,
    data_dir: DataDir = None,
    device: OnDevice = "auto",
) -> Result:
    """Measure the kernels against their peers on this machine."""
    from magna import bench

    return bench.run(graph, device=device, quick=quick, data_dir=data_dir, progress=say)
