"""The order of the passes: traced program -> canonical program -> the program that one signature runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlk.ir.nodes import MathModel, Program
from rlk.ir.verify import verify
from rlk.passes.by_index import by_index
from rlk.passes.expand import expand
from rlk.passes.kernel_split import cut
from rlk.passes.mask import mask
from rlk.passes.nearest import nearest
from rlk.passes.pack_gqa import one_axis_of_rows
from rlk.passes.piecewise_launch import sweep
from rlk.passes.resident import resident
from rlk.passes.rewrite import each
from rlk.passes.rows_beside import beside
from rlk.passes.shared_tiles import share_tiles
from rlk.passes.simplify import simplify
from rlk.passes.specialize import bind_extents, bind_math
from rlk.passes.split_reduction import pieces
from rlk.passes.stream_results import kept

Pass = Callable[[Program], Program]
KNOWN = 256  # programs whose canonical form is kept

CANONICAL: tuple[tuple[str, Pass], ...] = (
    ("keep", lambda p: each(p, kept)),
    ("pieces", lambda p: each(p, pieces)),
    ("expand", lambda p: each(p, expand)),
    ("simplify", lambda p: each(p, simplify)),
    ("cut", cut),
    ("mask", lambda p: each(p, mask)),
    ("canonical", lambda p: each(p, simplify)),
)
"""The passes from the traced form to the canonical form, of which numerics ids are made."""


_Key = tuple[int, object, str | None, frozenset[Any]]
_known: dict[_Key, tuple[Program, Program]] = {}
"""What `canonical` and `specialize` were given and returned, by the identity of the program, alive here."""


def canonical(program: Program, after: str | None = None, *, apart: frozenset[str] = frozenset()) -> Program:
    """Return the canonical program, verified; or the program after a named pass.

    apart: names of streamed axes whose chunks, and of contracted axes whose pieces, are to run in parallel,
    in kernels of their own, with the same bits; of `rows_beside`, those of streams whose rows are. Numerics
    ids are those of the program without. A program that it was given before (the same object, as a trace
    returns it) is not changed again.
    """
    key = id(program), CANONICAL, after, apart
    found = _known.get(key)
    if found is None:
        if len(_known) >= KNOWN:  # another thread may do so between any two lines
            _known.clear()
        found = _known[key] = program, _canonical(program, after, apart)
    return found[1]


def _canonical(program: Program, after: str | None, apart: frozenset[str]) -> Program:
    verify(program)
    if after == "trace":
        return program
    program = beside(program, apart)
    for name, change in CANONICAL:
        match name:
            case "pieces":
                program = each(program, lambda k: pieces(k, apart))
            case "expand":
                program = each(program, lambda k: expand(k, apart))
            case _:
                program = change(program)
        if name == after:
            return program
    verify(program)
    return program


def specialize(program: Program, extents: Mapping[str, int], softmax: MathModel) -> Program:
    """Return the program that a signature runs: static extents and math models bound, integers by sums.

    A program that it was given before (the same object) is not changed again.
    """
    key = id(program), (specialize, softmax), None, frozenset(extents.items())
    found = _known.get(key)
    if found is None:
        if len(_known) >= KNOWN:
            _known.clear()
        bound = each(program, lambda k: nearest(bind_math(bind_extents(k, extents), softmax)))
        found = _known[key] = program, each(bound, simplify)
    return found[1]


def launched(
    program: Program, static: Mapping[str, int], softmax: MathModel, extents: Mapping[str, int]
) -> Program:
    """Return the program that a lowering launches: specialized, piecewise if it has pieces, with packed GQA.

    Axes of a kernel that no value has together are one dim of its tile.

    extents: of all axes in one call; static: of the axes whose extents a signature fixes.
    """
    swept = sweep(specialize(program, static, softmax), extents)
    return each(swept, lambda k: share_tiles(by_index(resident(one_axis_of_rows(k, static)), static)))
