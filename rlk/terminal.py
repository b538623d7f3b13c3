"""Safe text for terminals: control characters and unencodable ones are shown as escapes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

NARROWEST = 20  # columns of a line that is written over
WIDEST = 110


class Unwritable(Exception):
    """Output could not be written; the message says why."""


def printable(text: object, kept: str = "") -> str:
    """Return text on one line; what would break it or steer a terminal is written as in Python's source.

    kept: characters that stay as they are.
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in plain)


class Plain:
    """A stream of text whose lines hold nothing but printable characters that its encoding has."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text, escaped; raise Unwritable where there is no space, or BrokenPipeError."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        safe = printable(text, "\n\t").encode(encoding, "backslashreplace").decode(encoding)
        with _writing():
            self.stream.write(safe)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines, escaped."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand on what was written; raise as `write` does."""
        with _writing():
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritable(error.strerror or str(error)) from None


def write_over(stream: TextIO | Plain, line: str) -> None:
    """Show a line in place of the present one of a terminal, no wider than it: a longer one could not be."""
    inner = stream.stream if isinstance(stream, Plain) else stream
    inner.write(f"\r\x1b[K{printable(line)[: columns(inner) - 1]}")
    inner.flush()


def columns(stream: TextIO) -> int:
    """Return how many columns a line that is written over may have: the terminal's, at most 110."""
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        found = 0  # no terminal, or one that does not say
    return min(max(found or 80, NARROWEST), WIDEST)
