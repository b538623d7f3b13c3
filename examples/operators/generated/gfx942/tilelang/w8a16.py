"""w8a16 on gfx942, written by rlk 0.1.0: do not edit.

numerics: 056c3b836016bedb
schedule: tiles N=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed N[5:0] T[5:4]
inputs:
  x: bf16 [T, K=4096]
  w: i8 [N=4096, K=4096]
  scale: f32 [N=4096]
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


@tl.prim_func
def w8a16(
    x: memory("x", "bfloat16"), w: memory("w", "int8"), scale: memory("scale", "float32"), y: memory("y", "bfloat16"),
    T: tl.int32, x_t_stride: tl.int64, w_n_stride: tl.int64, y_t_stride: tl.int64, programs: tl.int32
):
    # A block owns 64 of T, 64 of N (dot_map). T: 64 indices, 16 to each of 4 threads; N: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        z_sums = tl.alloc_fragment((64, 64), "float32")
        z_tile = tl.alloc_shared((64, 64), "float32", "shared")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        w_i32_f32_bf16_start = tl.alloc_shared((64,), "int64", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        w_i32_f32_bf16_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        z = tl.alloc_local((16,), "float32")
        z_times_scale = tl.alloc_local((16,), "float32")
        z_times_scale_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        n = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        for c in tl.unroll(16):  # w8a16.py:22
            t_place[c] = thread // 64 * 16 + c
            if writes:
                x_start[t_place[c]] = tl.Select(t_inside[c], tl.int64(tl.int64(t[c]) * x_t_stride), tl.int64(-1))
        n_place = thread % 64
        if writes_2:
            w_i32_f32_bf16_start[n_place] = tl.int64(tl.int64(n) * w_n_stride)
        tl.clear(z_sums)
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
                w_value = tl.alloc_var(
                    "int8",
                    tl.if_then_else(
                        (w_i32_f32_bf16_start[row] != -1) & (k < 4096), w[w_i32_f32_bf16_start[row] + k],
                        tl.Cast("int8", 0)
                    )
                )
                w_i32 = tl.alloc_var("int32", tl.Cast("int32", w_value))
                w_i32_f32 = tl.alloc_var("float32", tl.Cast("float32", w_i32))
                w_i32_f32_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", w_i32_f32))
                w_i32_f32_bf16_tile[row, at % 32] = tl.if_then_else(
                    (w_i32_f32_bf16_start[row] != -1) & (k < 4096), w_i32_f32_bf16, tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(x_tile, w_i32_f32_bf16_tile, z_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(z_sums, z_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        n_place_2 = thread % 64
        for c in tl.unroll(16):
            z[c] = z_tile[t_place_2[c], n_place_2]
        scale_value = tl.alloc_var("float32", scale[n])  # w8a16.py:23
        for c in tl.unroll(16):
            z_times_scale[c] = z[c] * scale_value
            z_times_scale_bf16[c] = tl.Cast("bfloat16", z_times_scale[c])
            if t_inside[c]:
                y[tl.int64(t[c]) * y_t_stride + n] = z_times_scale_bf16[c]


def call(kernels, x, w, scale, y, T, x_t_stride, w_n_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64) * 64
    if programs > 0:
        kernels.w8a16((programs,), x, w, scale, y, T, x_t_stride, w_n_stride, y_t_stride)
