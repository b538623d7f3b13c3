"""Candidate tilings of a contraction, and their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import ModuleType

from rlk.backends.registry import of_name
from rlk.schedule import triton_table
from rlk.schedule.cute_table import MOST_COLUMNS, Warpgroups, most_stages
from rlk.schedule.cute_tiles import GROUP
from rlk.schedule.entries import MORE, Facts, row_class
from rlk.schedule.triton_table import Tiling

Use = Tiling | Warpgroups
Lists = Mapping[int, tuple[str, ...]]

# rows x columns x depth, warps, stages; p: programs a core, g: group; flat, turned, pointers
PRODUCTS: Lists = {
    16: (
        "16x16x256 4w 6s",
        "16x32x128 4w 7s",
        "16x32x128 4w 4s",
        "16x32x256 4w 6s",
        "16x32x256 4w 4s",
        "16x32x128 4w 7s pointers",
        "16x32x128 4w 5s pointers",
        "16x32x256 4w 4s pointers",
        "16x16x256 4w 6s pointers",
        "16x64x128 4w 4s pointers",
        "16x64x128 4w 5s",
        "16x64x128 4w 7s",
        "16x32x128 4w 7s p2 flat",
        "16x64x128 4w 5s turned",
        "16x64x128 4w 7s turned",
        "16x64x256 4w 5s turned",
        "16x64x128 4w 5s p2 flat turned",
        "16x128x64 4w 8s turned",
        "16x128x128 4w 5s turned",
        "128x256x64 8w 4s p1 g16",
    ),
    64: (
        "32x32x128 4w 7s",
        "32x64x128 4w 5s turned",
        "32x64x128 4w 7s turned",
        "32x128x64 4w 8s turned",
        "64x32x128 4w 4s",
        "64x32x128 4w 7s",
        "32x32x128 4w 6s pointers",
        "32x64x128 4w 4s turned pointers",
        "64x32x128 4w 4s pointers",
        "64x64x128 4w 3s pointers",
        "64x64x64 4w 6s",
        "64x64x128 4w 3s",
        "64x64x128 4w 6s",
        "64x64x128 4w 6s p1 flat",
        "64x128x64 4w 4s",
        "64x128x64 4w 7s turned",
        "64x128x128 4w 4s turned",
        "128x256x64 8w 4s p1 g16",
    ),
    256: (
        "64x64x64 4w 6s",
        "64x64x128 4w 3s",
        "64x64x128 4w 3s pointers",
        "64x64x128 4w 6s",
        "64x128x64 4w 4s",
        "64x128x64 4w 8s",
        "64x128x128 4w 4s",
        "64x256x64 4w 5s",
        "128x64x64 4w 4s",
        "128x64x128 4w 4s",
        "128x128x64 4w 3s",
        "128x128x64 8w 6s",
        "128x256x64 8w 4s",
        "128x256x64 8w 4s p1 g16",
    ),
    1024: (
        "64x256x64 4w 5s p1 g16",
        "128x128x64 4w 3s g8",
        "128x128x64 8w 3s g8",
        "128x128x64 8w 6s p1 flat g8",
        "128x128x128 8w 3s p1 flat g8",
        "128x256x64 8w 4s g8",
        "128x256x64 8w 4s p1 g16",
        "128x256x64 8w 3s p1 flat g16",
        "256x128x64 8w 4s p1 g8",
    ),
    MORE: (
        "128x256x64 8w 4s p1 g16",
        "128x256x64 8w 4s p1 g8",
        "128x256x64 8w 3s p1 flat g16",
        "128x128x64 8w 6s p1 flat g16",
    ),
}

# eight pieces side by side, each an eighth of the length: there are many programs however few the rows
PIECES: Lists = {
    16: (
        "16x64x128 4w 4s pointers",
        "16x64x128 4w 4s turned",
        "16x128x128 4w 4s turned",
        "128x256x64 8w 4s p1 g16",
    ),
    64: (
        "64x64x128 4w 3s pointers",
        "64x64x128 4w 4s",
        "64x128x128 4w 4s turned",
        "128x256x64 8w 4s p1 g16",
    ),
    256: (
        "64x128x64 4w 4s",
        "128x128x64 4w 3s",
        "128x128x64 8w 6s",
        "128x256x64 8w 4s p1 g16",
    ),
    1024: (
        "128x128x64 4w 3s g8",
        "128x128x64 8w 6s p1 g8",
        "128x256x64 8w 4s p1 g16",
    ),
}

# columns are the chunk of the fold, so they are fixed: 256
FOLDS: Lists = {
    16: (
        "16x256x64 4w 5s p1",
        "16x256x64 4w 4s p2",
        "16x256x64 4w 3s p3",
        "16x256x64 8w 7s p1",
        "16x256x128 4w 3s p1",
        "16x256x64 4w 5s p1 turned",
        "16x256x64 8w 5s p1 turned",
        "64x256x64 4w 4s p1 g16",
        "64x256x64 4w 5s p1 g16",
    ),
    64: (
        "32x256x64 4w 6s p1",
        "32x256x64 4w 4s p2",
        "64x256x64 4w 4s p1 g16",
        "64x256x64 4w 5s p1 g16",
        "64x256x64 4w 2s p2 g16",
        "64x256x64 8w 5s p1 g16",
    ),
    1024: (
        "64x256x64 4w 4s p1 g16",
        "64x256x64 4w 5s p1 g16",
        "64x256x64 8w 5s p1 g16",
        "128x256x64 8w 4s p1 g16",
    ),
    MORE: (
        "128x256x64 8w 4s p1 g8",
        "128x256x64 8w 4s p1 g16",
        "128x256x64 8w 4s p1 g32",
        "128x256x64 8w 3s p1 g16",
    ),
}

# rows x columns of warpgroups; c: cluster; unless said, stages are as many as fit and groups have 8 tiles
WARPGROUPS: Lists = {
    16: (
        "8x64",
        "8x64 p2",
        "8x128",
        "16x64",
        "16x64 p2",
        "16x128",
        "64x32",
        "64x64",
        "64x128",
        "64x256",
        "64x256 4s",
        "64x256 3s",
    ),
    32: (
        "32x64",
        "32x64 p2",
        "32x128",
        "64x32",
        "64x64",
        "64x128",
        "64x256",
        "64x256 4s",
        "64x256 3s",
    ),
    64: (
        "64x32",
        "64x32 p2",
        "64x48",
        "64x64",
        "64x64 p2",
        "64x128",
        "64x256",
        "64x256 4s",
        "64x256 3s",
    ),
    128: (
        "64x32",
        "64x64",
        "64x128",
        "64x64 c2",
        "64x128 c2",
        "64x256 c2",
        "64x96 c2",
        "128x32",
        "128x48",
        "128x64",
        "128x128",
        "128x256",
    ),
    512: (
        "64x64 c2",
        "64x128",
        "64x128 c2",
        "64x256 c2",
        "128x64",
        "128x64 c2",
        "128x128",
        "128x128 c2",
        "128x160 c2",
        "128x192 c2",
        "128x256",
        "128x256 c2",
    ),
    1024: (
        "64x256",
        "64x256 c2",
        "128x64 c2",
        "128x128",
        "128x128 g4 c2",
        "128x128 c2",
        "128x256",
        "128x256 g4 c2",
        "128x256 c2",
    ),
    MORE: (
        "128x256 c2",
        "128x256 g4 c2",
        "128x256 g16 c2",
        "128x256 3s c2",
        "128x256",
        "128x256 g16",
        "128x128",
        "128x128 c2",
        "128x128 g16 c2",
        "64x256 c2",
    ),
}


def table_of(backend: str) -> ModuleType:
    """Return the module of the table of a backend that is tuned."""
    table = of_name(backend).table
    assert table is not None  # `rlk tune` offers no other
    return table()


def candidates(facts: Facts, backend: str) -> tuple[str, ...]:
    """Return the tilings that are tried, as text: the first list for so many rows, else the last.

    A fold holds its chunk whole, so its columns are not tried; nor are tiles wider than there are columns.
    """
    table = table_of(backend)
    lists = WARPGROUPS
    if table is triton_table:
        lists = FOLDS if facts.kind == "stream_dot" else PIECES if facts.pieces > 1 else PRODUCTS
    rank = row_class(facts.rows)
    listed = lists[min((most for most in lists if rank <= most), default=max(lists))]
    if table is triton_table:
        return listed
    if facts.kind == "stream_dot":
        return tuple(text for text in listed if tiling(text).columns == MOST_COLUMNS)
    widths = sorted({tiling(text).columns for text in listed})
    wide = next((n for n in widths if n >= (facts.columns or MOST_COLUMNS)), MOST_COLUMNS)
    return tuple(text for text in listed if tiling(text).columns <= wide)


_LETTERS = {"w": "warps", "s": "stages", "p": "per_core", "g": "group", "c": "cluster"}


def tiling(text: str) -> Use:
    """Return what "64x128x64 4w 7s p1 g16 flat turned" means, or "128x256 4s g8 c2": warpgroups."""
    size, *words = text.split()
    sizes = tuple(map(int, size.split("x")))
    found: dict[str, int | bool] = dict(zip(("rows", "columns", "depth"), sizes))
    for word in words:
        if word in ("flat", "turned"):
            found[word] = True
        elif word == "pointers":
            found["descriptors"] = False
        elif word[-1] in "ws":
            found[_LETTERS[word[-1]]] = int(word[:-1])
        else:
            found[_LETTERS[word[0]]] = int(word[1:])
    if len(sizes) == 3:
        return Tiling(**found)  # type: ignore[arg-type]
    most = most_stages(sizes[0], sizes[1], int(found.get("per_core", 1)))
    return Warpgroups(**{"group": GROUP, "stages": most, **found})


def written(use: Use) -> str:
    """Return a tiling as its table has it: what differs from the defaults, warps and stages always."""
    values = {f.name: getattr(use, f.name) for f in fields(use)}
    plain = {f.name: f.default for f in fields(use) if f.default is not MISSING}
    shown = [n for n, v in values.items() if n in ("warps", "stages") or n not in plain or v != plain[n]]
    return "{ " + ", ".join(f"{n} = {str(values[n]).lower()}" for n in shown) + " }"
