"""rms_norm on gfx942, written by rlk 0.1.0: do not edit.

numerics: dbbd262476646a26
schedule: tiles 1, 8 warps, 1 stages, unroll 1
inputs:
  x: bf16 [T, N=4096]
  weight: bf16 [N=4096]
  residual: bf16 [T, N=4096]
outputs:
  y: bf16 [T, N=4096]
  residual_out: bf16 [T, N=4096]
  rstd: f32 [T]
scalars:
  eps: f32
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
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_rsqrt(x):
    # 1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN.
    y0 = tl.alloc_var("float32", x * f32(16777216.0))
    y1 = tl.alloc_var("float32", tl.Select(x < f32(1.1754943508222875e-38), y0, x))
    i2 = tl.alloc_var("int32", bits_of(y1))
    i3 = tl.alloc_var("int32", i2 >> 1)
    i4 = tl.alloc_var("int32", tl.int32(1595932665) - i3)
    y5 = tl.alloc_var("float32", number_of(i4))
    y6 = tl.alloc_var("float32", y5 * f32(-0.703952253))
    y7 = tl.alloc_var("float32", y1 * y5)
    y8 = tl.alloc_var("float32", fma(y7, y5, f32(-2.38924456)))
    y9 = tl.alloc_var("float32", y6 * y8)
    y10 = tl.alloc_var("float32", y1 * y9)
    y11 = tl.alloc_var("float32", fma(y10, y9, f32(-1.0)))
    y12 = tl.alloc_var("float32", y9 * y11)
    y13 = tl.alloc_var("float32", fma(y11, f32(0.375), f32(-0.5)))
    y14 = tl.alloc_var("float32", fma(y12, y13, y9))
    y15 = tl.alloc_var("float32", tl.Select(x < f32(1.1754943508222875e-38), f32(4096.0), f32(1.0)))
    y16 = tl.alloc_var("float32", y14 * y15)
    y17 = tl.alloc_var("float32", tl.Select(x == f32(float("inf")), f32(0.0), x))
    y18 = tl.alloc_var("float32", tl.Select(x < f32(float("inf")), y16, y17))
    i19 = tl.alloc_var("int32", bits_of(x))
    i20 = tl.alloc_var("int32", i19 & tl.reinterpret(tl.uint32(0x80000000), "int32"))
    i21 = tl.alloc_var("int32", i20 | tl.int32(2139095040))
    y22 = tl.alloc_var("float32", number_of(i21))
    y23 = tl.alloc_var("float32", tl.Select(x == f32(0.0), y22, y18))
    y24 = tl.alloc_var("float32", tl.Select(x < f32(0.0), f32(float("nan")), y23))
    return y24


@tl.macro
def sum_over_n(x, x_reduce_smem, thread):
    # The sum over N, vector8.
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 256])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 128])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))


@tl.prim_func
def rms_norm(
    x: memory("x", "bfloat16"), weight: memory("weight", "bfloat16"), residual: memory("residual", "bfloat16"),
    y: memory("y", "bfloat16"), residual_out: memory("residual_out", "bfloat16"), rstd: memory("rstd", "float32"),
    x_t_stride: tl.int64, residual_t_stride: tl.int64, y_t_stride: tl.int64, residual_out_t_stride: tl.int64,
    T: tl.int32, eps: tl.float32, programs: tl.int32
):
    # A block owns 1 of T (rows). N: 4096 indices, 8 to each of 512 threads.
    with tl.Kernel(programs, threads=512) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 512), "float32", "shared")
        n = tl.alloc_local((8,), "int32")
        x_value = tl.alloc_local((8,), "bfloat16")
        residual_value = tl.alloc_local((8,), "bfloat16")
        weight_value = tl.alloc_local((8,), "bfloat16")
        h = tl.alloc_local((8,), "float32")
        residual_f32 = tl.alloc_local((8,), "float32")
        h_2 = tl.alloc_local((8,), "float32")
        rounded = tl.alloc_local((8,), "bfloat16")
        h_3 = tl.alloc_local((8,), "float32")
        h_times_h = tl.alloc_local((8,), "float32")
        sum_n = tl.alloc_local((8,), "float32")
        n_2 = tl.alloc_local((8,), "float32")
        n_bf16 = tl.alloc_local((8,), "bfloat16")
        n_3 = tl.alloc_local((8,), "float32")
        weight_f32 = tl.alloc_local((8,), "float32")
        y_product = tl.alloc_local((8,), "float32")
        y_product_bf16 = tl.alloc_local((8,), "bfloat16")
        t = block
        writes = thread == 0
        for c in tl.unroll(8):  # norm.py:37
            n[c] = thread + c * 512
            x_value[c] = x[tl.int64(t) * x_t_stride + n[c]]
            residual_value[c] = residual[tl.int64(t) * residual_t_stride + n[c]]  # norm.py:39
            weight_value[c] = weight[n[c]]  # norm.py:16
        eps_value = tl.alloc_var("float32", eps)
        for c in tl.unroll(8):  # norm.py:37
            h[c] = tl.Cast("float32", x_value[c])
            residual_f32[c] = tl.Cast("float32", residual_value[c])  # norm.py:39
            h_2[c] = h[c] + residual_f32[c]
            rounded[c] = tl.Cast("bfloat16", h_2[c])  # norm.py:40
            h_3[c] = tl.Cast("float32", rounded[c])  # norm.py:42
            h_times_h[c] = h_3[c] * h_3[c]  # norm.py:43
            sum_n[c] = h_times_h[c]
        sum_over_n(sum_n, f32_reduce_smem, thread)
        sum_n_2 = sum_n[0]
        mean = tl.alloc_var("float32", sum_n_2 / f32(4096.0))
        mean_plus_eps = tl.alloc_var("float32", mean + eps_value)  # norm.py:44
        rstd_value = tl.alloc_var("float32", portable_rsqrt(mean_plus_eps))
        for c in tl.unroll(8):  # norm.py:45
            n_2[c] = h_3[c] * rstd_value
            n_bf16[c] = tl.Cast("bfloat16", n_2[c])  # norm.py:47
            n_3[c] = tl.Cast("float32", n_bf16[c])
            weight_f32[c] = tl.Cast("float32", weight_value[c])  # norm.py:16
            y_product[c] = n_3[c] * weight_f32[c]  # norm.py:49
            y_product_bf16[c] = tl.Cast("bfloat16", y_product[c])
            y[tl.int64(t) * y_t_stride + n[c]] = y_product_bf16[c]  # norm.py:48
            residual_out[tl.int64(t) * residual_out_t_stride + n[c]] = rounded[c]
        if writes:
            rstd[t] = rstd_value


def call(
    kernels, x, weight, residual, y, residual_out, rstd, eps, T, x_t_stride, residual_t_stride, y_t_stride,
    residual_out_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.rms_norm(
            (programs,), x, weight, residual, y, residual_out, rstd, x_t_stride, residual_t_stride, y_t_stride,
            residual_out_t_stride, T, eps
        )
