"""layer_norm on gfx942, written by rlk 0.1.0: do not edit.

numerics: 44a71b7aa4ccf550
schedule: tiles 1, 8 warps, 1 stages, unroll 1
inputs:
  x: bf16 [T, N=4096]
  weight: bf16 [N=4096]
outputs:
  y: bf16 [T, N=4096]
  mean: f32 [T]
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
def layer_norm(
    x: memory("x", "bfloat16"), weight: memory("weight", "bfloat16"), y: memory("y", "bfloat16"),
    mean: memory("mean", "float32"), rstd: memory("rstd", "float32"), x_t_stride: tl.int64, y_t_stride: tl.int64,
    T: tl.int32, eps: tl.float32, programs: tl.int32
):
    # A block owns 1 of T (rows). N: 4096 indices, 8 to each of 512 threads.
    with tl.Kernel(programs, threads=512) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 512), "float32", "shared")
        n = tl.alloc_local((8,), "int32")
        x_value = tl.alloc_local((8,), "bfloat16")
        weight_value = tl.alloc_local((8,), "bfloat16")
        z = tl.alloc_local((8,), "float32")
        sum_n = tl.alloc_local((8,), "float32")
        centred = tl.alloc_local((8,), "float32")
        centred_times_centred = tl.alloc_local((8,), "float32")
        sum_n_3 = tl.alloc_local((8,), "float32")
        centred_times_rstd = tl.alloc_local((8,), "float32")
        weight_f32 = tl.alloc_local((8,), "float32")
        y_value = tl.alloc_local((8,), "float32")
        y_bf16 = tl.alloc_local((8,), "bfloat16")
        t = block
        writes = thread == 0
        for c in tl.unroll(8):  # layer_norm.py:24
            n[c] = thread + c * 512
            x_value[c] = x[tl.int64(t) * x_t_stride + n[c]]
            weight_value[c] = weight[n[c]]  # layer_norm.py:28
        eps_value = tl.alloc_var("float32", eps)
        for c in tl.unroll(8):  # layer_norm.py:24
            z[c] = tl.Cast("float32", x_value[c])
            sum_n[c] = z[c]  # layer_norm.py:25
        sum_over_n(sum_n, f32_reduce_smem, thread)
        sum_n_2 = sum_n[0]
        mean_value = tl.alloc_var("float32", sum_n_2 / f32(4096.0))
        for c in tl.unroll(8):  # layer_norm.py:26
            centred[c] = z[c] - mean_value
            centred_times_centred[c] = centred[c] * centred[c]  # layer_norm.py:27
            sum_n_3[c] = centred_times_centred[c]
        sum_over_n(sum_n_3, f32_reduce_smem, thread)
        sum_n_4 = sum_n_3[0]
        add_over_n_over_n = tl.alloc_var("float32", sum_n_4 / f32(4096.0))
        rstd_sum = tl.alloc_var("float32", add_over_n_over_n + eps_value)
        rstd_value = tl.alloc_var("float32", portable_rsqrt(rstd_sum))
        for c in tl.unroll(8):  # layer_norm.py:28
            centred_times_rstd[c] = centred[c] * rstd_value
            weight_f32[c] = tl.Cast("float32", weight_value[c])
            y_value[c] = centred_times_rstd[c] * weight_f32[c]
            y_bf16[c] = tl.Cast("bfloat16", y_value[c])  # layer_norm.py:31
            y[tl.int64(t) * y_t_stride + n[c]] = y_bf16[c]
        if writes:
            mean[t] = mean_value
        if writes:
            rstd[t] = rstd_value


def call(kernels, x, weight, y, mean, rstd, eps, T, x_t_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.layer_norm((programs,), x, weight, y, mean, rstd, x_t_stride, y_t_stride, T, eps)
