"""Names of values in generated text: their hints, made unique among the names in scope."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import Decl

# Hints that would hide a builtin, in the letters of the papers.
_RENAMED = {
    "max": "m",
    "sum": "s",
    "min": "low",
    "abs": "magnitude",
    "range": "span",
    "float": "real",
    "int": "whole",
}


def axis_name(axis: Axis) -> str:
    """Return the stem of the names of an axis's indices."""
    name = axis.name.lower()
    return name if axis.part is Part.ALL else f"{name}_{axis.part.value}"


def stride_name(decl: Decl, dim: int) -> str:
    """Return the name of the stride of a dim as a parameter."""
    return f"{decl.name}_{axis_name(decl.type.axes[dim])}_stride"


@dataclass(slots=True)
class Names:
    """Gives out identifiers; those given inside `scope` are free again after it."""

    taken: set[str] = field(default_factory=set)

    def fresh(self, hint: str) -> str:
        """Return an identifier like the hint that no name in scope has."""
        base = re.sub(r"\W+", "_", _RENAMED.get(hint, hint)).strip("_") or "value"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Free the names given inside."""
        before = set(self.taken)
        try:
            yield
        finally:
            self.taken = before
