"""Records of public functions with the facts of their pages: an example of use, and behaviour at edges.

Those of rlk's functions stand in `facts.txt`, those of other packages in their registrations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from rlk.errors import Code, LaunchError
from rlk.lang.record import Edge, Record
from rlk.ops import OPERATORS
from rlk.runtime.registry import others

__all__ = ["Edge", "facts", "facts_of"]


def facts() -> Mapping[str, Record]:
    """Return the record of every public function by name, those of other packages as namespace.name."""
    return {**_own(), **{name: op.record for name, op in others().items()}}


@cache
def _own() -> dict[str, Record]:
    """Return the records of rlk's functions, with the facts that `facts.txt` has of each."""
    text = Path(__file__).with_name("facts.txt").read_text(encoding="utf-8")
    found = {}
    for part in text.removeprefix("## ").split("\n## "):
        name, _, rest = part.partition("\n")
        usage, *rows = rest.strip().split("\n\n")
        edges = tuple(Edge(*row.split(" | ")) for row in "\n".join(rows).splitlines())
        published = OPERATORS.get(name)
        record = Record() if published is None else Record(reference=published.reference)
        found[name] = replace(record, usage=usage, edges=edges)
    return found


def facts_of(name: str) -> Record:
    """Return the record of a public function; raise LaunchError with the names there are."""
    found = facts()
    if name not in found:
        raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=name, choices=", ".join(found))
    return found[name]
