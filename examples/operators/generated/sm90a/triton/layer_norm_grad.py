"""layer_norm_grad on sm_90a, written by rlk 0.1.0: do not edit.

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

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sums_over_n(x, y):
    # The sums over N, vector8: two terms at a time, so that no layout chooses.
    x = tl.join(x, y)
    x = tl.sum(tl.reshape(x, (512, 2, 4, 2)), 1)
    x = tl.sum(tl.reshape(x, (512, 2, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (512, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (2, 256, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 128, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 64, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 32, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 16, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 8, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 4, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 2, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 2)), 0)
    return tl.split(x)


@triton.jit
def layer_norm_grad_1(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, d_y_ptr, d_x_ptr, sum_of_piece_ptr, T, x_t_stride, d_y_t_stride,
    d_x_t_stride, sum_of_piece_t_piece_stride
):
    # A program owns 1 of T.piece (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t_piece = tl.program_id(0)
    t_piece_times_64 = t_piece * 64  # layer_norm.py:39
    piece_begin = tl.minimum(T, t_piece_times_64)
    piece_begin_plus_64 = piece_begin + 64
    piece_end = tl.minimum(T, piece_begin_plus_64)
    piece_end_minus_piece_begin = piece_end - piece_begin
    n = tl.arange(0, 4096)  # layer_norm.py:41
    total = tl.full((4096,), negative_zero(), tl.float32)  # layer_norm.py:39
    for t_step in tl.range(0, piece_end_minus_piece_begin, num_stages=3):
        t = piece_begin + t_step
        rstd = tl.load(rstd_ptr + t)  # layer_norm.py:40
        mean = tl.load(mean_ptr + t)  # layer_norm.py:41
        x = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + n)
        d_y = tl.load(d_y_ptr + t.to(tl.int64) * d_y_t_stride + n)  # layer_norm.py:42
        weight = tl.load(weight_ptr + n)  # layer_norm.py:43
        x_f32 = x.to(tl.float32)  # layer_norm.py:41
        h_difference = x_f32 - mean
        h = h_difference * rstd
        g = d_y.to(tl.float32)  # layer_norm.py:42
        weight_f32 = weight.to(tl.float32)  # layer_norm.py:43
        gw = g * weight_f32
        gw_times_h = gw * h  # layer_norm.py:44
        sum_n, sum_n_2 = sums_over_n(gw_times_h, gw)
        along = tl.div_rn(sum_n, 4096.0)
        level = tl.div_rn(sum_n_2, 4096.0)  # layer_norm.py:45
        gw_minus_level = gw - level  # layer_norm.py:47
        h_times_along = h * along
        d_x_difference = gw_minus_level - h_times_along
        d_x_product = d_x_difference * rstd
        d_x_product_bf16 = d_x_product.to(tl.bfloat16)
        tl.store(d_x_ptr + t.to(tl.int64) * d_x_t_stride + n, d_x_product_bf16)
        g_times_h = g * h  # layer_norm.py:49
        total_2 = total + g_times_h
        total = total_2
    tl.store(sum_of_piece_ptr + t_piece.to(tl.int64) * sum_of_piece_t_piece_stride + n, total)  # layer_norm.py:39


@triton.jit
def layer_norm_grad_2(d_weight_ptr, sum_of_piece_ptr, T, sum_of_piece_t_piece_stride):
    # A program owns 32 of N (merge).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    n = tl.program_id(0) * 32 + tl.arange(0, 32)
    d_weight = tl.full((32,), negative_zero(), tl.float32)  # layer_norm.py:39
    for t_piece_step in tl.range(0, ((T + 63) // 64), loop_unroll_factor=64):
        sum_of_piece = tl.load(sum_of_piece_ptr + t_piece_step.to(tl.int64) * sum_of_piece_t_piece_stride + n)
        total = d_weight + sum_of_piece  # layer_norm.py:49
        d_weight = total
    d_weight_bf16 = d_weight.to(tl.bfloat16)  # layer_norm.py:53
    tl.store(d_weight_ptr + n, d_weight_bf16)  # layer_norm.py:52


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
