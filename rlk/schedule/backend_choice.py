"""Choice between CuTe and Triton on Hopper, by measurements; bits do not depend on it."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.nodes import Dot, Kernel, Let, Load, Program
from rlk.ir.types import TileType
from rlk.passes.pack_gqa import one_axis_of_rows
from rlk.passes.prologue import prologue
from rlk.passes.walk import walk
from rlk.schedule.attention import ROWS_OF_WARPGROUP, mean_rows, rows_axis
from rlk.schedule.axes import kind, roles, types_of
from rlk.schedule.heuristics import carries_many, facts_of
from rlk.schedule.written_factors import writes_factors
from rlk.target.facts import Target

MANY_ROWS = 1024  # the largest class of rows
"""Rows above which a GEMM with a fused fold runs on CuTe. A head of 128256 tokens takes, in ms by CuTe and by
Triton, 0.295 and 0.265 for 1 row, 0.743 and 0.626 for 300, 1.634 and 1.618 for 1024, 12.43 and 13.17 for
8192; its forward and backward of 8192 rows are equal (docs/measured/cute.md)."""


def by_cute_first(program: Program, target: Target, extents: Mapping[str, int]) -> bool:
    """Return whether CuTe kernels of a program are at least as fast as Triton's, as measured on an H200.

    - a plain GEMM: at any number of rows, 0.76 to 1.01 of Triton's time;
    - a GEMM with a fused fold, or one of several: with more than `MANY_ROWS` rows;
    - fused attention: 0.71 to 0.76 of Triton's time, its gradients 0.72 to 0.79, if segments have more rows
      than a warpgroup. With few rows, as in decoding, Triton is chosen: it is faster below 2048 keys and
      slower above;
    - grouped products: 0.67 to 0.97 of Triton's time, their gradients 0.72 to 0.92;
    - a plain GEMM of a factor computed from 8-bit elements (int8 weights): 0.68 of Triton's time at 1 and 16
      rows, 0.67 at 64, 0.55 at 256; with many rows its factor is written first, and the GEMM is a plain one;
    - several products in one kernel: SwiGLU of two weights of 12288 x 4096 in 0.52 of Triton's time at 16
      rows and 0.93 at 8192, LoRA of rank 64 in 0.66 and 0.94;
    - batched products of other kinds, and those of computed factors, run on Triton: CuTe's are not measured
      yet;
    - a recurrence that carries a matrix, of many columns: 0.76 of Triton's time; one that sums along both of
      its axes: 2400 instructions a step of 64 x 64 by CuTe, 5200 by Triton, of both loops of a gradient
      that takes 0.250 ms;
    - other kernels without a contraction are equal in both, and Triton compiles them faster.
    """
    kinds = [kind(kernel) for kernel in program.kernels]
    if len(program.kernels) == 1 and carries_many(program.kernels[0], target, extents):
        return True
    attention = [k for k, found in zip(program.kernels, kinds, strict=True) if found == "back_to_back_gemm"]
    if attention:
        return all(_fills_a_tile(kernel, extents) for kernel in attention)
    dots = [k for k, found in zip(program.kernels, kinds, strict=True) if found in ("dot_map", "stream_dot")]
    several = any(_products(kernel) > 1 for kernel in dots)
    computed = any(map(_factor_steps, dots))
    if any(map(_batched, dots)):
        return all(map(_grouped, dots)) and not computed and not several
    if several:
        # a LoRA has a kernel of its small product; gradients have more, and are not measured yet
        return not computed and "stream_dot" not in kinds and len(dots) <= 2
    if len(dots) == 1 and "stream_dot" not in kinds:
        return not computed or _of_bytes(dots[0]) or writes_factors(program, extents)
    if computed or not dots:
        return False
    every = [facts_of(kernel, target, extents) for kernel in dots]
    return all(facts is not None and (facts.rows or 0) > MANY_ROWS for facts in every)


def _products(kernel: Kernel) -> int:
    """Return the number of contractions of a kernel."""
    return sum(isinstance(let.node, Dot) for let in walk(kernel.body))


def _batched(kernel: Kernel) -> bool:
    """Return whether a kernel has contractions for each index of a batch axis, or factors with one."""
    types = types_of(kernel)
    dots = [let.node for let in walk(kernel.body) if isinstance(let.node, Dot)]
    factors = [type for dot in dots for v in (dot.a, dot.b) if isinstance(type := types[v], TileType)]
    return any(dot.each for dot in dots) or any(len({a.whole for a in type.axes}) > 2 for type in factors)


def _factor_steps(kernel: Kernel) -> list[Let]:
    """Return what computes factors of contractions elementwise, down to their loads."""
    lets = {let.value: let for let in walk(kernel.body)}
    dots = [let.node for let in lets.values() if isinstance(let.node, Dot)]
    return [let for dot in dots for v in (dot.a, dot.b) for let in prologue(v, dot.over, lets)]


def _of_bytes(kernel: Kernel) -> bool:
    """Return whether a factor of a contraction is computed from elements of 8 bits."""
    loaded = [let.type for let in _factor_steps(kernel) if isinstance(let.node, Load)]
    return any(isinstance(type, TileType) and type.dtype.bytes == 1 for type in loaded)


def _grouped(kernel: Kernel) -> bool:
    """Return whether the rows of a batched contraction are the segments of a ragged axis."""
    types = (let.type for let in walk(kernel.body))
    ragged = {axis.over for type in types if isinstance(type, TileType) for axis in type.axes}
    dots = (let.node for let in walk(kernel.body) if isinstance(let.node, Dot))
    return all(any(axis.name in ragged for axis in dot.each or ()) for dot in dots)


def _fills_a_tile(kernel: Kernel, extents: Mapping[str, int]) -> bool:
    """Return whether segments have more rows, on average, than the accumulators of a warpgroup."""
    rows = rows_axis(roles(one_axis_of_rows(kernel, extents), extents))
    return rows is not None and mean_rows(rows, extents) > ROWS_OF_WARPGROUP
