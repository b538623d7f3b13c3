"""layer_norm_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: b4e45fc347236537
schedule: tiles 1, 4 warps, 3 stages, unroll 1
schedule: tiles N=32, 1 warps, 1 stages, unroll 64
inputs:
  x: bf16 [T, N=4096]
  weight: bf16 [N=4096]
  mean: f32 [T]
  rstd: f32 [T]
  d_y: bf16 [T, N=4096]
outputs:
  d_x: bf16 [T, N=4096]
  d_weight: bf16 [N=4096]
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
def sum_over_n(x, x_reduce_smem, thread):
    # The sum over N, vector8.
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c // 8 * 16 + c % 8], x[c // 8 * 16 + c % 8 + 8])
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
def layer_norm_grad_1(
    x: memory("x", "bfloat16"), weight: memory("weight", "bfloat16"), mean: memory("mean", "float32"),
    rstd: memory("rstd", "float32"), d_y: memory("d_y", "bfloat16"), d_x: memory("d_x", "bfloat16"),
    sum_of_piece: memory("sum_of_piece", "float32"), T: tl.int32, x_t_stride: tl.int64, d_y_t_stride: tl.int64,
    d_x_t_stride: tl.int64, sum_of_piece_t_piece_stride: tl.int64, programs: tl.int32
):
    # A block owns 1 of T.piece (rows). N: 4096 indices, 16 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((16, 256), "float32", "shared")
        n = tl.alloc_local((16,), "int32")
        total = tl.alloc_local((16,), "float32")
        x_value = tl.alloc_local((16,), "bfloat16")
        d_y_value = tl.alloc_local((16,), "bfloat16")
        weight_value = tl.alloc_local((16,), "bfloat16")
        x_f32 = tl.alloc_local((16,), "float32")
        h_difference = tl.alloc_local((16,), "float32")
        h = tl.alloc_local((16,), "float32")
        g = tl.alloc_local((16,), "float32")
        weight_f32 = tl.alloc_local((16,), "float32")
        gw = tl.alloc_local((16,), "float32")
        gw_times_h = tl.alloc_local((16,), "float32")
        sum_n = tl.alloc_local((16,), "float32")
        sum_n_3 = tl.alloc_local((16,), "float32")
        gw_minus_level = tl.alloc_local((16,), "float32")
        h_times_along = tl.alloc_local((16,), "float32")
        d_x_difference = tl.alloc_local((16,), "float32")
        d_x_product = tl.alloc_local((16,), "float32")
        d_x_product_bf16 = tl.alloc_local((16,), "bfloat16")
        g_times_h = tl.alloc_local((16,), "float32")
        total_2 = tl.alloc_local((16,), "float32")
        total_3 = tl.alloc_local((16,), "float32")
        t_piece = block
        t_piece_times_64 = tl.alloc_var("int32", t_piece * 64)  # layer_norm.py:39
        piece_begin = tl.alloc_var("int32", tl.min(T, t_piece_times_64))
        piece_begin_plus_64 = tl.alloc_var("int32", piece_begin + 64)
        piece_end = tl.alloc_var("int32", tl.min(T, piece_begin_plus_64))
        piece_end_minus_piece_begin = tl.alloc_var("int32", piece_end - piece_begin)
        for c in tl.unroll(16):  # layer_norm.py:41
            n[c] = thread + c * 256
            total[c] = f32(-0.0)  # layer_norm.py:39
        for t_step in tl.serial(0, piece_end_minus_piece_begin):
            t = tl.alloc_var("int32", piece_begin + t_step)
            rstd_value = tl.alloc_var("float32", rstd[t])  # layer_norm.py:40
            mean_value = tl.alloc_var("float32", mean[t])  # layer_norm.py:41
            for c in tl.unroll(16):
                x_value[c] = x[tl.int64(t) * x_t_stride + n[c]]
                d_y_value[c] = d_y[tl.int64(t) * d_y_t_stride + n[c]]  # layer_norm.py:42
                weight_value[c] = weight[n[c]]  # layer_norm.py:43
                x_f32[c] = tl.Cast("float32", x_value[c])  # layer_norm.py:41
                h_difference[c] = x_f32[c] - mean_value
                h[c] = h_difference[c] * rstd_value
                g[c] = tl.Cast("float32", d_y_value[c])  # layer_norm.py:42
                weight_f32[c] = tl.Cast("float32", weight_value[c])  # layer_norm.py:43
                gw[c] = g[c] * weight_f32[c]
                gw_times_h[c] = gw[c] * h[c]  # layer_norm.py:44
                sum_n[c] = gw_times_h[c]
            sum_over_n(sum_n, f32_reduce_smem, thread)
            sum_n_2 = sum_n[0]
            along = tl.alloc_var("float32", sum_n_2 / f32(4096.0))
            for c in tl.unroll(16):  # layer_norm.py:45
                sum_n_3[c] = gw[c]
            sum_over_n(sum_n_3, f32_reduce_smem, thread)
            sum_n_4 = sum_n_3[0]
            level = tl.alloc_var("float32", sum_n_4 / f32(4096.0))
            for c in tl.unroll(16):  # layer_norm.py:47
                gw_minus_level[c] = gw[c] - level
                h_times_along[c] = h[c] * along
                d_x_difference[c] = gw_minus_level[c] - h_times_along[c]
                d_x_product[c] = d_x_difference[c] * rstd_value
                d_x_product_bf16[c] = tl.Cast("bfloat16", d_x_product[c])
                d_x[tl.int64(t) * d_x_t_stride + n[c]] = d_x_product_bf16[c]
                g_times_h[c] = g[c] * h[c]  # layer_norm.py:49
                total_2[c] = total[c] + g_times_h[c]
                total[c] = total_2[c]
        for c in tl.unroll(16):  # layer_norm.py:39
            total_3[c] = total[c]
            sum_of_piece[tl.int64(t_piece) * sum_of_piece_t_piece_stride + n[c]] = total_3[c]


@tl.prim_func
def layer_norm_grad_2(
    d_weight: memory("d_weight", "bfloat16"), sum_of_piece: memory("sum_of_piece", "float32"), T: tl.int32,
    sum_of_piece_t_piece_stride: tl.int64, programs: tl.int32
):
    # A block owns 32 of N (merge). N: 32 indices, 1 to each of 32 threads.
    with tl.Kernel(programs, threads=64) as block:
        thread = tl.get_thread_binding()
        d_weight_value = tl.alloc_var("float32")
        n = block * 32 + thread % 32
        writes = (thread & 32) == 0
        d_weight_value = f32(-0.0)  # layer_norm.py:39
        for t_piece_step in tl.serial(0, ((T + 63) // 64)):
            sum_of_piece_value = tl.alloc_var(
                "float32", sum_of_piece[tl.int64(t_piece_step) * sum_of_piece_t_piece_stride + n]
            )
            total = tl.alloc_var("float32", d_weight_value + sum_of_piece_value)  # layer_norm.py:49
            d_weight_value = total
        d_weight_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", d_weight_value))  # layer_norm.py:53
        if writes:  # layer_norm.py:52
            d_weight[n] = d_weight_bf16


def call(
    kernels, x, weight, mean, rstd, d_y, d_x, sum_of_piece, d_weight, T, x_t_stride, d_y_t_stride, d_x_t_stride,
    sum_of_piece_t_piece_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64)
    if programs > 0:
        kernels.layer_norm_grad_1(
            (programs,), x, weight, mean, rstd, d_y, d_x, sum_of_piece, T, x_t_stride, d_y_t_stride, d_x_t_stride,
            sum_of_piece_t_piece_stride
        )
    programs = 128
    if programs > 0:
        kernels.layer_norm_grad_2((programs,), d_weight, sum_of_piece, T, sum_of_piece_t_piece_stride)
