"""Facts of public operators that specs do not hold: an example of use, and behaviour at edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlk.errors import Code, LaunchError
from rlk.lang.record import Edge
from rlk.runtime.registry import others

__all__ = ["Edge", "Facts", "facts", "facts_of"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one operator. specs: what calls run beside its own specs. In an edge f is the operator."""

    specs: tuple[str, ...]
    example: str
    edges: tuple[Edge, ...]


@cache
def facts() -> dict[str, Facts]:
    """Return the facts of every public operator, by name, as `facts.txt` has them."""
    text = Path(__file__).with_name("facts.txt").read_text(encoding="utf-8")
    found = {}
    for part in text.removeprefix("## ").split("\n## "):
        names, _, rest = part.partition("\n")
        example, *rows = rest.strip().split("\n\n")
        edges = (Edge(*row.split(" | ")) for row in "\n".join(rows).splitlines())
        name, *specs = names.split()
        found[name] = Facts(tuple(specs), example, tuple(edges))
    return found


def facts_of(name: str) -> Facts:
    """Return the facts of an operator; raise LaunchError with the names there are."""
    if name in others():
        record = others()[name].record
        return Facts((), record.usage or "# its registration has no usage=", record.edges)
    if name not in facts():
        raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=name, choices=", ".join(facts()))
    return facts()[name]
