"""Lines and functions of generated text, before a template punctuates them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One statement, indented by Python, and the spec line that it comes from."""

    text: str
    place: str = ""

    @property
    def full(self) -> str:
        return f"{self.text}  # {self.place}" if self.place else self.text


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a generated module: a helper, or a kernel."""

    name: str
    arguments: tuple[str, ...]
    about: str
    body: tuple[Line, ...]

    @property
    def signature(self) -> str:
        return ", ".join(self.arguments)
