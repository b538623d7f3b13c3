"""Locations of rlk's templates and checked-in kernels, in a checkout or a wheel."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def templates() -> Path:
    """Return the folder of module templates, one subfolder per backend."""
    return _tree("templates")


@cache
def generated() -> Path:
    """Return the folder of checked-in kernels, `<target>/<backend>/<kernel>.py`."""
    return _tree("generated")


@cache
def installing(extra: str) -> str:
    """Return the command that adds an extra's packages to this installation: no index has rlk."""
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    try:
        release = version("rlk")
    except PackageNotFoundError:
        release = "VERSION"
    return f"pip install './rlk-{release}-py3-none-any.whl[{extra}]', the wheel that rlk was installed from"


def _tree(name: str) -> Path:
    package = Path(__file__).resolve().parent
    packaged = package / f"_{name}"
    return packaged if packaged.is_dir() else package.parent / name
