"""matmul_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: d8c889ab38af5f6c
schedule: tiles K=256, T=128, 8 warps, 3 stages, unroll 1, depth 64, group 16, 132 programs in one loop
schedule: tiles N=2048, 4 warps, 1 stages, unroll 1
schedule: tiles K=256, N=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
inputs:
  w: bf16 [N=14336, K=4096]
  d_y: bf16 [T, N=14336]
  x: bf16 [T, K=4096]
outputs:
  d_x: bf16 [T, K=4096]
  d_residual: bf16 [T, N=14336]
  d_w: bf16 [N=14336, K=4096]
"""

import triton
import triton.language as tl


@triton.jit
def matmul_grad_1(w_ptr, d_y_ptr, d_x_ptr, T, d_y_t_stride, w_n_stride, d_x_t_stride):
    # A program owns 128 of T, 256 of K (dot_map).
    tl.extra.cuda.gdc_wait()
    d_y_tiles = tl.make_tensor_descriptor(d_y_ptr, shape=[T, 14336], strides=[d_y_t_stride, 1], block_shape=[128, 64])
    w_tiles = tl.make_tensor_descriptor(w_ptr, shape=[14336, 4096], strides=[w_n_stride, 1], block_shape=[64, 256])
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 16, tl.num_programs(0), flatten=True):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
        t_first = (band_first + program % band % band_rows) * 128
        t = t_first + tl.arange(0, 128)[:, None]
        t_inside = t < T
        column = program % band // band_rows
        k_first = column * 256
        k = k_first + tl.arange(0, 256)[None, :]
        acc = tl.zeros((128, 256), tl.float32)  # matmul.py:142
        for n_first in tl.range(0, 14336, 64):
            d_y = d_y_tiles.load([t_first, n_first])
            w = w_tiles.load([n_first, k_first])
            acc = tl.dot(d_y, w, acc, max_num_imprecise_acc=1)
        d_x_as_bf16 = acc.to(tl.bfloat16)  # matmul.py:130
        tl.store(d_x_ptr + t.to(tl.int64) * d_x_t_stride + k, d_x_as_bf16, mask=t_inside)


@triton.jit
def matmul_grad_3(d_y_ptr, d_residual_ptr, d_y_t_stride, d_residual_t_stride):
    # A program owns 1 of T, 2048 of N (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 7
    n = (program % 7) * 2048 + tl.arange(0, 2048)
    t = program_2
    d_y = tl.load(d_y_ptr + t.to(tl.int64) * d_y_t_stride + n)  # matmul.py:142
    tl.store(d_residual_ptr + t.to(tl.int64) * d_residual_t_stride + n, d_y)  # matmul.py:136


@triton.jit
def matmul_grad_2(x_ptr, d_y_ptr, d_w_ptr, T, d_y_t_stride, x_t_stride, T_length, d_w_n_stride, T_piece):
    # A program owns 128 of N, 256 of K (dot_map).
    tl.extra.cuda.gdc_wait()
    for program in tl.range(tl.program_id(0), 1792, tl.num_programs(0)):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(112 - band_first, 16)
        n_first = (band_first + program % band % band_rows) * 128
        n = n_first + tl.arange(0, 128)[:, None]
        column = program % band // band_rows
        k_first = column * 256
        k = k_first + tl.arange(0, 256)[None, :]
        t_piece_begin = T_piece * 8192  # matmul.py:142
        acc = tl.zeros((128, 256), tl.float32)  # matmul.py:146
        d_y_start = d_y_ptr + t_piece_begin.to(tl.int64) * d_y_t_stride + n
        x_start = x_ptr + t_piece_begin.to(tl.int64) * x_t_stride + k
        for t_within_first in tl.range(0, T_length // 64 * 64, 64):
            t_within = t_within_first + tl.arange(0, 64)
            d_y = tl.load(d_y_start + t_within[None, :].to(tl.int64) * d_y_t_stride)
            x = tl.load(x_start + t_within[:, None].to(tl.int64) * x_t_stride)
            acc = tl.dot(d_y, x, acc, max_num_imprecise_acc=1)
        for t_within_first in tl.range(T_length // 64 * 64, T_length, 64):
            t_within = t_within_first + tl.arange(0, 64)
            d_y = tl.load(
                d_y_start + t_within[None, :].to(tl.int64) * d_y_t_stride, mask=(t_within[None, :] < T_length),
                other=0.0
            )
            x = tl.load(
                x_start + t_within[:, None].to(tl.int64) * x_t_stride, mask=(t_within[:, None] < T_length), other=0.0
            )
            acc = tl.dot(d_y, x, acc, max_num_imprecise_acc=1)
        d_w_as_bf16 = acc.to(tl.bfloat16)  # matmul.py:132
        tl.store(d_w_ptr + n.to(tl.int64) * d_w_n_stride + k, d_w_as_bf16)


def call(
    kernels, w, d_y, d_x, d_residual, x, d_w, T, d_y_t_stride, w_n_stride, d_x_t_stride, d_residual_t_stride,
    x_t_stride, d_w_n_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(((T + 127) // 128) * 16, 132)
    if programs > 0:
        kernels.matmul_grad_1((programs,), w, d_y, d_x, T, d_y_t_stride, w_n_stride, d_x_t_stride)
    programs = T * 7
    if programs > 0:
        kernels.matmul_grad_3((programs,), d_y, d_residual, d_y_t_stride, d_residual_t_stride)
    for T_piece in range((T + 8191) // 8192):
        T_length = min(8192, T - T_piece * 8192)
        programs = min(112 * 16, 132)
        if programs > 0:
            kernels.matmul_grad_2(
                (programs,), x, d_y, d_w, T, d_y_t_stride, x_t_stride, T_length, d_w_n_stride, T_piece
            )
