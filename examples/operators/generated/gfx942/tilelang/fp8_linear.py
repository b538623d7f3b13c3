"""fp8_linear on gfx942, written by rlk 0.1.0: do not edit.

numerics: 8bead5608e908595
schedule: tiles N=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed N[5:0] T[5:4]
inputs:
  x: e4m3 [T, K=4096]
  w: e4m3 [N=4096, K=4096]
  x_scale: f32 [T]
  w_scale: f32 [N=4096]
outputs:
  y: bf16 [T, N=4096]
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
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_from_e4m3(x):
    # The f32 of a byte of e4m3, exactly; 0x7f and 0xff are NaN.
    i0 = tl.alloc_var("int32", x << 24)
    i1 = tl.alloc_var("int32", i0 >> 4)
    i2 = tl.alloc_var("int32", i1 & tl.int32(-2014314496))
    y3 = tl.alloc_var("float32", number_of(i2))
    y4 = tl.alloc_var("float32", y3 * f32(1.329227995784916e+36))
    i5 = tl.alloc_var("int32", x & tl.int32(127))
    y6 = tl.alloc_var("float32", tl.Select(i5 == tl.int32(127), f32(float("nan")), y4))
    return y6


@tl.macro
def signed_half(x):
    # LLVM makes f16(a * b) of f16(a * b + 0.0), which loses the sign of a zero.
    half = tl.alloc_var("int16", tl.reinterpret(tl.Cast("float16", x), "int16"))
    sign = tl.alloc_var("int16", tl.Cast("int16", bits_of(x) >> 16) & tl.int16(-32768))
    both = tl.alloc_var("int16", half | sign)
    return tl.reinterpret(both, "float16")


@tl.prim_func
def fp8_linear(
    x: memory("x", "uint8"), w: memory("w", "uint8"), x_scale: memory("x_scale", "float32"),
    w_scale: memory("w_scale", "float32"), y: memory("y", "bfloat16"), T: tl.int32, x_t_stride: tl.int64,
    w_n_stride: tl.int64, y_t_stride: tl.int64, programs: tl.int32
):
    # A block owns 64 of T, 64 of N (dot_map). T: 64 indices, 16 to each of 4 threads; N: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        acc_sums = tl.alloc_fragment((64, 64), "float32")
        acc_tile = tl.alloc_shared((64, 64), "float32", "shared")
        x_f32_f16_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        w_f32_f16_start = tl.alloc_shared((64,), "int64", "shared")
        x_f32_f16_tile = tl.alloc_shared((64, 32), "float16", "shared")
        w_f32_f16_tile = tl.alloc_shared((64, 32), "float16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        acc = tl.alloc_local((16,), "float32")
        x_scale_value = tl.alloc_local((16,), "float32")
        y_product = tl.alloc_local((16,), "float32")
        y_product_2 = tl.alloc_local((16,), "float32")
        y_product_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        n = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        for c in tl.unroll(16):  # fp8_linear.py:23
            t_place[c] = thread // 64 * 16 + c
            if writes:
                x_f32_f16_start[t_place[c]] = tl.Select(
                    t_inside[c], tl.int64(tl.int64(t[c]) * x_t_stride), tl.int64(-1)
                )
        n_place = thread % 64
        if writes_2:
            w_f32_f16_start[n_place] = tl.int64(tl.int64(n) * w_n_stride)
        tl.clear(acc_sums)
        tl.sync_threads()
        for k_step in tl.serial(0, 128):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_step * 32 + at % 32
                x_value = tl.alloc_var(
                    "uint8",
                    tl.if_then_else(
                        (x_f32_f16_start[row] != -1) & (k < 4096), x[x_f32_f16_start[row] + k], tl.Cast("uint8", 0)
                    )
                )
                x_f32 = tl.alloc_var("float32", portable_from_e4m3(tl.Cast("int32", x_value)))
                x_f32_f16 = tl.alloc_var("float16", signed_half(x_f32))
                x_f32_f16_tile[row, at % 32] = tl.if_then_else(
                    (x_f32_f16_start[row] != -1) & (k < 4096), x_f32_f16, tl.Cast("float16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_step * 32 + at % 32
                w_value = tl.alloc_var(
                    "uint8",
                    tl.if_then_else(
                        (w_f32_f16_start[row] != -1) & (k < 4096), w[w_f32_f16_start[row] + k], tl.Cast("uint8", 0)
                    )
                )
                w_f32 = tl.alloc_var("float32", portable_from_e4m3(tl.Cast("int32", w_value)))
                w_f32_f16 = tl.alloc_var("float16", signed_half(w_f32))
                w_f32_f16_tile[row, at % 32] = tl.if_then_else(
                    (w_f32_f16_start[row] != -1) & (k < 4096), w_f32_f16, tl.Cast("float16", 0)
                )
            tl.sync_threads()
            tl.gemm(x_f32_f16_tile, w_f32_f16_tile, acc_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(acc_sums, acc_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        n_place_2 = thread % 64
        for c in tl.unroll(16):
            acc[c] = acc_tile[t_place_2[c], n_place_2]
            x_scale_value[c] = tl.if_then_else(t_inside[c], x_scale[t[c]], tl.Cast("float32", 0))
        w_scale_value = tl.alloc_var("float32", w_scale[n])
        for c in tl.unroll(16):
            y_product[c] = acc[c] * x_scale_value[c]
            y_product_2[c] = y_product[c] * w_scale_value
            y_product_bf16[c] = tl.Cast("bfloat16", y_product_2[c])
            if t_inside[c]:
                y[tl.int64(t[c]) * y_t_stride + n] = y_product_bf16[c]


def call(kernels, x, w, x_scale, w_scale, y, T, x_t_stride, w_n_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64) * 64
    if programs > 0:
        kernels.fp8_linear((programs,), x, w, x_scale, w_scale, y, T, x_t_stride, w_n_stride, y_t_stride)
