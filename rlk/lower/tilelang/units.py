"""Thread-value layouts of matrix instructions: factors and results on the lanes of a wave.

A wave has 16 rows of a kernel, all of whose values are in the layout of MMA results: a lane's elements of a
result are those that the next instruction takes from the lane as a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlk.ir.dims import Axis
from rlk.ir.types import DType
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.tilelang.text import TYPES

ROWS = 16  # rows of a kernel per wave
DEPTH = 16  # K of an instruction
GIVEN = 4  # K elements of a column per lane

Pairs = tuple[tuple[int, int], ...]
Calls = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Product:
    """Lists: `fragment` and the results `sums`, so many elements of each row; four elements of a column."""

    fragment: str
    fragment_each: int
    given: str
    sums: str
    sums_each: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Unit:
    """The layout of a matrix instruction.

    rows, beside: index bits on lanes, of the 16 rows and of any other axis. lanes: bits of a lane's number.
    columns: of an instruction. across, deep: the column, and the K index in it, of a lane's element `i`.
    calls: the lines before the steps of a column, of a step, and after them. lists: that they need. imports:
    lines of the module.
    """

    rows: Pairs
    beside: Pairs
    lanes: int
    columns: int
    across: str
    deep: str
    calls: Callable[[Product], Calls]
    lists: tuple[tuple[str, DType | None, int], ...] = ()
    imports: tuple[str, ...] = ()

    def layout_of_rows(self, axis: Axis, length: int) -> ThreadValues:
        """Return the layout of rows: 16 per wave."""
        waves = tuple((bit, bit - 4 + self.lanes) for bit in range(4, length.bit_length() - 1))
        return ThreadValues(axis, length, (*self.rows, *waves))


def _mfma(p: Product) -> Calls:
    shape = "bf16_1k" if p.dtype is DType.BF16 else "f16"
    kind = f'"{TYPES[p.dtype]}x{GIVEN}"'
    call = (
        f'tvm_mfma("f32_16x16x16{shape}", "row", "row", {kind}, {kind}, "float32x4", {p.given}.data, 0, '
        f'{p.fragment}.data, step, {p.sums}.data, column, dtype="float32x4")'
    )
    return (), (call,), ()


def _mma(p: Product) -> Calls:
    own = f"{p.fragment}[i // 2 % 2 * {p.fragment_each} + step * 4 + i // 4 * 2 + i % 2]"
    result = f"{p.sums}[i // 2 * {p.sums_each} + column * 2 + i % 2]"
    kind = '"bf16"' if p.dtype is DType.BF16 else '"fp16"'
    call = (
        f'tl.ptx_mma("float32", "m16n8k16", "row", "col", {kind}, {kind}, "fp32", of_rows.data, 0, '
        f"{p.given}.data, 0, four_sums.data, 0, tl.bool(False))"
    )
    step = ("for i in tl.unroll(8):", f"    of_rows[i] = {own}", call)
    four = "for i in tl.unroll(4):"
    return (four, f"    four_sums[i] = {result}"), step, (four, f"    {result} = four_sums[i]")


UNITS = {
    # lane l gives elements 4 * (l / 16) + i of column l % 16, and has results 4 * (l / 16) + i of row l % 16:
    # the rows of an instruction's result are columns here (CDNA3 instruction set, 7.1)
    "amd": Unit(
        rows=((0, 0), (1, 1), (2, 2), (3, 3)),
        beside=((2, 4), (3, 5)),
        lanes=6,
        columns=16,
        across="thread % 16",
        deep="thread // 16 % 4 * 4 + i",
        calls=_mfma,
        imports=("from tilelang.rocm.language.tir import tvm_mfma",),
    ),
    # lane l gives elements 2 * (l % 4) and the next, and those that are 8 further, of column l / 4, and has
    # results 2 * (l % 4) and the next of rows l / 4 and that + 8 (PTX 9.7.14.5.8)
    "nvidia": Unit(
        rows=((0, 2), (1, 3), (2, 4)),
        beside=((1, 0), (2, 1)),
        lanes=5,
        columns=8,
        across="thread // 4 % 8",
        deep="i // 2 * 8 + thread % 4 * 2 + i % 2",
        calls=_mma,
        lists=(("of_rows", None, 8), ("four_sums", DType.F32, 4)),
    ),
}
"""The units of 16-bit factors and f32 sums, by vendor."""
