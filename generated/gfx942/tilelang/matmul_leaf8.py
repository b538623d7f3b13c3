"""matmul_leaf8 on gfx942, written by rlk 0.1.0: do not edit.

numerics: db288bca3b21f0bb
schedule: tiles N=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed N[5:0] T[5:4]
schedule: tiles N=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed N[5:0] T[5:4]
schedule: tiles N=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed N[5:0] T[5:4]
schedule: tiles N=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed N[5:0] T[5:4]
inputs:
  x: bf16 [T, K=4096]
  w: bf16 [N=4096, K=4096]
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
def matmul_leaf8_0(
    x: memory("x", "bfloat16"), w: memory("w", "bfloat16"), merged_leaf8_0: memory("merged_leaf8_0", "float32"),
    T: tl.int32, x_t_stride: tl.int64, w_n_stride: tl.int64, merged_leaf8_0_t_stride: tl.int64, K_piece: tl.int32,
    programs: tl.int32
):
    # A block owns 64 of T, 64 of N (dot_map). T: 64 indices, 16 to each of 4 threads; N: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        y_sums = tl.alloc_fragment((64, 64), "float32")
        y_tile = tl.alloc_shared((64, 64), "float32", "shared")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        w_start = tl.alloc_shared((64,), "int64", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        w_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        y = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        n = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        K_piece_value = tl.alloc_var("int32", K_piece)  # matmul.py:79
        k_piece_begin = tl.alloc_var("int32", K_piece_value * 512)
        for c in tl.unroll(16):
            t_place[c] = thread // 64 * 16 + c
            if writes:
                x_start[t_place[c]] = tl.Select(
                    t_inside[c], tl.int64(tl.int64(t[c]) * x_t_stride + k_piece_begin), tl.int64(-1)
                )
        n_place = thread % 64
        if writes_2:
            w_start[n_place] = tl.int64(tl.int64(n) * w_n_stride + k_piece_begin)
        tl.clear(y_sums)
        tl.sync_threads()
        for k_within_step in tl.serial(0, 16):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_within_step * 32 + at % 32
                x_tile[row, at % 32] = tl.if_then_else(
                    (x_start[row] != -1) & (k < 512), x[x_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_within_step * 32 + at % 32
                w_tile[row, at % 32] = tl.if_then_else(
                    (w_start[row] != -1) & (k < 512), w[w_start[row] + k], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(x_tile, w_tile, y_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(y_sums, y_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        n_place_2 = thread % 64
        for c in tl.unroll(16):
            y[c] = y_tile[t_place_2[c], n_place_2]
            if t_inside[c]:
                merged_leaf8_0[tl.int64(t[c]) * merged_leaf8_0_t_stride + n] = y[c]


@tl.prim_func
def matmul_leaf8_1(
    x: memory("x", "bfloat16"), w: memory("w", "bfloat16"), merged_leaf8_0: memory("merged_leaf8_0", "float32"),
    merged_leaf8_1: memory("merged_leaf8_1", "float32"), T: tl.int32, x_t_stride: tl.int64, w_n_stride: tl.int64,
    merged_leaf8_0_t_stride: tl.int64, merged_leaf8_1_t_stride: tl.int64, K_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T, 64 of N (dot_map). T: 64 indices, 16 to each of 4 threads; N: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        y_sums = tl.alloc_fragment((64, 64), "float32")
        y_tile = tl.alloc_shared((64, 64), "float32", "shared")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        w_start = tl.alloc_shared((64,), "int64", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        w_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        y = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        n = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        K_piece_value = tl.alloc_var("int32", K_piece)  # matmul.py:79
        k_piece_begin = tl.alloc_var("int32", K_piece_value * 512)
        for c in tl.unroll(16):
            t_place[c] = thread // 64 * 16 + c
            if writes:
                x_start[t_place[c]] = tl.Select(
                    t_inside[c], tl.int64(tl.int64(t[c]) * x_t_stride + k_piece_begin), tl.int64(-1)
                )
        n_place = thread % 64
        if writes_2:
            w_start[n_place] = tl.int64(tl.int64(n) * w_n_stride + k_piece_begin)
        tl.clear(y_sums)
        tl.sync_threads()
        for k_within_step in tl.serial(0, 16):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_within_step * 32 + at % 32
                x_tile[row, at % 32] = tl.if_then_else(
                    (x_start[row] != -1) & (k < 512), x[x_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_within_step * 32 + at % 32
                w_tile[row, at % 32] = tl.if_then_else(
                    (w_start[row] != -1) & (k < 512), w[w_start[row] + k], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(x_tile, w_tile, y_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(y_sums, y_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        n_place_2 = thread % 64
        for c in tl.unroll(16):
            y[c] = y_tile[t_place_2[c], n_place_2]
            earlier[c] = tl.if_then_else(
                t_inside[c], merged_leaf8_0[tl.int64(t[c]) * merged_leaf8_0_t_stride + n], tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + y[c]
            if t_inside[c]:
                merged_leaf8_1[tl.int64(t[c]) * merged_leaf8_1_t_stride + n] = merged[c]


@tl.prim_func
def matmul_leaf8_2(
    x: memory("x", "bfloat16"), w: memory("w", "bfloat16"), merged_leaf8_0: memory("merged_leaf8_0", "float32"),
    merged_leaf8_1: memory("merged_leaf8_1", "float32"), merged_leaf8_2: memory("merged_leaf8_2", "float32"),
    T: tl.int32, x_t_stride: tl.int64, w_n_stride: tl.int64, merged_leaf8_0_t_stride: tl.int64,
    merged_leaf8_1_t_stride: tl.int64, merged_leaf8_2_t_stride: tl.int64, K_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T, 64 of N (dot_map). T: 64 indices, 16 to each of 4 threads; N: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        y_sums = tl.alloc_fragment((64, 64), "float32")
        y_tile = tl.alloc_shared((64, 64), "float32", "shared")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        w_start = tl.alloc_shared((64,), "int64", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        w_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        y = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        earlier_2 = tl.alloc_local((16,), "float32")
        merged_2 = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        n = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        K_piece_value = tl.alloc_var("int32", K_piece)  # matmul.py:79
        k_piece_begin = tl.alloc_var("int32", K_piece_value * 512)
        for c in tl.unroll(16):
            t_place[c] = thread // 64 * 16 + c
            if writes:
                x_start[t_place[c]] = tl.Select(
                    t_inside[c], tl.int64(tl.int64(t[c]) * x_t_stride + k_piece_begin), tl.int64(-1)
                )
        n_place = thread % 64
        if writes_2:
            w_start[n_place] = tl.int64(tl.int64(n) * w_n_stride + k_piece_begin)
        tl.clear(y_sums)
        tl.sync_threads()
        for k_within_step in tl.serial(0, 16):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_within_step * 32 + at % 32
                x_tile[row, at % 32] = tl.if_then_else(
                    (x_start[row] != -1) & (k < 512), x[x_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_within_step * 32 + at % 32
                w_tile[row, at % 32] = tl.if_then_else(
                    (w_start[row] != -1) & (k < 512), w[w_start[row] + k], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(x_tile, w_tile, y_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(y_sums, y_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        n_place_2 = thread % 64
        for c in tl.unroll(16):
            y[c] = y_tile[t_place_2[c], n_place_2]
            earlier[c] = tl.if_then_else(
                t_inside[c], merged_leaf8_0[tl.int64(t[c]) * merged_leaf8_0_t_stride + n], tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + y[c]
            earlier_2[c] = tl.if_then_else(
                t_inside[c], merged_leaf8_1[tl.int64(t[c]) * merged_leaf8_1_t_stride + n], tl.Cast("float32", 0)
            )
            merged_2[c] = earlier_2[c] + merged[c]
            if t_inside[c]:
                merged_leaf8_2[tl.int64(t[c]) * merged_leaf8_2_t_stride + n] = merged_2[c]


@tl.prim_func
def matmul_leaf8_3(
    x: memory("x", "bfloat16"), w: memory("w", "bfloat16"), y: memory("y", "bfloat16"),
    merged_leaf8_0: memory("merged_leaf8_0", "float32"), merged_leaf8_1: memory("merged_leaf8_1", "float32"),
    merged_leaf8_2: memory("merged_leaf8_2", "float32"), T: tl.int32, x_t_stride: tl.int64, w_n_stride: tl.int64,
    merged_leaf8_0_t_stride: tl.int64, merged_leaf8_1_t_stride: tl.int64, merged_leaf8_2_t_stride: tl.int64,
    y_t_stride: tl.int64, K_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T, 64 of N (dot_map). T: 64 indices, 16 to each of 4 threads; N: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        y_sums = tl.alloc_fragment((64, 64), "float32")
        y_tile = tl.alloc_shared((64, 64), "float32", "shared")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        w_start = tl.alloc_shared((64,), "int64", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        w_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        y_value = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        earlier_2 = tl.alloc_local((16,), "float32")
        merged_2 = tl.alloc_local((16,), "float32")
        earlier_3 = tl.alloc_local((16,), "float32")
        merged_3 = tl.alloc_local((16,), "float32")
        merged_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        n = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        K_piece_value = tl.alloc_var("int32", K_piece)  # matmul.py:79
        k_piece_begin = tl.alloc_var("int32", K_piece_value * 512)
        for c in tl.unroll(16):
            t_place[c] = thread // 64 * 16 + c
            if writes:
                x_start[t_place[c]] = tl.Select(
                    t_inside[c], tl.int64(tl.int64(t[c]) * x_t_stride + k_piece_begin), tl.int64(-1)
                )
        n_place = thread % 64
        if writes_2:
            w_start[n_place] = tl.int64(tl.int64(n) * w_n_stride + k_piece_begin)
        tl.clear(y_sums)
        tl.sync_threads()
        for k_within_step in tl.serial(0, 16):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_within_step * 32 + at % 32
                x_tile[row, at % 32] = tl.if_then_else(
                    (x_start[row] != -1) & (k < 512), x[x_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, k_within_step * 32 + at % 32
                w_tile[row, at % 32] = tl.if_then_else(
                    (w_start[row] != -1) & (k < 512), w[w_start[row] + k], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(x_tile, w_tile, y_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(y_sums, y_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        n_place_2 = thread % 64
        for c in tl.unroll(16):
            y_value[c] = y_tile[t_place_2[c], n_place_2]
            earlier[c] = tl.if_then_else(
                t_inside[c], merged_leaf8_0[tl.int64(t[c]) * merged_leaf8_0_t_stride + n], tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + y_value[c]
            earlier_2[c] = tl.if_then_else(
                t_inside[c], merged_leaf8_1[tl.int64(t[c]) * merged_leaf8_1_t_stride + n], tl.Cast("float32", 0)
            )
            merged_2[c] = earlier_2[c] + merged[c]
            earlier_3[c] = tl.if_then_else(
                t_inside[c], merged_leaf8_2[tl.int64(t[c]) * merged_leaf8_2_t_stride + n], tl.Cast("float32", 0)
            )
            merged_3[c] = earlier_3[c] + merged_2[c]
            merged_bf16[c] = tl.Cast("bfloat16", merged_3[c])  # matmul.py:92
            if t_inside[c]:
                y[tl.int64(t[c]) * y_t_stride + n] = merged_bf16[c]


def call(
    kernels, x, w, merged_leaf8_0, merged_leaf8_1, merged_leaf8_2, y, T, x_t_stride, w_n_stride,
    merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, y_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    for K_piece in range(8):
        if K_piece in (0, 2, 4, 6):
            programs = ((T + 63) // 64) * 64
            if programs > 0:
                kernels.matmul_leaf8_0(
                    (programs,), x, w, merged_leaf8_0, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, K_piece
                )
        if K_piece in (1, 5):
            programs = ((T + 63) // 64) * 64
            if programs > 0:
                kernels.matmul_leaf8_1(
                    (programs,), x, w, merged_leaf8_0, merged_leaf8_1, T, x_t_stride, w_n_stride,
                    merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, K_piece
                )
        if K_piece == 3:
            programs = ((T + 63) // 64) * 64
            if programs > 0:
                kernels.matmul_leaf8_2(
                    (programs,), x, w, merged_leaf8_0, merged_leaf8_1, merged_leaf8_2, T, x_t_stride, w_n_stride,
                    merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, K_piece
                )
        if K_piece == 7:
            programs = ((T + 63) // 64) * 64
            if programs > 0:
                kernels.matmul_leaf8_3(
                    (programs,), x, w, y, merged_leaf8_0, merged_leaf8_1, merged_leaf8_2, T, x_t_stride, w_n_stride,
                    merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, y_t_stride, K_piece
                )
