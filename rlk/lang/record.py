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
class Record:
    """Facts of an operator beside its spec.

    reference: the operator in float64, with the arguments of a call. example: how `rlk check` draws inputs.
    extents: sizes of axes at which the operator is shown, generated and described. present, statics: the
    optional inputs and options of that variant. usage: lines of Python that use it, for its page. edges: its
    behaviour in cases, each run by tests.
    """

    reference: Callable[..., Any] | None = None
    example: Example | None = None
    extents: Mapping[str, int] = field(default_factory=dict)
    present: tuple[str, ...] = ()
    statics: Mapping[str, object] = field(default_factory=dict)
    usage: str = ""
    edges: tuple[Edge, ...] = ()
