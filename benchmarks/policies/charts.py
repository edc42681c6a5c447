"""A chart of one world as SVG, written by hand: waste against OOM kills, one mark for each policy.

The area of a mark is the budget that runs got, as a part of the best one; hollow marks are not on the
Pareto front. Colours are those of Okabe and Ito, which colour-blind people can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 800, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 270, 50, 60
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class Scored(Protocol):
    """What is drawn of a score."""

    @property
    def waste(self) -> float: ...
    @property
    def ooms_per_run(self) -> float: ...
    @property
    def budget_ratio(self) -> float: ...
    @property
    def success_rate(self) -> float: ...


def chart(world: str, scores: Mapping[str, Scored], front: frozenset[str]) -> str:
    """The SVG document; `front` names the policies on the Pareto front."""
    most_ooms = 4.0
    most_waste = max(score.waste for score in scores.values()) * 1.1
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(ooms: float) -> float:
        return LEFT + plot_width * math.sqrt(ooms / most_ooms)

    def y(waste: float) -> float:
        return TOP + plot_height * (1 - math.sqrt(waste / most_waste))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(world)}: wasted byte-seconds and OOM kills</text>',
        f'<text x="{LEFT}" y="40" fill="#555">lower left is better; square-root scales</text>',
    ]
    for ooms in (0, 0.05, 0.25, 1, 2, 4):
        parts.append(_line(x(ooms), TOP, x(ooms), TOP + plot_height))
        parts.append(_text(x(ooms), TOP + plot_height + 18, f"{ooms:g}", "middle"))
    for waste in (0, 0.05, 0.2, 0.5, 1, 2, 3):
        if waste <= most_waste:
            parts.append(_line(LEFT, y(waste), LEFT + plot_width, y(waste)))
            parts.append(_text(LEFT - 8, y(waste) + 4, f"{waste:.0%}", "end"))
    parts.append(_text(LEFT + plot_width / 2, HEIGHT - 18, "OOM kills per run", "middle"))
    middle = TOP + plot_height / 2
    parts.append(f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">waste</text>')
    for number, (name, score) in enumerate(scores.items()):
        colour = COLOURS[number % len(COLOURS)]
        fill = colour if name in front else "white"
        radius = 10 * math.sqrt(score.budget_ratio)
        parts.append(
            f'<circle cx="{x(score.ooms_per_run):.1f}" cy="{y(score.waste):.1f}" r="{radius:.1f}"'
            f' fill="{fill}" stroke="{colour}" stroke-width="2"/>'
        )
        row = TOP + 14 + 52 * number
        parts.append(
            f'<circle cx="{WIDTH - RIGHT + 26}" cy="{row - 4}" r="6" fill="{fill}" stroke="{colour}"'
            ' stroke-width="2"/>'
        )
        parts.append(_text(WIDTH - RIGHT + 40, row, name))
        detail = f"waste {score.waste:.1%}, success {score.success_rate:.1%},"
        parts.append(_text(WIDTH - RIGHT + 40, row + 15, detail, colour="#555"))
        parts.append(
            _text(WIDTH - RIGHT + 40, row + 29, f"budget {score.budget_ratio:.1%} of the best", colour="#555")
        )
    return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
