"""The line of a spec that an error about one of its kernels names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlk.errors import NOWHERE, Loc, LoweringError
from rlk.ir.dims import Axis
from rlk.ir.nodes import Dot, Kernel, Let, Loop, Merge, Reduce, Store
from rlk.passes.walk import walk


def place_of(kernel: Kernel, over: Axis | None = None) -> Loc:
    """Return the place of what decides a kernel's form: a contraction, else a reduction, else a store.

    over: an axis, of whose contraction or reduction it is the place.
    """
    lets = [let for let in walk(kernel.body) if let.loc != NOWHERE]
    named = [let for let in lets if over is not None and _over(let) == over]
    ranked = (named, *([let for let in lets if isinstance(let.node, kind)] for kind in _KINDS), lets)
    return next((found[0].loc for found in ranked if found), NOWHERE)


_KINDS = (Dot, Loop, Reduce | Merge, Store)


def _over(let: Let) -> Axis | None:
    match let.node:
        case Dot(over=over) | Reduce(over=over) | Merge(over=over):
            return over
        case Loop(axis=axis):
            return axis
        case _:
            return None


@contextmanager
def in_kernel(kernel: Kernel) -> Iterator[None]:
    """Give an error without a place the place of the kernel that it is raised for."""
    try:
        yield
    except LoweringError as error:
        place = place_of(kernel)
        if error.loc != NOWHERE or place == NOWHERE:
            raise
        raise error.placed(place) from error
