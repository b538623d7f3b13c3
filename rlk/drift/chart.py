"""A chart of drift by layer, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rlk.drift.operators import Comparison

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 320, 70, 40, 60
FLOOR = 1e-8  # of the logarithmic axis; exact zeros stand on it
COLORS = {"whole run": "#1f5fa8", "own error": "#c1442d"}


def layers_of(made: Comparison) -> list[tuple[str, float, float]]:
    """Return for each layer, and each operator outside of one: its name, drift and largest own error."""
    found: dict[str, list[float]] = {}
    own = {d.name: min(d.relative, 1.0) for d in made.local}
    for name, drift in made.drift.items():
        key = _layer(name)
        row = found.setdefault(key, [0.0, 0.0])
        row[0] = min(drift, 1.0)  # of its last operator
        row[1] = max(row[1], own.get(name, 0.0))
    return [(name, drift, error) for name, (drift, error) in found.items()]


def _layer(name: str) -> str:
    parts = name.split(".")
    if "layers" in parts and parts[-1] != "layers":
        return f"layer {parts[parts.index('layers') + 1]}"
    return name.removeprefix("model.").removesuffix(".residual")


def svg(title: str, rows: Sequence[tuple[str, float, float]]) -> str:
    """Return a chart: relative differences by layer, of a whole run and of operators on equal inputs."""
    step = (WIDTH - LEFT - 20) / max(1, len(rows))
    base = HEIGHT - BOTTOM

    def y(value: float) -> float:
        span = math.log10(1 / FLOOR)
        return base - (base - TOP) * (math.log10(max(value, FLOOR) / FLOOR) / span)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        '<g font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="13">Drift by layer: {escape(title)}</text>',
    ]
    for power in range(round(math.log10(FLOOR)), 1, 2):
        at = y(10.0**power)
        label = "0" if power == round(math.log10(FLOOR)) else f"1e{power}"
        lines += [
            f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    for place, (label, color) in enumerate(COLORS.items()):
        points = [(LEFT + step * (i + 0.5), y(row[1 + place])) for i, row in enumerate(rows)]
        if place == 0:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{color}"/>' for px, py in points]
        lines.append(f'<circle cx="{WIDTH - 210}" cy="{14 + 14 * place}" r="3.5" fill="{color}"/>')
        words = {"whole run": "whole run, drift inherited", "own error": "operators on equal inputs"}[label]
        lines.append(f'<text x="{WIDTH - 200}" y="{18 + 14 * place}">{words}</text>')
    every = max(1, len(rows) // 16)
    for i, (name, _, _) in enumerate(rows):
        if i % every == 0 or not name.startswith("layer"):
            at = f"{LEFT + step * (i + 0.5):.1f},{base + 14}"
            lines.append(
                f'<text transform="translate({at}) rotate(-30)" text-anchor="end">{escape(name)}</text>'
            )
    lines.append(
        f'<text transform="translate(16,{(TOP + base) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        "relative difference of a token</text>"
    )
    return "\n".join([*lines, "</g></svg>"]) + "\n"
