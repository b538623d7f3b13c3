"""rms_norm_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 44094d594e766885
schedule: tiles 1, 4 warps, 3 stages, unroll 1
schedule: tiles N=32, 1 warps, 1 stages, unroll 64
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
def rms_norm_grad_1(
    weight: memory("weight", "bfloat16"), residual_out: memory("residual_out", "bfloat16"),
    rstd: memory("rstd", "float32"), d_y: memory("d_y", "bfloat16"),
    d_residual_out: memory("d_residual_out", "bfloat16"), d_x: memory("d_x", "bfloat16"),
    d_residual: memory("d_residual", "bfloat16"), sum_of_piece: memory("sum_of_piece", "float32"), T: tl.int32,
    residual_out_t_stride: tl.int64, d_y_t_stride: tl.int64, d_residual_out_t_stride: tl.int64, d_x_t_stride: tl.int64,
    d_residual_t_stride: tl.int64, sum_of_piece_t_piece_stride: tl.int64, programs: tl.int32
):
    # A block owns 1 of T.piece (rows). N: 4096 indices, 16 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((16, 256), "float32", "shared")
        n = tl.alloc_local((16,), "int32")
        weight_2 = tl.alloc_local((16,), "bfloat16")
        as_f32 = tl.alloc_local((16,), "float32")
        s = tl.alloc_local((16,), "float32")
        residual_out_2 = tl.alloc_local((16,), "bfloat16")
        d_y_2 = tl.alloc_local((16,), "bfloat16")
        d_residual_out_2 = tl.alloc_local((16,), "bfloat16")
        as_f32_2 = tl.alloc_local((16,), "float32")
        product_2 = tl.alloc_local((16,), "float32")
        as_f32_3 = tl.alloc_local((16,), "float32")
        product_3 = tl.alloc_local((16,), "float32")
        product_4 = tl.alloc_local((16,), "float32")
        sum_n = tl.alloc_local((16,), "float32")
        product_5 = tl.alloc_local((16,), "float32")
        difference_2 = tl.alloc_local((16,), "float32")
        product_6 = tl.alloc_local((16,), "float32")
        as_f32_4 = tl.alloc_local((16,), "float32")
        total_3 = tl.alloc_local((16,), "float32")
        as_bf16 = tl.alloc_local((16,), "bfloat16")
        as_bf16_2 = tl.alloc_local((16,), "bfloat16")
        as_f32_5 = tl.alloc_local((16,), "float32")
        product_7 = tl.alloc_local((16,), "float32")
        s_2 = tl.alloc_local((16,), "float32")
        s_3 = tl.alloc_local((16,), "float32")
        t_piece = block
        for c in tl.unroll(16):  # norm.py:16
            n[c] = thread + c * 256
            weight_2[c] = weight[n[c]]
            as_f32[c] = tl.Cast("float32", weight_2[c])
        product = tl.alloc_var("int32", t_piece * 64)  # norm.py:61
        piece_begin = tl.alloc_var("int32", tl.min(T, product))
        total = tl.alloc_var("int32", piece_begin + 64)
        piece_end = tl.alloc_var("int32", tl.min(T, total))
        difference = tl.alloc_var("int32", piece_end - piece_begin)
        for c in tl.unroll(16):
            s[c] = f32(-0.0)
        for t_step in tl.serial(0, difference):
            total_2 = tl.alloc_var("int32", piece_begin + t_step)
            rstd_2 = tl.alloc_var("float32", rstd[total_2])  # norm.py:62
            for c in tl.unroll(16):  # norm.py:63
                residual_out_2[c] = residual_out[tl.int64(total_2) * residual_out_t_stride + n[c]]
                d_y_2[c] = d_y[tl.int64(total_2) * d_y_t_stride + n[c]]  # norm.py:64
                d_residual_out_2[c] = d_residual_out[tl.int64(total_2) * d_residual_out_t_stride + n[c]]  # norm.py:69
                as_f32_2[c] = tl.Cast("float32", residual_out_2[c])  # norm.py:63
                product_2[c] = as_f32_2[c] * rstd_2
                as_f32_3[c] = tl.Cast("float32", d_y_2[c])  # norm.py:64
                product_3[c] = as_f32_3[c] * as_f32[c]  # norm.py:65
                product_4[c] = product_3[c] * product_2[c]  # norm.py:66
                sum_n[c] = product_4[c]
            sum_over_n(sum_n, f32_reduce_smem, thread)
            sum_n_2 = sum_n[0]
            quotient = tl.alloc_var("float32", sum_n_2 / f32(4096.0))
            for c in tl.unroll(16):  # norm.py:67
                product_5[c] = product_2[c] * quotient
                difference_2[c] = product_3[c] - product_5[c]
                product_6[c] = difference_2[c] * rstd_2
                as_f32_4[c] = tl.Cast("float32", d_residual_out_2[c])  # norm.py:69
                total_3[c] = product_6[c] + as_f32_4[c]
                as_bf16[c] = tl.Cast("bfloat16", total_3[c])  # norm.py:70
                d_x[tl.int64(total_2) * d_x_t_stride + n[c]] = as_bf16[c]  # norm.py:72
                d_residual[tl.int64(total_2) * d_residual_t_stride + n[c]] = as_bf16[c]  # norm.py:74
                as_bf16_2[c] = tl.Cast("bfloat16", product_2[c])  # norm.py:76
                as_f32_5[c] = tl.Cast("float32", as_bf16_2[c])
                product_7[c] = as_f32_3[c] * as_f32_5[c]
                s_2[c] = s[c] + product_7[c]  # norm.py:61
                s[c] = s_2[c]
        for c in tl.unroll(16):
            s_3[c] = s[c]
            sum_of_piece[tl.int64(t_piece) * sum_of_piece_t_piece_stride + n[c]] = s_3[c]


@tl.prim_func
def rms_norm_grad_2(
    d_weight: memory("d_weight", "bfloat16"), sum_of_piece: memory("sum_of_piece", "float32"), T: tl.int32,
    sum_of_piece_t_piece_stride: tl.int64, programs: tl.int32
):
    # A block owns 32 of N (merge). N: 32 indices, 1 to each of 32 threads.
    with tl.Kernel(programs, threads=64) as block:
        thread = tl.get_thread_binding()
        s = tl.alloc_var("float32")
        n = block * 32 + thread % 32
        writes = (thread & 32) == 0
        s = f32(-0.0)  # norm.py:61
        for t_piece_step in tl.serial(0, ((T + 63) // 64)):
            sum_of_piece_2 = tl.alloc_var(
                "float32", sum_of_piece[tl.int64(t_piece_step) * sum_of_piece_t_piece_stride + n]
            )
            s_2 = tl.alloc_var("float32", s + sum_of_piece_2)
            s = s_2
        as_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", s))  # norm.py:77
        if writes:
            d_weight[n] = as_bf16


def call(
    kernels, weight, residual_out, rstd, d_y, d_residual_out, d_x, d_residual, sum_of_piece, d_weight, T,
    residual_out_t_stride, d_y_t_stride, d_residual_out_t_stride, d_x_t_stride, d_residual_t_stride,
    sum_of_piece_t_piece_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64)
    if programs > 0:
        kernels.rms_norm_grad_1(
            (programs,), weight, residual_out, rstd, d_y, d_residual_out, d_x, d_residual, sum_of_piece, T,
            residual_out_t_stride, d_y_t_stride, d_residual_out_t_stride, d_x_t_stride, d_residual_t_stride,
            sum_of_piece_t_piece_stride
        )
    programs = 128
    if programs > 0:
        kernels.rms_norm_grad_2((programs,), d_weight, sum_of_piece, T, sum_of_piece_t_piece_stride)
