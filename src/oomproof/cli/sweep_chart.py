"""Rate against budget, for a terminal and as SVG. Pure: text in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from oomproof.cli.sweep import KNEE_PERCENT, Point, Sweep
from oomproof.units import format_size

Scale = Callable[[float], float]
"""From a value to its place."""

BAR_COLUMNS = 40
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 90, 50, 70
LONGEST_TITLE = 80


def lines(sweep: Sweep) -> list[str]:
    """A bar for each budget, and where the knee is."""
    best = max((point.rate or 0.0 for point in sweep.points), default=0.0)
    rows = [(format_size(point.budget_bytes), _words(point), _bar(point, best)) for point in sweep.points]
    size, rate = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    drawn = [f"{row[0]:>{size}}  {row[1]:>{rate}}  {row[2]}".rstrip() for row in rows]
    stop = [] if sweep.is_complete else ["stopped before its end"]
    return [f"rate ({sweep.unit}) by budget:", *drawn, *_knee(sweep), *stop]


def _words(point: Point) -> str:
    if point.rate is not None:
        return f"{point.rate:.4g}"
    return "OOM" if point.out_of_memory else point.verdict


def _bar(point: Point, best: float) -> str:
    if point.rate is None or best <= 0:
        return "x"
    return "#" * max(1, round(BAR_COLUMNS * point.rate / best))


def _knee(sweep: Sweep) -> list[str]:
    knee = sweep.knee
    if knee is None or knee.rate is None:
        return ["no budget worked"] if sweep.points else []
    size = format_size(knee.budget_bytes)
    return [f"from {size} on, {KNEE_PERCENT} % or more of the best rate ({knee.rate:.4g})"]


def svg(sweep: Sweep, title: str) -> str:
    """An SVG document: a line through the rates, a cross for each budget with which memory ran out."""
    points = sweep.points
    most = max((point.budget_bytes for point in points), default=1)
    best = max((point.rate or 0.0 for point in points), default=0.0) or 1.0
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(budget: float) -> float:
        return LEFT + wide * budget / most

    def y(rate: float) -> float:
        return TOP + high * (1 - rate / (best * 1.1))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 24, shortened(title), "start", 15),
        _text(LEFT, 40, f"rate ({sweep.unit}) by budget; x: out of memory, o: failed otherwise", "start"),
        f'<path d="M{LEFT} {TOP}V{TOP + high}H{LEFT + wide}" fill="none" stroke="black"/>',
    ]
    for quarter in range(5):
        rate = best * quarter / 4
        parts.append(_text(LEFT - 8, y(rate) + 4, f"{rate:.4g}", "end"))
        parts.append(f'<path d="M{LEFT} {y(rate):.1f}h{wide}" stroke="#ddd"/>')
    for point in points:
        middle = f"{x(point.budget_bytes):.1f} {TOP + high + 16}"
        label = escape(format_size(point.budget_bytes))
        parts.append(f'<text transform="translate({middle}) rotate(25)">{label}</text>')
    knee = sweep.knee
    if knee is not None:
        at = x(knee.budget_bytes)
        parts.append(f'<path d="M{at:.1f} {TOP}v{high}" stroke="#009E73" stroke-dasharray="4 4"/>')
        parts.append(_text(at + 4, TOP + 12, f"{KNEE_PERCENT} % of the best", "start"))
    parts.append(f'<path d="{_path(points, x, y)}" fill="none" stroke="#0072B2" stroke-width="2"/>')
    parts.extend(_mark(point, x(point.budget_bytes), y(point.rate or 0.0)) for point in points)
    return "\n".join([*parts, "</svg>", ""])


def shortened(title: str) -> str:
    """What fits above the drawing, and into XML: a command line may hold anything."""
    title = "".join(character if character.isprintable() else "\ufffd" for character in title)
    return title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 3] + "..."


def _path(points: Sequence[Point], x: Scale, y: Scale) -> str:
    known = [(x(point.budget_bytes), y(point.rate)) for point in points if point.rate is not None]
    return "".join(f"{'L' if number else 'M'}{at[0]:.1f} {at[1]:.1f}" for number, at in enumerate(known))


def _mark(point: Point, x: float, y: float) -> str:
    if point.rate is not None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#0072B2"/>'
    if point.out_of_memory:
        return f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="#D55E00" stroke-width="3"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="#D55E00" stroke-width="2"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
