"""The record of an operator: all that rlk knows of it beside its spec, written by its registration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """Conditions on the inputs of one operator that its types do not state.

    inputs: what cannot be drawn freely; its shapes fix extents. gradient: extra inputs of the gradient.
    present: sets of optional inputs to try beside none and all. statics: values to try of statics that list
    no choices. straight: per static, values whose gradient is by definition that of another one. finite:
    inputs that hold neither infinities nor NaN where bits are compared.
    """

    inputs: Callable[[np.random.Generator], Values] = lambda rng: {}
    gradient: Callable[[Mapping[str, Any]], Values] = lambda saved: {}
    present: tuple[tuple[str, ...], ...] = ()
    statics: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    straight: Mapping[str, Mapping[object, object]] = field(default_factory=dict)
    finite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """A case, what happens then, and Python that says so: it is true, or raises where `happens` says that."""

    case: str
    happens: str
    code: str


@dataclass(frozen=True, slots=True)
class Unshown:
    """Kernels of an operator of rlk that are not checked in, and why.

    program: "forward" or "gradient", "" for both. backend: of this one, "" for every one.
    """

    why: str
    program: str = ""
    backend: str = ""

    def holds(self, program: str, backend: str) -> bool:
        """Return whether it leaves out a backend's kernel of the forward or the gradient."""
        return self.program in ("", program) and self.backend in ("", backend)


@dataclass(frozen=True, slots=True)
class Record:
    """Facts of an operator beside its spec.

    reference: the operator in float64, with the arguments of a call. example: how `rlk check` draws inputs.
    extents: sizes of axes at which the operator is shown, generated and described. present, statics: the
    optional inputs and options of that variant. usage: lines of Python that use it, for its page. edges: its
    behaviour in cases, each run by tests. unshown: what `rlk gen` leaves out of the checked-in kernels.
    """

    reference: Callable[..., Any] | None = None
    example: Example | None = None
    extents: Mapping[str, int] = field(default_factory=dict)
    present: tuple[str, ...] = ()
    statics: Mapping[str, object] = field(default_factory=dict)
    usage: str = ""
    edges: tuple[Edge, ...] = ()
    unshown: tuple[Unshown, ...] = ()
