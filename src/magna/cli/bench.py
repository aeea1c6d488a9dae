"""The command bench: kernels against their peers."""

from __future__ import annotations

from typing import Annotated

from magna.cli.command import Result, command, say
from magna.cli.options import DATA, MACHINE, TRAINING, DataDir, OnDevice, option


def _show(result: Result) -> None:
    from rich.console import Console

    from magna.bench import show_benchmark

    show_benchmark(result, Console())


@command("magna bench --quick", "magna bench --graph cora", show=_show, panel=MACHINE)
def bench(
    graph: Annotated[
        list[str] | None, option(DATA, "NAME", "cora, pubmed, wn18rr, fb15k-237 or ogbn-arxiv; may be repeated.")
    ] = None,
    quick: Annotated[bool, option(TRAINING, "", "Cora alone, a few seconds.", "--quick")] = False,
    data_dir: DataDir = None,
    device: OnDevice = "auto",
) -> Result:
    """Measure the kernels against their peers on this machine."""
    from magna import bench

    return bench.run(graph, device=device, quick=quick, data_dir=data_dir, progress=say)
