"""Functions of TileLang modules for NVIDIA: max.f32 and min.f32 of PTX order -0.0 before +0.0."""

import tilelang.language as tl


@tl.macro
def larger(a, b):
    # NaN loses, -0.0 < +0.0 (PTX max.f32).
    return tl.call_extern("float32", "fmaxf", a, b)


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0 (PTX min.f32).
    return tl.call_extern("float32", "fminf", a, b)
