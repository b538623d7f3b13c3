"""A chart of drift by layer, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from rlk.drift.operators import Comparison

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 340, 70, 64, 60
FLOOR = 1e-8  # of the logarithmic axis; exact zeros stand on it
COLORS = ("#1f5fa8", "#c1442d", "#3a7d44", "#7a5195")


def layers_of(made: Comparison) -> tuple[list[str], dict[str, list[float]]]:
    """Return the names of layers, and of operators outside of one; and two series of relative differences.

    The series are the drift of a whole run, behind the last operator of a layer, and the largest difference
    of an operator of the layer on equal inputs.
    """
    whole: dict[str, float] = {}
    own: dict[str, float] = {}
    local = {d.name: min(d.relative, 1.0) for d in made.local}
    for name, drift in made.drift.items():
        key = _layer(name)
        whole[key] = min(drift, 1.0)
        own[key] = max(own.get(key, 0.0), local.get(name, 0.0))
    return list(whole), {
        "whole run, drift inherited": list(whole.values()),
        "operators on equal inputs": list(own.values()),
    }


def _layer(name: str) -> str:
    parts = name.split(".")
    if "layers" in parts and parts[-1] != "layers":
        return f"layer {parts[parts.index('layers') + 1]}"
    return name.removeprefix("model.").removesuffix(".residual")


def svg(title: str, names: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Return a chart of relative differences by layer, one line for each series."""
    step, base = (WIDTH - LEFT - 20) / max(1, len(names)), HEIGHT - BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        '<g font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
    ]
    lowest = round(math.log10(FLOOR))
    for power in range(lowest, 1, 2):
        at, label = _height(10.0**power), "0" if power == lowest else f"1e{power}"
        lines += [
            f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    for number, (label, values) in enumerate(series.items()):
        color, x = COLORS[number % len(COLORS)], LEFT + 220 * number
        points = [(LEFT + step * (i + 0.5), _height(value)) for i, value in enumerate(values)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{color}"/>' for px, py in points]
        lines.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{color}"/>')
        lines.append(f'<text x="{x + 14}" y="37">{escape(label)}</text>')
    every = max(1, len(names) // 16)
    for i, name in enumerate(names):
        if i % every == 0 or not name.startswith("layer"):
            place = f"{LEFT + step * (i + 0.5):.1f},{base + 14}"
            lines.append(
                f'<text transform="translate({place}) rotate(-30)" text-anchor="end">{escape(name)}</text>'
            )
    lines.append(
        f'<text transform="translate(16,{(TOP + base) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        "relative difference of a token</text>"
    )
    return "\n".join([*lines, "</g></svg>"]) + "\n"


def _height(value: float) -> float:
    """Return the y of a value on the logarithmic axis from FLOOR to 1."""
    base = HEIGHT - BOTTOM
    return base - (base - TOP) * math.log10(max(value, FLOOR) / FLOOR) / math.log10(1 / FLOOR)
