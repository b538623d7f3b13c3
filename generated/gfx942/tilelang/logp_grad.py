"""logp_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: a395c6bf28f4b583
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1
inputs:
  logits: bf16 [T, V=128256]
  ids: i64 [T]
  lse: f32 [T]
  entropy: f32 [T]
  d_logp: f32 [T]
  d_lse: f32 [T]
  d_entropy: f32 [T]
outputs:
  d_logits: bf16 [T, V=128256]
scalars:
  inv_temperature: f32
  ignore_index: i64
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
def logp_grad(
    logits: memory("logits", "bfloat16"), ids: memory("ids", "int64"), lse: memory("lse", "float32"),
    entropy: memory("entropy", "float32"), d_logp: memory("d_logp", "float32"), d_lse: memory("d_lse", "float32"),
    d_entropy: memory("d_entropy", "float32"), d_logits: memory("d_logits", "bfloat16"), logits_t_stride: tl.int64,
    d_logits_t_stride: tl.int64, T: tl.int32, inv_temperature: tl.float32, ignore_index: tl.int64, programs: tl.int32
):
    # A block owns 1 of T, 2048 of V (rows). V: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        v = tl.alloc_local((8,), "int32")
        v_inside = tl.alloc_local((8,), "bool")
        logits_value = tl.alloc_local((8,), "bfloat16")
        z = tl.alloc_local((8,), "float32")
        z_2 = tl.alloc_local((8,), "float32")
        centred = tl.alloc_local((8,), "float32")
        centred_times_log2e = tl.alloc_local((8,), "float32")
        p = tl.alloc_local((8,), "float32")
        dz = tl.alloc_local((8,), "float32")
        p_is_0 = tl.alloc_local((8,), "bool")
        d_entropy_times_p = tl.alloc_local((8,), "float32")
        centred_plus_entropy = tl.alloc_local((8,), "float32")
        dz_product = tl.alloc_local((8,), "float32")
        dz_product_or_0 = tl.alloc_local((8,), "float32")
        dz_2 = tl.alloc_local((8,), "float32")
        dz_equal = tl.alloc_local((8,), "bool")
        d_logp_masked = tl.alloc_local((8,), "float32")
        dz_3 = tl.alloc_local((8,), "float32")
        dz_times_inv_temperature = tl.alloc_local((8,), "float32")
        grad = tl.alloc_local((8,), "float32")
        grad_bf16 = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 63)
        t = rest
        for c in tl.unroll(8):
            v[c] = tl.truncmod(block, 63) * 2048 + thread + c * 256
            v_inside[c] = v[c] < 128256
        ids_value = tl.alloc_var("int64", ids[t])  # logp.py:175
        lse_value = tl.alloc_var("float32", lse[t])  # logp.py:193
        d_lse_value = tl.alloc_var("float32", d_lse[t])  # logp.py:215
        d_logp_value = tl.alloc_var("float32", d_logp[t])
        d_entropy_value = tl.alloc_var("float32", d_entropy[t])  # logp.py:198
        entropy_value = tl.alloc_var("float32", entropy[t])
        ignore_index_value = tl.alloc_var("int64", ignore_index)
        active = tl.alloc_var("bool", ids_value != ignore_index_value)  # logp.py:207
        for c in tl.unroll(8):  # logp.py:178
            logits_value[c] = tl.if_then_else(
                active & v_inside[c], logits[tl.int64(t) * logits_t_stride + v[c]], tl.Cast("bfloat16", 0)
            )
        inv_temperature_value = tl.alloc_var("float32", inv_temperature)
        for c in tl.unroll(8):  # logp.py:48
            z[c] = tl.Cast("float32", logits_value[c])
            z_2[c] = z[c] * inv_temperature_value  # logp.py:57
            centred[c] = z_2[c] - lse_value  # logp.py:193
            centred_times_log2e[c] = centred[c] * f32(1.4426950216293335)  # logp.py:194
            p[c] = portable_exp2(centred_times_log2e[c])
        d_lse_minus_d_logp = tl.alloc_var("float32", d_lse_value - d_logp_value)  # logp.py:215
        for c in tl.unroll(8):  # logp.py:195
            dz[c] = p[c] * d_lse_minus_d_logp
            p_is_0[c] = p[c] == f32(0.0)  # logp.py:198
            d_entropy_times_p[c] = d_entropy_value * p[c]
            centred_plus_entropy[c] = centred[c] + entropy_value
            dz_product[c] = d_entropy_times_p[c] * centred_plus_entropy[c]
            dz_product_or_0[c] = tl.Select(p_is_0[c], f32(0.0), dz_product[c])
            dz_2[c] = dz[c] - dz_product_or_0[c]
        ids_ge_0 = tl.alloc_var("bool", 0 <= ids_value)  # logp.py:200
        inside_below = tl.alloc_var("bool", ids_value < 128256)
        inside = tl.alloc_var("bool", ids_ge_0 & inside_below)
        ids_masked = tl.alloc_var("int64", tl.Select(inside, ids_value, tl.int64(-1)))  # logp.py:201
        ids_i32 = tl.alloc_var("int32", tl.Cast("int32", ids_masked))
        for c in tl.unroll(8):
            dz_equal[c] = v[c] == ids_i32
            d_logp_masked[c] = tl.Select(dz_equal[c], d_logp_value, f32(0.0))
            dz_3[c] = dz_2[c] + d_logp_masked[c]
            dz_times_inv_temperature[c] = dz_3[c] * inv_temperature_value  # logp.py:63
            grad[c] = tl.Select(active, dz_times_inv_temperature[c], f32(0.0))  # logp.py:182
            grad_bf16[c] = tl.Cast("bfloat16", grad[c])  # logp.py:185
            if v_inside[c]:
                d_logits[tl.int64(t) * d_logits_t_stride + v[c]] = grad_bf16[c]


def call(
    kernels, logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, inv_temperature, ignore_index, T,
    logits_t_stride, d_logits_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 63
    if programs > 0:
        kernels.logp_grad(
            (programs,), logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, logits_t_stride,
            d_logits_t_stride, T, inv_temperature, ignore_index
        )
