"""Layout of the command line's output: plain tables, and a line of progress on a terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlk.env import whole
from rlk.errors import Code, LaunchError
from rlk.terminal import printable, write_over

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> str:
    """Return rows as aligned columns under their headers; columns named in `right` are aligned there.

    A row takes one line: what would break it, or steer a terminal, is shown as escapes.
    """
    cells = [list(headers), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = []
    for row in cells:
        parts = (
            cell.rjust(width) if header in right else cell.ljust(width)
            for cell, width, header in zip(row, widths, headers, strict=True)
        )
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def fields(pairs: Sequence[tuple[str, object]], indent: str = "  ") -> str:
    """Return names and values, one a line; a value of several lines stays in its column."""
    width = max((len(name) for name, _ in pairs), default=0)
    gap = "\n" + indent + " " * (width + 2)
    return "\n".join(f"{indent}{name:<{width}}  {gap.join(str(value).splitlines())}" for name, value in pairs)


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError(count)


def pairs(command: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return options of the form NAME=VALUE in their parts; raise LaunchError for others."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise LaunchError(Code.ARG_VALUE, op=command, name="option", value=text, wanted="NAME=VALUE")
        found.append((name, value))
    return found


def given_extents(command: str, texts: Sequence[str], axes: Iterable[str]) -> dict[str, int]:
    """Return the extents that options NAME=N give some of these axes; raise LaunchError for others."""
    known, found = sorted(axes), {}
    for name, text in pairs(command, texts):
        if name not in known:
            raise LaunchError(Code.UNKNOWN_NAME, what="axis", name=name, choices=", ".join(known))
        extent = whole(text)
        if not extent or extent >= 2**31:
            wanted = "a positive number below 2**31"
            raise LaunchError(Code.ARG_VALUE, op=command, name=name, value=text[:60], wanted=wanted)
        found[name] = extent
    return found


def made_folder(path: Path, op: str, option: str) -> Path:
    """Return a folder that can be written to, made if need be; raise LaunchError naming the option."""
    why = ""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
    if why or not os.access(path, os.W_OK | os.X_OK):
        wanted = f"a folder that can be written to ({why or 'Permission denied'})"
        raise LaunchError(Code.ARG_VALUE, op=op, name=option, value=str(path), wanted=wanted)
    return path


def file_to_write(path: Path, op: str, option: str) -> Path:
    """Return the path of a file that can be written; raise LaunchError naming the option."""
    folder = path.parent
    if path.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"{folder} is no folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "Permission denied"
    else:
        return path
    wanted = f"a file that can be written ({why})"
    raise LaunchError(Code.ARG_VALUE, op=op, name=option, value=str(path), wanted=wanted)


def natural(text: str) -> int:
    """Return the number from 0 on that an argument names; raise ArgumentTypeError for another text."""
    count = whole(text)
    if count is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number of at least 0")
    return count


def positive(text: str) -> int:
    """Return the number from 1 on that an argument names; raise ArgumentTypeError for another text."""
    count = whole(text)
    if not count:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number of at least 1")
    return count


class Progress:
    """One line on stderr that says what is being done; silent unless stderr is a terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.live = sys.stderr.isatty()

    def say(self, what: str) -> None:
        """Show a bar and what is being done now."""
        if self.live:
            filled = 20 * self.done // max(self.total, 1)
            bar = "#" * filled + "." * (20 - filled)
            write_over(sys.stderr, f"[{bar}] {self.done}/{self.total} {what}")

    def step(self) -> None:
        """Count one of the total as done."""
        self.done += 1

    def clear(self) -> None:
        """Remove the line, so that other output can follow."""
        if self.live:
            write_over(sys.stderr, "")
