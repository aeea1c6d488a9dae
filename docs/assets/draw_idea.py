"""Draw idea*.svg: shares of attention of one node, after one hop and diffused. The numbers are computed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

ALPHA, K = 0.2, 6
TARGET = 0
POSITIONS = {
    0: (112, 150), 1: (175, 88), 2: (188, 158), 3: (150, 222),
    4: (250, 62), 5: (262, 128), 6: (255, 192), 7: (218, 245),
    8: (328, 92), 9: (334, 162), 10: (318, 226), 11: (52, 92), 12: (48, 208),
}  # fmt: skip
EDGES = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 7), (4, 8), (5, 8), (5, 9), (6, 9), (2, 6), (7, 10), (0, 11)]
EDGES += [(11, 12), (6, 7)]
# Raw scores of edges into each node; the rest are 0. They make some neighbours matter more than others.
SCORES = {(1, 0): 0.4, (2, 0): 1.4, (5, 2): 1.3, (9, 5): 1.6, (8, 5): 0.3, (3, 0): -0.4, (11, 0): -0.8}

DARK_TEXT, LIGHT_TEXT = "#1f2937", "#ffffff"


class Colours(NamedTuple):
    """Colours of a page."""

    ink: str
    muted: str
    line: str
    page: str
    panel: tuple[int, int, int]  # also of a node without attention
    edge: str
    warm: tuple[int, int, int]  # of a node with much attention

    def shade(self, share: float) -> str:
        strength = min(1.0, (share / 0.35) ** 0.6)
        pairs = zip(self.panel, self.warm, strict=True)
        return "#" + "".join(f"{round(low + (high - low) * strength):02x}" for low, high in pairs)


LIGHT = Colours("#1f2937", "#6b7280", "#cbd5e1", "#f1f5f9", (255, 255, 255), "#f59e6b", (217, 72, 15))
DARK = Colours("#e5e7eb", "#9ca3af", "#475569", "#131416", (30, 34, 42), "#c2622f", (249, 115, 22))


def attention() -> np.ndarray:
    """Row-stochastic A with self-loops: A[i, j] is what i gives to j."""
    size = len(POSITIONS)
    scores = np.full((size, size), -np.inf)
    np.fill_diagonal(scores, -0.6)
    for i, j in EDGES:
        scores[i, j], scores[j, i] = SCORES.get((j, i), 0.0), SCORES.get((i, j), 0.0)
    weights = np.exp(scores)
    return weights / weights.sum(1, keepdims=True)


def diffused(a: np.ndarray) -> np.ndarray:
    """Eq. 5 applied to the identity: K hops, alpha of the way back to the start at each."""
    z = identity = np.eye(len(a))
    for _ in range(K):
        z = (1 - ALPHA) * a @ z + ALPHA * identity
    return z


def node(i: int, share: float, colours: Colours) -> str:
    x, y = POSITIONS[i]
    radius = 20 if i == TARGET else 17
    if share < 0.005:
        outline = f'stroke="{colours.line}" stroke-width="1.5"'
        return f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colours.shade(0)}" {outline}/>'
    on_light = colours.panel == LIGHT.panel
    text = (LIGHT_TEXT if share > 0.2 else DARK_TEXT) if on_light else (DARK_TEXT if share > 0.25 else LIGHT_TEXT)
    stroke = (colours.ink, 2.5) if i == TARGET else (colours.muted, 1)
    return (
        f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colours.shade(share)}" '
        f'stroke="{stroke[0]}" stroke-width="{stroke[1]}"/>'
        f'<text x="{x}" y="{y + 4}" text-anchor="middle" font-size="11.5" fill="{text}">{100 * share:.0f}</text>'
    )


def panel(left: int, top: int, title: str, formula: str, caption: str, row: np.ndarray, colours: Colours) -> str:
    reached = {i for i in POSITIONS if row[i] >= 0.005}
    lines = []
    for i, j in EDGES:
        (x1, y1), (x2, y2) = POSITIONS[i], POSITIONS[j]
        live = i in reached and j in reached and (row[i] + row[j] > 0) and (TARGET in (i, j) or len(reached) > 6)
        stroke, width = (colours.edge, 2.5) if live else (colours.line, 1.5)
        lines.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" stroke-width="{width}"/>')
    nodes = [node(i, row[i], colours) for i in POSITIONS]
    x, y = POSITIONS[TARGET]
    return f"""<g transform="translate({left} {top})">
<rect x="8" y="8" width="384" height="324" rx="14" fill="{colours.shade(0)}" stroke="{colours.line}"/>
<text x="28" y="38" font-size="16" font-weight="600" fill="{colours.ink}">{title}</text>
<text x="372" y="38" font-size="14" text-anchor="end" font-style="italic" fill="{colours.muted}">{formula}</text>
<g transform="translate(8 22)">{"".join(lines)}{"".join(nodes)}
<text x="{x - 26}" y="{y + 36}" text-anchor="middle" font-size="11" fill="{colours.ink}">this node</text></g>
<text x="200" y="316" font-size="13" text-anchor="middle" fill="{colours.muted}">{caption}</text>
</g>"""


def draw(colours: Colours, *, stacked: bool) -> str:
    a = attention()
    width, height, second = (400, 664, (0, 324)) if stacked else (800, 340, (400, 0))
    one_hop = panel(0, 0, "Attention", "A", "one layer attends to the neighbours (shares in %)", a[TARGET], colours)
    spread = "one layer attends to nodes several hops away"
    many = panel(*second, "Diffused attention", "𝒜 = Σ θₖ Aᵏ", spread, diffused(a)[TARGET], colours)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
 font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" role="img"
 aria-label="Share of attention, in percent, that one node gives to every other: one hop, and diffused">
<rect width="{width}" height="{height}" rx="16" fill="{colours.page}"/>
{one_hop}
{many}
</svg>
"""


if __name__ == "__main__":
    for shade, colours in (("", LIGHT), ("-dark", DARK)):
        for shape, stacked in (("", False), ("-narrow", True)):
            path = Path(__file__).with_name(f"idea{shape}{shade}.svg")
            path.write_text(draw(colours, stacked=stacked), encoding="utf-8")
