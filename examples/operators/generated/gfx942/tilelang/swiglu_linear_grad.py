"""swiglu_linear_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 718dacbf864a08c3
schedule: tiles N=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed N[5:0] T[5:4]
schedule: tiles K=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed K[5:0] T[5:4]
schedule: tiles K=64, N=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed K[5:0] N[5:4]
schedule: tiles K=64, N=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed K[5:0] N[5:4]
inputs:
  x: bf16 [T, K=4096]
  gate: bf16 [N=4096, K=4096]
  up: bf16 [N=4096, K=4096]
  d_y: bf16 [T, N=4096]
outputs:
  d_x: bf16 [T, K=4096]
  d_gate: bf16 [N=4096, K=4096]
  d_up: bf16 [N=4096, K=4096]
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
def larger(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that both have.
    same = number_of(bits_of(a) & bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(a < b, b, tl.Select(b < a, a, other)))


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_sigmoid(x):
    # 1 / (1 + e**-x), accurate in both tails, with gradual underflow.
    i0 = tl.alloc_var("int32", bits_of(x))
    i1 = tl.alloc_var("int32", i0 | tl.reinterpret(tl.uint32(0x80000000), "int32"))
    y2 = tl.alloc_var("float32", number_of(i1))
    y3 = tl.alloc_var("float32", larger(y2, f32(-104.0)))
    y4 = tl.alloc_var("float32", fma(y3, f32(1.44269504), f32(12582912.0)))
    y5 = tl.alloc_var("float32", y4 - f32(12582912.0))
    y6 = tl.alloc_var("float32", fma(y5, f32(-0.693147182), y3))
    y7 = tl.alloc_var("float32", fma(y5, f32(1.90465421e-09), y6))
    y8 = tl.alloc_var("float32", fma(f32(0.001381949), y7, f32(0.0083686905)))
    y9 = tl.alloc_var("float32", fma(y8, y7, f32(0.04166828)))
    y10 = tl.alloc_var("float32", fma(y9, y7, f32(0.16666521)))
    y11 = tl.alloc_var("float32", fma(y10, y7, f32(0.49999994)))
    y12 = tl.alloc_var("float32", fma(y11, y7, f32(1.0)))
    y13 = tl.alloc_var("float32", y12 * y7)
    i14 = tl.alloc_var("int32", bits_of(y4))
    i15 = tl.alloc_var("int32", i14 - tl.int32(1262485504))
    i16 = tl.alloc_var("int32", i15 >> 1)
    i17 = tl.alloc_var("int32", i16 << 23)
    i18 = tl.alloc_var("int32", i17 + tl.int32(1065353216))
    y19 = tl.alloc_var("float32", number_of(i18))
    i20 = tl.alloc_var("int32", i15 - i16)
    i21 = tl.alloc_var("int32", i20 << 23)
    i22 = tl.alloc_var("int32", i21 + tl.int32(1065353216))
    y23 = tl.alloc_var("float32", number_of(i22))
    y24 = tl.alloc_var("float32", y13 + f32(1.0))
    y25 = tl.alloc_var("float32", y24 * y19)
    y26 = tl.alloc_var("float32", y25 * y23)
    y27 = tl.alloc_var("float32", y26 + f32(1.0))
    y28 = tl.alloc_var("float32", y27 * f32(-1.0))
    y29 = tl.alloc_var("float32", fma(f32(-0.20604426), y27, f32(1.2625691)))
    y30 = tl.alloc_var("float32", fma(y29, y27, f32(-2.8429258)))
    y31 = tl.alloc_var("float32", fma(y30, y27, f32(2.7843392)))
    y32 = tl.alloc_var("float32", fma(y31, y28, f32(1.0)))
    y33 = tl.alloc_var("float32", fma(y32, y32, y32))
    y34 = tl.alloc_var("float32", fma(y31, y33, y31))
    y35 = tl.alloc_var("float32", fma(y34, y28, f32(1.0)))
    y36 = tl.alloc_var("float32", fma(y34, y35, y34))
    y37 = tl.alloc_var("float32", y27 - f32(1.0))
    y38 = tl.alloc_var("float32", y26 - y37)
    y39 = tl.alloc_var("float32", fma(y36, y27, f32(-1.0)))
    y40 = tl.alloc_var("float32", fma(y36, y38, y39))
    y41 = tl.alloc_var("float32", y36 * y19)
    y42 = tl.alloc_var("float32", fma(y13, y40, y40))
    y43 = tl.alloc_var("float32", y13 - y42)
    y44 = tl.alloc_var("float32", fma(y41, y43, y41))
    y45 = tl.alloc_var("float32", y44 * y23)
    y46 = tl.alloc_var("float32", tl.Select(x < f32(0.0), y45, y36))
    y47 = tl.alloc_var("float32", tl.Select(tl.Not(is_nan(x)), y46, x))
    return y47


@tl.prim_func
def swiglu_linear_grad_1(
    x: memory("x", "bfloat16"), gate: memory("gate", "bfloat16"), up: memory("up", "bfloat16"),
    d_y: memory("d_y", "bfloat16"), d_z_bf16: memory("d_z_bf16", "bfloat16"),
    d_z_bf16_2: memory("d_z_bf16_2", "bfloat16"), T: tl.int32, d_y_t_stride: tl.int64, x_t_stride: tl.int64,
    up_n_stride: tl.int64, gate_n_stride: tl.int64, d_z_bf16_t_stride: tl.int64, d_z_bf16_2_t_stride: tl.int64,
    programs: tl.int32
):
    # A block owns 64 of T, 64 of N (dot_map). T: 64 indices, 16 to each of 4 threads; N: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        d_y_value = tl.alloc_local((16,), "bfloat16")
        d_y_f32 = tl.alloc_local((16,), "float32")
        acc_sums = tl.alloc_fragment((64, 64), "float32")
        acc_tile = tl.alloc_shared((64, 64), "float32", "shared")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        up_start = tl.alloc_shared((64,), "int64", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        up_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        acc = tl.alloc_local((16,), "float32")
        u_as_bf16 = tl.alloc_local((16,), "bfloat16")
        u = tl.alloc_local((16,), "float32")
        d_silu = tl.alloc_local((16,), "float32")
        acc_sums_2 = tl.alloc_fragment((64, 64), "float32")
        acc_tile_2 = tl.alloc_shared((64, 64), "float32", "shared")
        x_start_2 = tl.alloc_shared((64,), "int64", "shared")
        t_place_3 = tl.alloc_local((16,), "int32")
        gate_start = tl.alloc_shared((64,), "int64", "shared")
        x_tile_2 = tl.alloc_shared((64, 32), "bfloat16", "shared")
        gate_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_4 = tl.alloc_local((16,), "int32")
        acc_2 = tl.alloc_local((16,), "float32")
        g_as_bf16 = tl.alloc_local((16,), "bfloat16")
        g = tl.alloc_local((16,), "float32")
        sigmoid_g = tl.alloc_local((16,), "float32")
        silu_product = tl.alloc_local((16,), "float32")
        silu_product_bf16 = tl.alloc_local((16,), "bfloat16")
        silu = tl.alloc_local((16,), "float32")
        d_u = tl.alloc_local((16,), "float32")
        d_g_product = tl.alloc_local((16,), "float32")
        d_silu_times_g = tl.alloc_local((16,), "float32")
        neg_g = tl.alloc_local((16,), "float32")
        d_g_sigmoid = tl.alloc_local((16,), "float32")
        d_g_product_2 = tl.alloc_local((16,), "float32")
        d_g_product_3 = tl.alloc_local((16,), "float32")
        d_u_bf16 = tl.alloc_local((16,), "bfloat16")
        d_g = tl.alloc_local((16,), "float32")
        d_g_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        n = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        for c in tl.unroll(16):  # swiglu_linear.py:25
            d_y_value[c] = tl.if_then_else(t_inside[c], d_y[tl.int64(t[c]) * d_y_t_stride + n], tl.Cast("bfloat16", 0))
            d_y_f32[c] = tl.Cast("float32", d_y_value[c])
            t_place[c] = thread // 64 * 16 + c  # swiglu_linear.py:23
            if writes:
                x_start[t_place[c]] = tl.Select(t_inside[c], tl.int64(tl.int64(t[c]) * x_t_stride), tl.int64(-1))
        n_place = thread % 64
        if writes_2:
            up_start[n_place] = tl.int64(tl.int64(n) * up_n_stride)
        tl.clear(acc_sums)
        tl.sync_threads()
        for k_step in tl.serial(0, 128):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_step * 32 + at % 32
                x_tile[row, at % 32] = tl.if_then_else(
                    (x_start[row] != -1) & (k < 4096), x[x_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_step * 32 + at % 32
                up_tile[row, at % 32] = tl.if_then_else(
                    (up_start[row] != -1) & (k < 4096), up[up_start[row] + k], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(x_tile, up_tile, acc_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(acc_sums, acc_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        n_place_2 = thread % 64
        for c in tl.unroll(16):
            acc[c] = acc_tile[t_place_2[c], n_place_2]
            u_as_bf16[c] = tl.Cast("bfloat16", acc[c])
            u[c] = tl.Cast("float32", u_as_bf16[c])
            d_silu[c] = d_y_f32[c] * u[c]  # swiglu_linear.py:25
            t_place_3[c] = thread // 64 * 16 + c  # swiglu_linear.py:22
            if writes:
                x_start_2[t_place_3[c]] = tl.Select(t_inside[c], tl.int64(tl.int64(t[c]) * x_t_stride), tl.int64(-1))
        n_place_3 = thread % 64
        if writes_2:
            gate_start[n_place_3] = tl.int64(tl.int64(n) * gate_n_stride)
        tl.clear(acc_sums_2)
        tl.sync_threads()
        for k_step_2 in tl.serial(0, 128):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_step_2 * 32 + at % 32
                x_tile_2[row, at % 32] = tl.if_then_else(
                    (x_start_2[row] != -1) & (k < 4096), x[x_start_2[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_step_2 * 32 + at % 32
                gate_tile[row, at % 32] = tl.if_then_else(
                    (gate_start[row] != -1) & (k < 4096), gate[gate_start[row] + k], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(x_tile_2, gate_tile, acc_sums_2, transpose_B=True)
            tl.sync_threads()
        tl.copy(acc_sums_2, acc_tile_2)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_4[c] = thread // 64 * 16 + c
        n_place_4 = thread % 64
        for c in tl.unroll(16):
            acc_2[c] = acc_tile_2[t_place_4[c], n_place_4]
            g_as_bf16[c] = tl.Cast("bfloat16", acc_2[c])
            g[c] = tl.Cast("float32", g_as_bf16[c])
            sigmoid_g[c] = portable_sigmoid(g[c])  # swiglu_linear.py:24
            silu_product[c] = g[c] * sigmoid_g[c]
            silu_product_bf16[c] = tl.Cast("bfloat16", silu_product[c])
            silu[c] = tl.Cast("float32", silu_product_bf16[c])
            d_u[c] = d_y_f32[c] * silu[c]  # swiglu_linear.py:25
            d_g_product[c] = d_silu[c] * sigmoid_g[c]  # swiglu_linear.py:24
            d_silu_times_g[c] = d_silu[c] * g[c]
            neg_g[c] = g[c] * f32(-1.0)
            d_g_sigmoid[c] = portable_sigmoid(neg_g[c])
            d_g_product_2[c] = sigmoid_g[c] * d_g_sigmoid[c]
            d_g_product_3[c] = d_silu_times_g[c] * d_g_product_2[c]
            d_u_bf16[c] = tl.Cast("bfloat16", d_u[c])  # swiglu_linear.py:23
            if t_inside[c]:
                d_z_bf16[tl.int64(t[c]) * d_z_bf16_t_stride + n] = d_u_bf16[c]
            d_g[c] = d_g_product[c] + d_g_product_3[c]  # swiglu_linear.py:22
            d_g_bf16[c] = tl.Cast("bfloat16", d_g[c])
            if t_inside[c]:
                d_z_bf16_2[tl.int64(t[c]) * d_z_bf16_2_t_stride + n] = d_g_bf16[c]


@tl.prim_func
def swiglu_linear_grad_2(
    gate: memory("gate", "bfloat16"), up: memory("up", "bfloat16"), d_x: memory("d_x", "bfloat16"),
    d_z_bf16: memory("d_z_bf16", "bfloat16"), d_z_bf16_2: memory("d_z_bf16_2", "bfloat16"), T: tl.int32,
    d_z_bf16_t_stride: tl.int64, up_n_stride: tl.int64, d_z_bf16_2_t_stride: tl.int64, gate_n_stride: tl.int64,
    d_x_t_stride: tl.int64, programs: tl.int32
):
    # A block owns 64 of T, 64 of K (dot_map). T: 64 indices, 16 to each of 4 threads; K: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        acc_sums = tl.alloc_fragment((64, 64), "float32")
        acc_tile = tl.alloc_shared((64, 64), "float32", "shared")
        d_z_bf16_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        up_start = tl.alloc_shared((64,), "int64", "shared")
        d_z_bf16_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        up_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        acc = tl.alloc_local((16,), "float32")
        acc_sums_2 = tl.alloc_fragment((64, 64), "float32")
        acc_tile_2 = tl.alloc_shared((64, 64), "float32", "shared")
        d_z_bf16_start_2 = tl.alloc_shared((64,), "int64", "shared")
        t_place_3 = tl.alloc_local((16,), "int32")
        gate_start = tl.alloc_shared((64,), "int64", "shared")
        d_z_bf16_tile_2 = tl.alloc_shared((64, 32), "bfloat16", "shared")
        gate_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_4 = tl.alloc_local((16,), "int32")
        acc_2 = tl.alloc_local((16,), "float32")
        d_x_value = tl.alloc_local((16,), "float32")
        d_x_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        k_2 = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        for c in tl.unroll(16):  # swiglu_linear.py:23
            t_place[c] = thread // 64 * 16 + c
            if writes:
                d_z_bf16_start[t_place[c]] = tl.Select(
                    t_inside[c], tl.int64(tl.int64(t[c]) * d_z_bf16_t_stride), tl.int64(-1)
                )
        k_place = thread % 64
        if writes_2:
            up_start[k_place] = tl.int64(k_2)
        tl.clear(acc_sums)
        tl.sync_threads()
        for n_step in tl.serial(0, 128):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, n_step * 32 + at % 32
                d_z_bf16_tile[row, at % 32] = tl.if_then_else(
                    (d_z_bf16_start[row] != -1) & (k < 4096), d_z_bf16[d_z_bf16_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, n_step * 32 + at // 64
                up_tile[row, at // 64] = tl.if_then_else(
                    (up_start[row] != -1) & (k < 4096), up[up_start[row] + tl.int64(k) * up_n_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(d_z_bf16_tile, up_tile, acc_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(acc_sums, acc_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        k_place_2 = thread % 64
        for c in tl.unroll(16):
            acc[c] = acc_tile[t_place_2[c], k_place_2]
            t_place_3[c] = thread // 64 * 16 + c  # swiglu_linear.py:22
            if writes:
                d_z_bf16_start_2[t_place_3[c]] = tl.Select(
                    t_inside[c], tl.int64(tl.int64(t[c]) * d_z_bf16_2_t_stride), tl.int64(-1)
                )
        k_place_3 = thread % 64
        if writes_2:
            gate_start[k_place_3] = tl.int64(k_2)
        tl.clear(acc_sums_2)
        tl.sync_threads()
        for n_step_2 in tl.serial(0, 128):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, n_step_2 * 32 + at % 32
                d_z_bf16_tile_2[row, at % 32] = tl.if_then_else(
                    (d_z_bf16_start_2[row] != -1) & (k < 4096), d_z_bf16_2[d_z_bf16_start_2[row] + k],
                    tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, n_step_2 * 32 + at // 64
                gate_tile[row, at // 64] = tl.if_then_else(
                    (gate_start[row] != -1) & (k < 4096), gate[gate_start[row] + tl.int64(k) * gate_n_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(d_z_bf16_tile_2, gate_tile, acc_sums_2, transpose_B=True)
            tl.sync_threads()
        tl.copy(acc_sums_2, acc_tile_2)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_4[c] = thread // 64 * 16 + c
        k_place_4 = thread % 64
        for c in tl.unroll(16):
            acc_2[c] = acc_tile_2[t_place_4[c], k_place_4]
            d_x_value[c] = acc[c] + acc_2[c]
            d_x_bf16[c] = tl.Cast("bfloat16", d_x_value[c])
            if t_inside[c]:
                d_x[tl.int64(t[c]) * d_x_t_stride + k_2] = d_x_bf16[c]


@tl.prim_func
def swiglu_linear_grad_3(
    x: memory("x", "bfloat16"), d_gate: memory("d_gate", "bfloat16"), d_z_bf16_2: memory("d_z_bf16_2", "bfloat16"),
    T: tl.int32, d_z_bf16_2_t_stride: tl.int64, x_t_stride: tl.int64, d_gate_n_stride: tl.int64, programs: tl.int32
):
    # A block owns 64 of N, 64 of K (dot_map). N: 64 indices, 16 to each of 4 threads; K: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        n = tl.alloc_local((16,), "int32")
        d_gate_sums = tl.alloc_fragment((64, 64), "float32")
        d_gate_tile = tl.alloc_shared((64, 64), "float32", "shared")
        d_z_bf16_start = tl.alloc_shared((64,), "int64", "shared")
        n_place = tl.alloc_local((16,), "int32")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        d_z_bf16_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        n_place_2 = tl.alloc_local((16,), "int32")
        d_gate_value = tl.alloc_local((16,), "float32")
        d_gate_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            n[c] = rest * 64 + thread // 64 * 16 + c
        k_2 = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        for c in tl.unroll(16):  # swiglu_linear.py:22
            n_place[c] = thread // 64 * 16 + c
            if writes:
                d_z_bf16_start[n_place[c]] = tl.int64(n[c])
        k_place = thread % 64
        if writes_2:
            x_start[k_place] = tl.int64(k_2)
        tl.clear(d_gate_sums)
        tl.sync_threads()
        for t_step in tl.serial(0, ((T + 31) // 32)):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_step * 32 + at // 64
                d_z_bf16_tile[row, at // 64] = tl.if_then_else(
                    (d_z_bf16_start[row] != -1) & (k < T),
                    d_z_bf16_2[d_z_bf16_start[row] + tl.int64(k) * d_z_bf16_2_t_stride], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_step * 32 + at // 64
                x_tile[row, at // 64] = tl.if_then_else(
                    (x_start[row] != -1) & (k < T), x[x_start[row] + tl.int64(k) * x_t_stride], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(d_z_bf16_tile, x_tile, d_gate_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_gate_sums, d_gate_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            n_place_2[c] = thread // 64 * 16 + c
        k_place_2 = thread % 64
        for c in tl.unroll(16):
            d_gate_value[c] = d_gate_tile[n_place_2[c], k_place_2]
            d_gate_bf16[c] = tl.Cast("bfloat16", d_gate_value[c])
            d_gate[tl.int64(n[c]) * d_gate_n_stride + k_2] = d_gate_bf16[c]


@tl.prim_func
def swiglu_linear_grad_4(
    x: memory("x", "bfloat16"), d_up: memory("d_up", "bfloat16"), d_z_bf16: memory("d_z_bf16", "bfloat16"), T: tl.int32,
    d_z_bf16_t_stride: tl.int64, x_t_stride: tl.int64, d_up_n_stride: tl.int64, programs: tl.int32
):
    # A block owns 64 of N, 64 of K (dot_map). N: 64 indices, 16 to each of 4 threads; K: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        n = tl.alloc_local((16,), "int32")
        d_up_sums = tl.alloc_fragment((64, 64), "float32")
        d_up_tile = tl.alloc_shared((64, 64), "float32", "shared")
        d_z_bf16_start = tl.alloc_shared((64,), "int64", "shared")
        n_place = tl.alloc_local((16,), "int32")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        d_z_bf16_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        n_place_2 = tl.alloc_local((16,), "int32")
        d_up_value = tl.alloc_local((16,), "float32")
        d_up_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            n[c] = rest * 64 + thread // 64 * 16 + c
        k_2 = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        for c in tl.unroll(16):  # swiglu_linear.py:23
            n_place[c] = thread // 64 * 16 + c
            if writes:
                d_z_bf16_start[n_place[c]] = tl.int64(n[c])
        k_place = thread % 64
        if writes_2:
            x_start[k_place] = tl.int64(k_2)
        tl.clear(d_up_sums)
        tl.sync_threads()
        for t_step in tl.serial(0, ((T + 31) // 32)):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_step * 32 + at // 64
                d_z_bf16_tile[row, at // 64] = tl.if_then_else(
                    (d_z_bf16_start[row] != -1) & (k < T),
                    d_z_bf16[d_z_bf16_start[row] + tl.int64(k) * d_z_bf16_t_stride], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_step * 32 + at // 64
                x_tile[row, at // 64] = tl.if_then_else(
                    (x_start[row] != -1) & (k < T), x[x_start[row] + tl.int64(k) * x_t_stride], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(d_z_bf16_tile, x_tile, d_up_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_up_sums, d_up_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            n_place_2[c] = thread // 64 * 16 + c
        k_place_2 = thread % 64
        for c in tl.unroll(16):
            d_up_value[c] = d_up_tile[n_place_2[c], k_place_2]
            d_up_bf16[c] = tl.Cast("bfloat16", d_up_value[c])
            d_up[tl.int64(n[c]) * d_up_n_stride + k_2] = d_up_bf16[c]


def call(
    kernels, x, gate, up, d_y, d_z_bf16, d_z_bf16_2, d_x, d_gate, d_up, T, d_y_t_stride, x_t_stride, up_n_stride,
    gate_n_stride, d_z_bf16_t_stride, d_z_bf16_2_t_stride, d_x_t_stride, d_gate_n_stride, d_up_n_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64) * 64
    if programs > 0:
        kernels.swiglu_linear_grad_1(
            (programs,), x, gate, up, d_y, d_z_bf16, d_z_bf16_2, T, d_y_t_stride, x_t_stride, up_n_stride,
            gate_n_stride, d_z_bf16_t_stride, d_z_bf16_2_t_stride
        )
    programs = ((T + 63) // 64) * 64
    if programs > 0:
        kernels.swiglu_linear_grad_2(
            (programs,), gate, up, d_x, d_z_bf16, d_z_bf16_2, T, d_z_bf16_t_stride, up_n_stride, d_z_bf16_2_t_stride,
            gate_n_stride, d_x_t_stride
        )
    programs = 64 * 64
    if programs > 0:
        kernels.swiglu_linear_grad_3(
            (programs,), x, d_gate, d_z_bf16_2, T, d_z_bf16_2_t_stride, x_t_stride, d_gate_n_stride
        )
    programs = 64 * 64
    if programs > 0:
        kernels.swiglu_linear_grad_4((programs,), x, d_up, d_z_bf16, T, d_z_bf16_t_stride, x_t_stride, d_up_n_stride)
