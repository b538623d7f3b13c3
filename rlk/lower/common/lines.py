"""Lines and functions of generated text, before a template punctuates them."""

from __future__ import annotations

from dataclasses import dataclass
from posixpath import basename

from rlk.errors import Loc
from rlk.ir.nodes import Let
from rlk.ir.online import NOTES

INDENT = "    "


@dataclass(frozen=True, slots=True)
class Line:
    """One statement, indented by Python, and the spec line that it comes from.

    assigned: the name and the expression of a line that only gives a value a name.
    """

    text: str
    place: str = ""
    assigned: tuple[str, str] | None = None

    @property
    def full(self) -> str:
        return f"{self.text}  # {self.place}" if self.place else self.text


def place_of(loc: Loc) -> str:
    """Return where a node comes from, as the comments of generated lines say it."""
    return f"{basename(loc.file)}:{loc.line}" if loc.line else ""


def notes_of(let: Let, depth: int) -> list[Line]:
    """Return the comment on why a value is computed, if there is one."""
    why = NOTES.get(let.name)
    return [] if why is None else [Line(f"{INDENT * depth}# {why}")]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a generated module: a helper, or a kernel.

    calls: prelude functions that the body calls, of a helper whose writer notes them nowhere else.
    """

    name: str
    arguments: tuple[str, ...]
    about: str
    body: tuple[Line, ...]
    calls: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        return ", ".join(self.arguments)
