"""Choice between CuTe and Triton on Hopper, by measurements; bits do not depend on it."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.nodes import Kernel, Program
from rlk.passes.pack_gqa import one_axis_of_rows
from rlk.schedule.attention import ROWS_OF_WARPGROUP, mean_rows, rows_axis
from rlk.schedule.axes import kind, roles
from rlk.schedule.heuristics import facts_of
from rlk.target.facts import Target

MANY_ROWS = 1024  # and classes of rows end there
"""Of a contraction whose products are folded at once: a head of 128256 tokens takes 0.295 ms for 1 row by
CuTe and 0.265 by Triton, 0.743 and 0.626 for 300, 1.634 and 1.618 for 1024, 12.43 and 13.17 for 8192; its
forward and backward of 8192 rows are equal (docs/measured/cute.md)."""


def by_cute_first(program: Program, target: Target, extents: Mapping[str, int]) -> bool:
    """Return whether CuTe kernels of a program are at least as fast as Triton's: those of most contractions.

    A product alone is faster at any number of rows, 0.76 to 1.01 of Triton's time; one whose products are
    folded, or that is one of several, of more than `MANY_ROWS`. A contraction of what was computed takes 0.71
    to 0.76 of Triton's time, its gradients 0.72 to 0.79, where segments have more rows than a warpgroup. Of
    few rows, as in decoding, it is Triton's, which is faster below 2048 keys and slower above. Rows without a
    contraction are equal in both, and Triton compiles them sooner.
    """
    kinds = [kind(kernel) for kernel in program.kernels]
    chained = [k for k, found in zip(program.kernels, kinds, strict=True) if found == "back_to_back_gemm"]
    if chained:
        return all(_fills_a_tile(kernel, extents) for kernel in chained)
    dots = [k for k, found in zip(program.kernels, kinds, strict=True) if found in ("dot_map", "stream_dot")]
    if not dots:
        return False
    if len(dots) == 1 and "stream_dot" not in kinds:
        return True
    every = [facts_of(kernel, target, extents) for kernel in dots]
    return all(facts is not None and (facts.rows or 0) > MANY_ROWS for facts in every)


def _fills_a_tile(kernel: Kernel, extents: Mapping[str, int]) -> bool:
    """Return whether segments have more rows, on average, than a warpgroup holds."""
    rows = rows_axis(roles(one_axis_of_rows(kernel, extents), extents))
    return rows is not None and mean_rows(rows, extents) > ROWS_OF_WARPGROUP
