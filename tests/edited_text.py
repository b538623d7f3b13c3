"""The text of a lowering, edited: a control that must be seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlk.lower.common.emitted import Emitted
from rlk.lower.common.layout import on_one_line, statements, without_place
from rlk.testing.simulators.simt import Fault


def edit_text(monkeypatch: pytest.MonkeyPatch, lowering: Any, edit: Callable[[str], str]) -> None:
    """Have the text that a lowering writes edited from now on; an edit that changes nothing fails.

    The edit gets every statement on one line.
    """
    real = lowering.lower

    def changed(*args: Any, **kwargs: Any) -> Emitted:
        emitted: Emitted = real(*args, **kwargs)
        source = joined(emitted.source)
        edited = edit(source)
        assert edited != source
        return replace(emitted, source=edited)

    monkeypatch.setattr(lowering, "lower", changed)


def assert_refused(
    monkeypatch: pytest.MonkeyPatch, lowering: Any, mistake: tuple[str, str, str], run: Callable[[], Any]
) -> None:
    """Check that a mistake, a pattern and what stands in its place, is a fault, for a reason."""
    pattern, new, why = mistake
    edit_text(monkeypatch, lowering, substituted(pattern, new))
    with pytest.raises(Fault, match=why):
        run()


def substituted(pattern: str, new: str) -> Callable[[str], str]:
    """Return the edit that puts something new where a pattern stands."""
    return lambda text: re.sub(pattern, new, text)


def joined(source: str) -> str:
    """Return the text of a module with each statement on one line: what does not depend on layout."""
    lines = source.split("\n")
    made, done = [], 0
    for first, last in statements(source):
        made += lines[done:first]
        done = last + 1
        code, place = without_place(lines[first : last + 1])
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        comments = [line for line in code if line.lstrip().startswith("#")]
        made += [*comments, indent + on_one_line(code) + (f"  # {place}" if place else "")]
    return "\n".join([*made, *lines[done:]])
