"""Where templates and checked-in kernels are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def templates() -> Path:
    """Return the folder of module templates, one subfolder per backend."""
    return _tree("templates")


@cache
def generated() -> Path:
    """Return the folder of checked-in kernels, `<target>/<backend>/<kernel>.py`."""
    return _tree("generated")


def _tree(name: str) -> Path:
    package = Path(__file__).resolve().parent
    packaged = package / f"_{name}"
    return packaged if packaged.is_dir() else package.parent / name
