"""smoothed_loss_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: c17300198cf18f02
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1
inputs:
  logits: bf16 [T, V=128256]
  targets: i64 [T]
  lse: f32 [T]
  d_loss: f32 [T]
outputs:
  d_logits: bf16 [T, V=128256]
scalars:
  smoothing: f32
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
def is_nan(x):
    # By the bits: the compiler folds x != x.
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_exp2(x):
    # 2**x. Exact for integers; results below 2**-126 are +0, as on the hardware it stands in for.
    y0 = tl.alloc_var("float32", smaller(x, f32(127.0)))
    y1 = tl.alloc_var("float32", y0 + f32(12582912.0))
    y2 = tl.alloc_var("float32", y1 - f32(12582912.0))
    y3 = tl.alloc_var("float32", x - y2)
    y4 = tl.alloc_var("float32", fma(f32(0.00018058953), y3, f32(0.0013314332)))
    y5 = tl.alloc_var("float32", fma(y4, y3, f32(0.009607519)))
    y6 = tl.alloc_var("float32", fma(y5, y3, f32(0.055505678)))
    y7 = tl.alloc_var("float32", fma(y6, y3, f32(0.24022758)))
    y8 = tl.alloc_var("float32", fma(y7, y3, f32(0.6931471)))
    y9 = tl.alloc_var("float32", fma(y8, y3, f32(1.0)))
    i10 = tl.alloc_var("int32", bits_of(y1))
    i11 = tl.alloc_var("int32", i10 << 23)
    i12 = tl.alloc_var("int32", i11 + tl.int32(1065353216))
    y13 = tl.alloc_var("float32", number_of(i12))
    y14 = tl.alloc_var("float32", y9 * y13)
    y15 = tl.alloc_var("float32", tl.Select(x < f32(-126.0), f32(0.0), y14))
    return y15


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.prim_func
def smoothed_loss_grad(
    logits: memory("logits", "bfloat16"), targets: memory("targets", "int64"), lse: memory("lse", "float32"),
    d_loss: memory("d_loss", "float32"), d_logits: memory("d_logits", "bfloat16"), logits_t_stride: tl.int64,
    d_logits_t_stride: tl.int64, T: tl.int32, smoothing: tl.float32, programs: tl.int32
):
    # A block owns 1 of T, 2048 of V (rows). V: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        v = tl.alloc_local((8,), "int32")
        v_inside = tl.alloc_local((8,), "bool")
        logits_value = tl.alloc_local((8,), "bfloat16")
        logits_f32 = tl.alloc_local((8,), "float32")
        p_difference = tl.alloc_local((8,), "float32")
        p_product = tl.alloc_local((8,), "float32")
        p = tl.alloc_local((8,), "float32")
        v_i64 = tl.alloc_local((8,), "int64")
        hit_equal = tl.alloc_local((8,), "bool")
        hit = tl.alloc_local((8,), "float32")
        p_minus_hit = tl.alloc_local((8,), "float32")
        d_logits_difference = tl.alloc_local((8,), "float32")
        d_logits_product = tl.alloc_local((8,), "float32")
        d_logits_product_bf16 = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 63)
        t = rest
        for c in tl.unroll(8):
            v[c] = tl.truncmod(block, 63) * 2048 + thread + c * 256
            v_inside[c] = v[c] < 128256
        lse_value = tl.alloc_var("float32", lse[t])  # smoothed_loss.py:40
        targets_value = tl.alloc_var("int64", targets[t])  # smoothed_loss.py:41
        d_loss_value = tl.alloc_var("float32", d_loss[t])  # smoothed_loss.py:43
        for c in tl.unroll(8):  # smoothed_loss.py:40
            logits_value[c] = tl.if_then_else(
                v_inside[c], logits[tl.int64(t) * logits_t_stride + v[c]], tl.Cast("bfloat16", 0)
            )
        smoothing_value = tl.alloc_var("float32", smoothing)
        for c in tl.unroll(8):
            logits_f32[c] = tl.Cast("float32", logits_value[c])
            p_difference[c] = logits_f32[c] - lse_value
            p_product[c] = p_difference[c] * f32(1.4426950216293335)
            p[c] = portable_exp2(p_product[c])
            v_i64[c] = tl.Cast("int64", v[c])  # smoothed_loss.py:41
            hit_equal[c] = v_i64[c] == targets_value
        _1_minus_smoothing = tl.alloc_var("float32", f32(1.0) - smoothing_value)
        for c in tl.unroll(8):
            hit[c] = tl.Select(hit_equal[c], _1_minus_smoothing, f32(0.0))
        level = tl.alloc_var("float32", smoothing_value / f32(128256.0))  # smoothed_loss.py:42
        for c in tl.unroll(8):  # smoothed_loss.py:43
            p_minus_hit[c] = p[c] - hit[c]
            d_logits_difference[c] = p_minus_hit[c] - level
            d_logits_product[c] = d_loss_value * d_logits_difference[c]
            d_logits_product_bf16[c] = tl.Cast("bfloat16", d_logits_product[c])
            if v_inside[c]:
                d_logits[tl.int64(t) * d_logits_t_stride + v[c]] = d_logits_product_bf16[c]


def call(kernels, logits, targets, lse, d_loss, d_logits, smoothing, T, logits_t_stride, d_logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 63
    if programs > 0:
        kernels.smoothed_loss_grad(
            (programs,), logits, targets, lse, d_loss, d_logits, logits_t_stride, d_logits_t_stride, T, smoothing
        )
