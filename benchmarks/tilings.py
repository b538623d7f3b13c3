"""Which tilings the tuner tries for each class of rows, and how they are written."""

from __future__ import annotations

from dataclasses import fields

from rlk.schedule.entries import ROW_CLASSES
from rlk.schedule.table import Tiling

MORE = ROW_CLASSES[-1] + 1  # stands for the rows above the largest class

# rows x columns x depth, warps, stages; p: programs a core, g: group; flat, turned, pointers
PRODUCTS: dict[int, tuple[str, ...]] = {
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
PIECES: dict[int, tuple[str, ...]] = {
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
FOLDS: dict[int, tuple[str, ...]] = {
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

_LETTERS = {"w": "warps", "s": "stages", "p": "per_core", "g": "group"}


def tiling(text: str) -> Tiling:
    """Return what "64x128x64 4w 7s p1 g16 flat turned" means."""
    size, *words = text.split()
    found: dict[str, int | bool] = dict(zip(("rows", "columns", "depth"), map(int, size.split("x"))))
    for word in words:
        if word in ("flat", "turned"):
            found[word] = True
        elif word == "pointers":
            found["descriptors"] = False
        elif word[-1] in "ws":
            found[_LETTERS[word[-1]]] = int(word[:-1])
        else:
            found[_LETTERS[word[0]]] = int(word[1:])
    return Tiling(**found)  # type: ignore[arg-type]


def written(use: Tiling) -> str:
    """Return a tiling as the table has it."""
    plain = Tiling(use.rows)
    values = {f.name: getattr(use, f.name) for f in fields(Tiling)}
    shown = [n for n, v in values.items() if n in ("rows", "warps", "stages") or v != getattr(plain, n)]
    return "{ " + ", ".join(f"{n} = {str(values[n]).lower()}" for n in shown) + " }"
