"""rms_norm_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 44094d594e766885
schedule: tiles 1, 4 warps, 3 stages, unroll 1
schedule: tiles N=32, 1 warps, 1 stages, unroll 64
inputs:
  weight: bf16 [N=4096]
  residual_out: bf16 [T, N=4096]
  rstd: f32 [T]
  d_y: bf16 [T, N=4096]
  d_residual_out: bf16 [T, N=4096]
outputs:
  d_x: bf16 [T, N=4096]
  d_residual: bf16 [T, N=4096]
  d_weight: bf16 [N=4096]
"""

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_over_n(x):
    # The sum over N, vector8: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (512, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (512, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (512, 2)), 1)
    x = tl.sum(tl.reshape(x, (2, 256)), 0)
    x = tl.sum(tl.reshape(x, (2, 128)), 0)
    x = tl.sum(tl.reshape(x, (2, 64)), 0)
    x = tl.sum(tl.reshape(x, (2, 32)), 0)
    x = tl.sum(tl.reshape(x, (2, 16)), 0)
    x = tl.sum(tl.reshape(x, (2, 8)), 0)
    x = tl.sum(tl.reshape(x, (2, 4)), 0)
    x = tl.sum(tl.reshape(x, (2, 2)), 0)
    x = tl.sum(tl.reshape(x, (2,)), 0)
    return x


@triton.jit
def rms_norm_grad_1(
    weight_ptr, residual_out_ptr, rstd_ptr, d_y_ptr, d_residual_out_ptr, d_x_ptr, d_residual_ptr, sum_of_piece_ptr, T,
    residual_out_t_stride, d_y_t_stride, d_residual_out_t_stride, d_x_t_stride, d_residual_t_stride,
    sum_of_piece_t_piece_stride
):
    # A program owns 1 of T.piece (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t_piece = tl.program_id(0)
    n = tl.arange(0, 4096)  # norm.py:16
    weight = tl.load(weight_ptr + n)
    w = weight.to(tl.float32)
    t_piece_times_64 = t_piece * 64  # norm.py:64
    piece_begin = tl.minimum(T, t_piece_times_64)
    piece_begin_plus_64 = piece_begin + 64
    piece_end = tl.minimum(T, piece_begin_plus_64)
    piece_end_minus_piece_begin = piece_end - piece_begin
    total = tl.full((4096,), negative_zero(), tl.float32)
    for t_step in tl.range(0, piece_end_minus_piece_begin, num_stages=3):
        t = piece_begin + t_step
        rstd = tl.load(rstd_ptr + t)  # norm.py:65
        residual_out = tl.load(residual_out_ptr + t.to(tl.int64) * residual_out_t_stride + n)  # norm.py:66
        d_y = tl.load(d_y_ptr + t.to(tl.int64) * d_y_t_stride + n)  # norm.py:67
        d_residual_out = tl.load(d_residual_out_ptr + t.to(tl.int64) * d_residual_out_t_stride + n)  # norm.py:72
        residual_out_f32 = residual_out.to(tl.float32)  # norm.py:66
        n_2 = residual_out_f32 * rstd
        g = d_y.to(tl.float32)  # norm.py:67
        gw = g * w  # norm.py:68
        gw_times_n = gw * n_2  # norm.py:69
        sum_n = sum_over_n(gw_times_n)
        mean = tl.div_rn(sum_n, 4096.0)
        n_times_mean = n_2 * mean  # norm.py:70
        dh_difference = gw - n_times_mean
        dh = dh_difference * rstd
        d_residual_out_f32 = d_residual_out.to(tl.float32)  # norm.py:72
        dh_2 = dh + d_residual_out_f32
        grad = dh_2.to(tl.bfloat16)  # norm.py:73
        tl.store(d_x_ptr + t.to(tl.int64) * d_x_t_stride + n, grad)  # norm.py:75
        tl.store(d_residual_ptr + t.to(tl.int64) * d_residual_t_stride + n, grad)  # norm.py:77
        n_bf16 = n_2.to(tl.bfloat16)  # norm.py:79
        n_bf16_f32 = n_bf16.to(tl.float32)
        total_product = g * n_bf16_f32
        total_2 = total + total_product
        total = total_2
    tl.store(sum_of_piece_ptr + t_piece.to(tl.int64) * sum_of_piece_t_piece_stride + n, total)  # norm.py:64


@triton.jit
def rms_norm_grad_2(d_weight_ptr, sum_of_piece_ptr, T, sum_of_piece_t_piece_stride):
    # A program owns 32 of N (merge).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    n = tl.program_id(0) * 32 + tl.arange(0, 32)
    dw = tl.full((32,), negative_zero(), tl.float32)  # norm.py:64
    for t_piece_step in tl.range(0, ((T + 63) // 64), loop_unroll_factor=64):
        sum_of_piece = tl.load(sum_of_piece_ptr + t_piece_step.to(tl.int64) * sum_of_piece_t_piece_stride + n)
        total = dw + sum_of_piece  # norm.py:79
        dw = total
    dw_bf16 = dw.to(tl.bfloat16)  # norm.py:80
    tl.store(d_weight_ptr + n, dw_bf16)


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
