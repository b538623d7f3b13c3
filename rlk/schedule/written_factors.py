"""Choice of computed factors and products that are written to memory first; bits do not depend on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rlk.ir.dims import extent_of
from rlk.ir.nodes import Dot, Kernel, Let, Load, Program, Value
from rlk.ir.types import DType, TileType
from rlk.passes.factors_apart import computed_factors, factors_apart, products_apart
from rlk.passes.prologue import prologue
from rlk.schedule.axes import roles

ROWS_PER_BYTE = 192
"""Products of an element of a factor that take as much longer in the loop as each byte that writing it moves.

In the loop an element is computed again for each tile of the other factor, beside the products; written first
it is computed once, at the rate of memory. Int8 weights of 12288 x 4096 on an H200: computed in the loop they
add 0.23 ms to the 0.59 of 4096 rows (0.056 us a row) and 0.025 ms to the 0.041 of 256; reading a byte and
writing two of each element is 151 MB, 0.04 ms. That is equal between 400 and 700 rows: 130 to 230 a byte.
Written first, 4096 rows take 0.630 ms, and 1024 take 0.189."""

LAUNCH = 2**31
"""Products whose factor takes as much longer in the loop as one more launch: 2.4 us, at the rate above."""

WIDEST_ROW = 256
"""Elements of a product's row that a program has whole; of 512, stages of a factor exceed shared memory."""


def with_factors_written(program: Program, extents: Mapping[str, int]) -> Program:
    """Return a specialized program with kernels that write what is cheaper to write; itself without any."""
    return factors_apart(program, lambda kernel, dot, factor: _pays(kernel, dot, factor, extents))


def with_products_written(program: Program, extents: Mapping[str, int]) -> Program:
    """Return a specialized program with kernels that write products whose rows no program can have whole."""

    def wide(kernel: Kernel, dot: Let) -> bool:
        inside = dict(roles(kernel, extents).inside)
        assert isinstance(dot.type, TileType)
        return math.prod(inside.get(axis, 1) for axis in dot.type.axes) > WIDEST_ROW

    return products_apart(program, wide)


def writes_factors(program: Program, extents: Mapping[str, int]) -> bool:
    """Return whether every computed factor of a program is written first, so that its products are plain.

    The choice of a backend asks: nothing is written here.
    """
    if any(each.turns for each in program.order):
        return False
    written = {
        (kernel.name, dot.value, factor)
        for kernel in program.kernels
        for dot, factor in computed_factors(kernel)
        if _pays(kernel, dot, factor, extents)
    }
    return bool(written) and written == set(_computed(program))


def _computed(program: Program) -> Iterator[tuple[str, Value, Value]]:
    """Yield the kernel, contraction and value of each computed factor, those that cannot be written too."""
    for kernel in program.kernels:
        lets = {let.value: let for let in kernel.body.lets}
        for let in kernel.body.lets:
            if isinstance(let.node, Dot):
                for factor in (let.node.a, let.node.b):
                    if prologue(factor, let.node.over, lets):
                        yield kernel.name, let.value, factor


def _pays(kernel: Kernel, dot: Let, factor: Value, extents: Mapping[str, int]) -> bool:
    """Return whether a factor is cheaper to write: by its products, and by the bytes that writing moves."""
    assert isinstance(dot.node, Dot) and isinstance(dot.type, TileType)
    lets = {let.value: let for let in kernel.body.lets}
    own = lets[factor].type
    assert isinstance(own, TileType)
    others = [axis for axis in dot.type.axes if axis not in own.axes]
    every = (*others, *own.axes)
    known = all(axis.name in extents and axis.over is None for axis in every)  # no rows of segments
    if own.dtype not in (DType.BF16, DType.F16) or not known:
        return False
    rows, elements = (
        math.prod(extent_of(axis, extents[axis.name]) for axis in axes) for axes in (others, own.axes)
    )
    loads = [let.type for let in prologue(factor, dot.node.over, lets) if isinstance(let.node, Load)]
    whole = [t for t in loads if isinstance(t, TileType) and set(own.axes) <= set(t.axes)]
    moved = sum(type.dtype.bytes for type in whole) + own.dtype.bytes
    return elements * (rows - ROWS_PER_BYTE * moved) >= LAUNCH
