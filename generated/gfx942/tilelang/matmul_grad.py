"""matmul_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: f205e8c3a5ca42e2
schedule: tiles K=64, T=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed K[5:0] T[5:4]
schedule: tiles N=2048, 4 warps, 1 stages, unroll 1
schedule: tiles K=64, N=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed K[5:0] N[5:4]
inputs:
  w: bf16 [N=14336, K=4096]
  d_y: bf16 [T, N=14336]
  x: bf16 [T, K=4096]
outputs:
  d_x: bf16 [T, K=4096]
  d_residual: bf16 [T, N=14336]
  d_w: bf16 [N=14336, K=4096]
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
def matmul_grad_1(
    w: memory("w", "bfloat16"), d_y: memory("d_y", "bfloat16"), d_x: memory("d_x", "bfloat16"), T: tl.int32,
    d_y_t_stride: tl.int64, w_n_stride: tl.int64, d_x_t_stride: tl.int64, programs: tl.int32
):
    # A block owns 64 of T, 64 of K (dot_map). T: 64 indices, 16 to each of 4 threads; K: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((16,), "int32")
        t_inside = tl.alloc_local((16,), "bool")
        acc_sums = tl.alloc_fragment((64, 64), "float32")
        acc_tile = tl.alloc_shared((64, 64), "float32", "shared")
        d_y_start = tl.alloc_shared((64,), "int64", "shared")
        t_place = tl.alloc_local((16,), "int32")
        w_start = tl.alloc_shared((64,), "int64", "shared")
        d_y_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        w_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((16,), "int32")
        acc = tl.alloc_local((16,), "float32")
        d_x_as_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t[c] = rest * 64 + thread // 64 * 16 + c
            t_inside[c] = t[c] < T
        k_2 = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        for c in tl.unroll(16):  # matmul.py:142
            t_place[c] = thread // 64 * 16 + c
            if writes:
                d_y_start[t_place[c]] = tl.Select(t_inside[c], tl.int64(tl.int64(t[c]) * d_y_t_stride), tl.int64(-1))
        k_place = thread % 64
        if writes_2:
            w_start[k_place] = tl.int64(k_2)
        tl.clear(acc_sums)
        tl.sync_threads()
        for n_step in tl.serial(0, 448):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, n_step * 32 + at % 32
                d_y_tile[row, at % 32] = tl.if_then_else(
                    (d_y_start[row] != -1) & (k < 14336), d_y[d_y_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, n_step * 32 + at // 64
                w_tile[row, at // 64] = tl.if_then_else(
                    (w_start[row] != -1) & (k < 14336), w[w_start[row] + tl.int64(k) * w_n_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(d_y_tile, w_tile, acc_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(acc_sums, acc_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_place_2[c] = thread // 64 * 16 + c
        k_place_2 = thread % 64
        for c in tl.unroll(16):
            acc[c] = acc_tile[t_place_2[c], k_place_2]
            d_x_as_bf16[c] = tl.Cast("bfloat16", acc[c])  # matmul.py:130
            if t_inside[c]:
                d_x[tl.int64(t[c]) * d_x_t_stride + k_2] = d_x_as_bf16[c]


@tl.prim_func
def matmul_grad_3(
    d_y: memory("d_y", "bfloat16"), d_residual: memory("d_residual", "bfloat16"), d_y_t_stride: tl.int64,
    d_residual_t_stride: tl.int64, T: tl.int32, programs: tl.int32
):
    # A block owns 1 of T, 2048 of N (rows). N: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        n = tl.alloc_local((8,), "int32")
        d_y_value = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 7)
        t = rest
        for c in tl.unroll(8):
            n[c] = tl.truncmod(block, 7) * 2048 + thread + c * 256
            d_y_value[c] = d_y[tl.int64(t) * d_y_t_stride + n[c]]  # matmul.py:142
            d_residual[tl.int64(t) * d_residual_t_stride + n[c]] = d_y_value[c]  # matmul.py:136


@tl.prim_func
def matmul_grad_2(
    x: memory("x", "bfloat16"), d_y: memory("d_y", "bfloat16"), d_w: memory("d_w", "bfloat16"), d_y_t_stride: tl.int64,
    x_t_stride: tl.int64, T_length: tl.int32, d_w_n_stride: tl.int64, T_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of N, 64 of K (dot_map). N: 64 indices, 16 to each of 4 threads; K: 64 indices, 1 to each of 64
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        n = tl.alloc_local((16,), "int32")
        acc_sums = tl.alloc_fragment((64, 64), "float32")
        acc_tile = tl.alloc_shared((64, 64), "float32", "shared")
        d_y_start = tl.alloc_shared((64,), "int64", "shared")
        n_place = tl.alloc_local((16,), "int32")
        x_start = tl.alloc_shared((64,), "int64", "shared")
        d_y_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        x_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        n_place_2 = tl.alloc_local((16,), "int32")
        acc = tl.alloc_local((16,), "float32")
        d_w_as_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            n[c] = rest * 64 + thread // 64 * 16 + c
        k_2 = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        T_piece_value = tl.alloc_var("int32", T_piece)  # matmul.py:142
        t_piece_begin = tl.alloc_var("int32", T_piece_value * 8192)
        for c in tl.unroll(16):  # matmul.py:146
            n_place[c] = thread // 64 * 16 + c
            if writes:
                d_y_start[n_place[c]] = tl.int64(n[c] + tl.int64(t_piece_begin) * d_y_t_stride)
        k_place = thread % 64
        if writes_2:
            x_start[k_place] = tl.int64(k_2 + tl.int64(t_piece_begin) * x_t_stride)
        tl.clear(acc_sums)
        tl.sync_threads()
        for t_within_step in tl.serial(0, ((T_length + 31) // 32)):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_within_step * 32 + at // 64
                d_y_tile[row, at // 64] = tl.if_then_else(
                    (d_y_start[row] != -1) & (k < T_length), d_y[d_y_start[row] + tl.int64(k) * d_y_t_stride],
                    tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_within_step * 32 + at // 64
                x_tile[row, at // 64] = tl.if_then_else(
                    (x_start[row] != -1) & (k < T_length), x[x_start[row] + tl.int64(k) * x_t_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(d_y_tile, x_tile, acc_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(acc_sums, acc_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            n_place_2[c] = thread // 64 * 16 + c
        k_place_2 = thread % 64
        for c in tl.unroll(16):
            acc[c] = acc_tile[n_place_2[c], k_place_2]
            d_w_as_bf16[c] = tl.Cast("bfloat16", acc[c])  # matmul.py:132
            d_w[tl.int64(n[c]) * d_w_n_stride + k_2] = d_w_as_bf16[c]


def call(
    kernels, w, d_y, d_x, d_residual, x, d_w, T, d_y_t_stride, w_n_stride, d_x_t_stride, d_residual_t_stride,
    x_t_stride, d_w_n_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64) * 64
    if programs > 0:
        kernels.matmul_grad_1((programs,), w, d_y, d_x, T, d_y_t_stride, w_n_stride, d_x_t_stride)
    programs = T * 7
    if programs > 0:
        kernels.matmul_grad_3((programs,), d_y, d_residual, d_y_t_stride, d_residual_t_stride, T)
    for T_piece in range((T + 8191) // 8192):
        T_length = min(8192, T - T_piece * 8192)
        programs = 224 * 64
        if programs > 0:
            kernels.matmul_grad_2((programs,), x, d_y, d_w, d_y_t_stride, x_t_stride, T_length, d_w_n_stride, T_piece)
