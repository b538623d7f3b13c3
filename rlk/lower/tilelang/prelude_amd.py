"""Functions of TileLang modules for AMD: LLVM's fmax and fmin take -0.0 and +0.0 for equal there."""

import tilelang.language as tl

from rlk.lower.tilelang.prelude import as_variable, bits_of, is_nan, number_of


@tl.macro
def larger(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that both have.
    same = number_of(bits_of(a) & bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(a < b, b, tl.Select(b < a, a, other)))


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))
