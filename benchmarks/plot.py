"""Figures of recorded rows: `python -m benchmarks.plot [FOLDER] [TARGET]`, one figure for each family.

Rows are bars beside their peers; growing groups are curves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from PIL import Image

from benchmarks.rows import RESULTS, Record, label, records

TARGET = Path(__file__).parent.parent / "docs" / "figures"
OURS = ("#0b6e4f", "#5fb894")  # the row itself, and its variants
PEERS = ("#b8c4cc", "#8fa1ad", "#6b7f8d", "#4c5f6c", "#33434e", "#202c35")
MOST_ROWS = 8
COLOURS = 16  # of the palette, the farthest apart: by medians the dashed line loses its red
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # readable over the line of the limit


def bars(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return rlk and the measured peers of a row, fastest first."""
    measured = [(name, peer["ms"]) for name, peer in row["peers"].items() if "ms" in peer]
    return sorted([(f"rlk {row['backend']}", row["ms"]), *measured], key=lambda bar: bar[1])


def coloured(names: Sequence[str]) -> dict[str, str]:
    """Give rlk and its variants greens, everybody else greys."""
    others = [name for name in names if not name.startswith("rlk")]
    ours = {name: OURS[not name.startswith("rlk ")] for name in names if name.startswith("rlk")}
    return ours | {name: PEERS[(2 * i) % len(PEERS)] for i, name in enumerate(others)}


def panel(axes: Any, row: Mapping[str, Any], colours: Mapping[str, str]) -> None:
    """Draw one row: a bar for each variant with its time, and the roofline as a dashed line."""
    drawn = bars(row)
    names, times = [name for name, _ in drawn], [ms for _, ms in drawn]
    shown = 4 * min(times)  # a peer many times slower would flatten the rest: it is cut and keeps its number
    axes.barh(names, [min(t, shown) for t in times], color=[colours[name] for name in names], height=0.7)
    for place, ms in enumerate(times):
        axes.text(min(ms, shown), place, f" {ms:.3g} ms", va="center", fontsize=8, bbox=LABEL)
    if row["roofline"]:
        axes.axvline(row["roofline"] * row["ms"], color="#c0392b", linewidth=1, linestyle="--")
    axes.set_title(label(row), fontsize=9, loc="left")
    axes.set_xlim(0, 1.25 * min(max(times), shown))
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def figure(record: Record, rows: Sequence[Mapping[str, Any]], target: Path) -> Path:
    """Draw the rows that have peers and write the figure."""
    colours = coloured(sorted({name for row in rows for name, _ in bars(row)}))
    heights = [0.6 + 0.3 * len(bars(row)) for row in rows]
    drawing, panels = plt.subplots(
        len(rows), 1, figsize=(7, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axes, row in zip(panels[:, 0], rows):
        panel(axes, row, colours)
    panels[-1, 0].set_xlabel(
        f"milliseconds on one {record.device}; dashed: the roofline by counted bytes or operations",
        fontsize=8,
    )
    return save(record, drawing, target)


def save(record: Record, drawing: Any, target: Path) -> Path:
    """Write a figure under the name of its device and family."""
    target.mkdir(parents=True, exist_ok=True)
    file = target / f"{record.device.lower().replace(' ', '-')}-{record.family}.png"
    drawing.savefig(file, dpi=144)
    plt.close(drawing)
    with Image.open(file) as picture:  # a palette takes a third of the bytes
        flat = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    flat.save(file, optimize=True)
    return file


# --- groups ---

AXES = (("ms", 1e3, "seconds"), ("extra_mib", 1024.0, "GiB beyond arguments and results"))


def variants(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return rlk and the peers of a row by name, measured or not."""
    return {f"rlk {row['backend']}": row, **row["peers"]}


def curves(axes: Any, rows: Sequence[Mapping[str, Any]], key: str, unit: float) -> None:
    """Draw one quantity of each variant against the size of the group, as far as it was measured."""
    for name, colour in coloured(list(variants(rows[0]))).items():
        found = [(int(row["shape"]["G"]), variants(row).get(name, {})) for row in rows]
        points = [(size, there[key] / unit) for size, there in found if key in there]
        full = [size for size, there in found if there.get("absent") == "out of memory"]
        if not points and not full:
            continue
        words = f"{name}: out of memory at {min(full)}" if full else name
        axes.plot([s for s, _ in points], [y for _, y in points], marker="o", color=colour, label=words)
        for size, value in points:
            number = f"{value:.0f}" if value >= 10 else f"{value:.2g}"
            axes.annotate(number, (size, value), (0, 4), textcoords="offset points", fontsize=7)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xscale("log", base=2)
    axes.set_xticks([int(row["shape"]["G"]) for row in rows], [str(row["shape"]["G"]) for row in rows])
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def grown(record: Record, target: Path) -> Path:
    """Draw time and memory against the size of the group; a variant ends where it runs out of memory."""
    rows = sorted(record.rows, key=lambda row: int(row["shape"]["G"]))
    drawing, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axes, (key, unit, title) in zip(panels, AXES, strict=True):
        curves(axes, rows, key, unit)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel(f"completions of {rows[0]['shape']['L']} tokens on one {record.device}", fontsize=8)
    panels[0].legend(fontsize=7, frameon=False)
    return save(record, drawing, target)


def joined(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a row for each name: its fastest backend, the others and their peers beside that one's own."""
    named: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        named.setdefault(label(row), []).append(row)
    found = []
    for each in named.values():
        best, *others = sorted(each, key=lambda row: row["ms"])
        peers = {}
        for row in (*reversed(others), best):
            peers |= {name: peer for name, peer in row["peers"].items() if "ms" in peer}
        peers |= {f"rlk {row['backend']}": {"ms": row["ms"]} for row in others}
        found.append({**best, "peers": peers})
    return found


def main() -> None:
    """Draw every record below a folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else TARGET
    for record in records(folder):
        if any({"G", "L"} <= row["shape"].keys() for row in record.rows):
            print(grown(record, target))
            continue
        rows = [row for row in joined(record.rows) if len(bars(row)) > 1][:MOST_ROWS]
        if rows:
            print(figure(record, rows, target))


if __name__ == "__main__":
    main()
