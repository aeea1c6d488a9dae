"""Draw tutorial-*.svg, the pictures of the tutorials, from runs of the tutorials' own code.

Run in the repository's root, with the extra `pyg`: python -m docs.assets.draw_tutorial
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.pages import DOCS, blocks

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 56, 52


class Colours(NamedTuple):
    """Colours of a page."""

    ink: str
    muted: str
    line: str
    panel: str
    warm: str
    cool: str


LIGHT = Colours("#1f2937", "#6b7280", "#e2e8f0", "#ffffff", "#d9480f", "#64748b")
DARK = Colours("#e5e7eb", "#9ca3af", "#374151", "#1e222a", "#f97316", "#94a3b8")


def text(x: float, y: float, content: str, colour: str, anchor: str = "middle", size: int = 17) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{content}</text>'


def height_of(share: float) -> float:
    """The y of a share: 0 at the bottom, 1 at the top."""
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def frame(title: str, label: str, ticks: list[float], colours: Colours, content: str) -> str:
    """A chart with a title, a label below, and lines at the ticks, which are shares."""
    right = WIDTH - RIGHT
    lines = "".join(
        f'<path d="M{LEFT} {height_of(tick):.1f}H{right}" stroke="{colours.line}"/>'
        + text(LEFT - 8, height_of(tick) + 6, f"{100 * tick:.0f} %", colours.muted, "end")
        for tick in ticks
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"
 font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" role="img" aria-label="{title}">
<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="{colours.panel}"/>
{text(16, 30, title, colours.ink, "start", 19)}
{lines}
{content}
{text((LEFT + right) / 2, HEIGHT - 8, label, colours.muted)}
</svg>
"""


def draw_curves(curves: dict[str, list[float]], colours: Colours) -> str:
    parts = []
    for order, ((name, values), colour) in enumerate(zip(curves.items(), (colours.warm, colours.cool), strict=True)):
        step = (WIDTH - LEFT - RIGHT) / (len(values) - 1)
        points = " ".join(f"{LEFT + at * step:.1f},{height_of(value):.1f}" for at, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="3"/>')
        row = HEIGHT - BOTTOM - 60 + 28 * order
        parts.append(f'<line x1="430" x2="462" y1="{row - 6}" y2="{row - 6}" stroke="{colour}" stroke-width="4"/>')
        parts.append(text(472, row, f"{name}, best {100 * max(values):.1f} %", colours.ink, "start"))
    for epoch in (1, 20, 40, 60):
        parts.append(text(LEFT + (epoch - 1) * step, HEIGHT - BOTTOM + 20, str(epoch), colours.muted))
    return frame("Validation accuracy", "epoch", [0, 0.25, 0.5, 0.75, 1], colours, "\n".join(parts))


def draw_bars(bars: dict[str, list[float]], colours: Colours) -> str:
    parts, groups = [], len(next(iter(bars.values())))
    slot = (WIDTH - LEFT - RIGHT) / groups
    for order, ((name, values), colour) in enumerate(zip(bars.items(), (colours.cool, colours.warm), strict=True)):
        for at, value in enumerate(values):
            x, y, width = LEFT + slot * (at + 0.12 + 0.39 * order), height_of(value), 0.37 * slot
            bar = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
            parts.append(f'{bar} fill="{colour}"/>' + text(x + width / 2, y - 5, f"{100 * value:.0f}", colours.ink))
        row = TOP + 28 + 28 * order
        parts.append(f'<rect x="400" y="{row - 14}" width="16" height="16" fill="{colour}"/>')
        parts.append(text(426, row, name, colours.ink, "start"))
    for at in range(groups):
        parts.append(text(LEFT + slot * (at + 0.5), HEIGHT - BOTTOM + 20, str(at), colours.muted))
    label = "hops between the two nodes"
    return frame("Attention by distance, in %", label, [0, 0.25, 0.5, 0.75, 1], colours, "\n".join(parts))


def curves_of(page: str) -> dict[str, list[float]]:
    """Validation accuracy in each epoch of the two `magna train digits` runs of the page."""
    console = [block for block in blocks((DOCS / page).read_text(encoding="utf-8")) if block.language == "console"]
    commands = [command for block in console for command in block.commands]
    for command in commands:
        if command.startswith("magna train digits") and "--seeds" not in command:
            subprocess.run([sys.executable, "-m", *command.split()], check=True)
    curves = {}
    for name, run in (("K = 6", "digits"), ("K = 1", "one-hop")):
        lines = Path("runs", run, "metrics.jsonl").read_text().splitlines()
        curves[name] = [json.loads(line)["valid"]["accuracy"] for line in lines]
    return curves


def bars_of(page: str) -> dict[str, list[float]]:
    """Shares of attention by distance, as the Python of the page computes them."""
    names: dict[str, Any] = {}
    for block in blocks((DOCS / page).read_text(encoding="utf-8")):
        if block.language == "python" and not block.reason:
            exec(compile(block.content, page, "exec"), names)
    return {"one hop": names["one_hop"], "diffused, K = 3": names["diffused"]}


def main() -> None:
    folder = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        curves, bars = curves_of("tutorial/nodes.md"), bars_of("tutorial/layer.md")
    for shade, colours in (("", LIGHT), ("-dark", DARK)):
        (folder / f"tutorial-nodes{shade}.svg").write_text(draw_curves(curves, colours), encoding="utf-8")
        (folder / f"tutorial-layer{shade}.svg").write_text(draw_bars(bars, colours), encoding="utf-8")


if __name__ == "__main__":
    main()
