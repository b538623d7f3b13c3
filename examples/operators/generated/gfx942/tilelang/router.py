"""router on gfx942, written by rlk 0.1.0: do not edit.

numerics: cfebad52132abef5
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  logits: f32 [T, E=128]
outputs:
  gates: f32 [T, E=128]
"""

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.macro
def add(a, b):
    # A term of a sum.
    return a + b


@tl.macro
def as_variable(x):
    # A variable: the text of a value without one is copied to each of its uses.
    variable = tl.alloc_var(x.dtype, x)
    return variable


@tl.macro
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def imin(a, b):
    # The minimum of integers.
    return tl.min(a, b)


@tl.macro
def is_nan(x):
    # By the bits: the compiler folds x != x.
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


@tl.macro
def larger(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that both have.
    same = number_of(bits_of(a) & bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(a < b, b, tl.Select(b < a, a, other)))


@tl.macro
def max_over_e(x, x_reduce_smem, thread):
    # The max over E, in any order.
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = larger(x[c], x_reduce_smem[c, thread ^ 64])


@tl.macro
def min_over_e(x, x_reduce_smem, thread):
    # The min over E, in any order.
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = imin(x[c], x_reduce_smem[c, thread ^ 64])


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_exp(x):
    # e**x, with gradual underflow.
    y0 = tl.alloc_var("float32", smaller(x, f32(89.0)))
    y1 = tl.alloc_var("float32", larger(y0, f32(-104.0)))
    y2 = tl.alloc_var("float32", fma(y1, f32(1.44269504), f32(12582912.0)))
    y3 = tl.alloc_var("float32", y2 - f32(12582912.0))
    y4 = tl.alloc_var("float32", fma(y3, f32(-0.693147182), y1))
    y5 = tl.alloc_var("float32", fma(y3, f32(1.90465421e-09), y4))
    y6 = tl.alloc_var("float32", fma(f32(0.001381949), y5, f32(0.0083686905)))
    y7 = tl.alloc_var("float32", fma(y6, y5, f32(0.04166828)))
    y8 = tl.alloc_var("float32", fma(y7, y5, f32(0.16666521)))
    y9 = tl.alloc_var("float32", fma(y8, y5, f32(0.49999994)))
    y10 = tl.alloc_var("float32", fma(y9, y5, f32(1.0)))
    y11 = tl.alloc_var("float32", fma(y10, y5, f32(1.0)))
    i12 = tl.alloc_var("int32", bits_of(y2))
    i13 = tl.alloc_var("int32", i12 - tl.int32(1262485504))
    i14 = tl.alloc_var("int32", i13 >> 1)
    i15 = tl.alloc_var("int32", i14 << 23)
    i16 = tl.alloc_var("int32", i15 + tl.int32(1065353216))
    y17 = tl.alloc_var("float32", number_of(i16))
    i18 = tl.alloc_var("int32", i13 - i14)
    i19 = tl.alloc_var("int32", i18 << 23)
    i20 = tl.alloc_var("int32", i19 + tl.int32(1065353216))
    y21 = tl.alloc_var("float32", number_of(i20))
    y22 = tl.alloc_var("float32", y11 * y17)
    y23 = tl.alloc_var("float32", y22 * y21)
    y24 = tl.alloc_var("float32", tl.Select(tl.Not(is_nan(x)), y23, x))
    return y24


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.macro
def sum_over_e(x, x_reduce_smem, thread):
    # The sum over E, halving.
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.prim_func
def router(
    logits: memory("logits", "float32"), gates: memory("gates", "float32"), T: tl.int32, logits_t_stride: tl.int64,
    gates_t_stride: tl.int64, programs: tl.int32
):
    # A block owns 8 of T (rows). E: 128 indices, 1 to each of 128 threads; T: 8 indices, 8 to each of 1 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 128), "float32", "shared")
        i32_reduce_smem = tl.alloc_shared((8, 128), "int32", "shared")
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        logits_value = tl.alloc_local((8,), "float32")
        best = tl.alloc_local((8,), "float32")
        rest = tl.alloc_local((8,), "float32")
        largest = tl.alloc_local((8,), "float32")
        rest_is_largest = tl.alloc_local((8,), "bool")
        first_both = tl.alloc_local((8,), "bool")
        e_masked = tl.alloc_local((8,), "int32")
        first = tl.alloc_local((8,), "int32")
        e_is_first = tl.alloc_local((8,), "bool")
        chosen_2 = tl.alloc_local((8,), "bool")
        rest_2 = tl.alloc_local((8,), "float32")
        largest_2 = tl.alloc_local((8,), "float32")
        rest_is_largest_2 = tl.alloc_local((8,), "bool")
        not_chosen_2 = tl.alloc_local((8,), "bool")
        first_both_2 = tl.alloc_local((8,), "bool")
        e_masked_2 = tl.alloc_local((8,), "int32")
        first_2 = tl.alloc_local((8,), "int32")
        e_is_first_2 = tl.alloc_local((8,), "bool")
        chosen_3 = tl.alloc_local((8,), "bool")
        logits_minus_best = tl.alloc_local((8,), "float32")
        e_exp = tl.alloc_local((8,), "float32")
        e_2 = tl.alloc_local((8,), "float32")
        sum_e = tl.alloc_local((8,), "float32")
        gates_value = tl.alloc_local((8,), "float32")
        for c in tl.unroll(8):
            t[c] = block * 8 + c
            t_inside[c] = t[c] < T
        e = tl.alloc_var("int32", thread)  # router.py:24
        for c in tl.unroll(8):
            logits_value[c] = tl.if_then_else(
                t_inside[c], logits[tl.int64(t[c]) * logits_t_stride + e], tl.Cast("float32", 0)
            )
            best[c] = logits_value[c]  # router.py:25
        max_over_e(best, f32_reduce_smem, thread)
        chosen = tl.alloc_var("bool", e < 0)  # router.py:26
        for c in tl.unroll(8):  # router.py:28
            rest[c] = tl.Select(chosen, f32(float("-inf")), logits_value[c])
            largest[c] = rest[c]  # router.py:29
        max_over_e(largest, f32_reduce_smem, thread)
        for c in tl.unroll(8):  # router.py:30
            rest_is_largest[c] = rest[c] == largest[c]
        not_chosen = tl.alloc_var("bool", tl.Not(chosen))
        for c in tl.unroll(8):
            first_both[c] = rest_is_largest[c] & not_chosen
            e_masked[c] = tl.Select(first_both[c], e, tl.int32(1073741824))
            first[c] = e_masked[c]
        min_over_e(first, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # router.py:31
            e_is_first[c] = e == first[c]
            chosen_2[c] = chosen | e_is_first[c]
            rest_2[c] = tl.Select(chosen_2[c], f32(float("-inf")), logits_value[c])  # router.py:28
            largest_2[c] = rest_2[c]  # router.py:29
        max_over_e(largest_2, f32_reduce_smem, thread)
        for c in tl.unroll(8):  # router.py:30
            rest_is_largest_2[c] = rest_2[c] == largest_2[c]
            not_chosen_2[c] = tl.Not(chosen_2[c])
            first_both_2[c] = rest_is_largest_2[c] & not_chosen_2[c]
            e_masked_2[c] = tl.Select(first_both_2[c], e, tl.int32(1073741824))
            first_2[c] = e_masked_2[c]
        min_over_e(first_2, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # router.py:31
            e_is_first_2[c] = e == first_2[c]
            chosen_3[c] = chosen_2[c] | e_is_first_2[c]
            logits_minus_best[c] = logits_value[c] - best[c]  # router.py:32
            e_exp[c] = portable_exp(logits_minus_best[c])
            e_2[c] = tl.Select(chosen_3[c], e_exp[c], f32(0.0))
            sum_e[c] = e_2[c]  # router.py:33
        sum_over_e(sum_e, f32_reduce_smem, thread)
        for c in tl.unroll(8):
            gates_value[c] = e_2[c] / sum_e[c]
            if t_inside[c]:
                gates[tl.int64(t[c]) * gates_t_stride + e] = gates_value[c]


def call(kernels, logits, gates, T, logits_t_stride, gates_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.router((programs,), logits, gates, T, logits_t_stride, gates_t_stride)
