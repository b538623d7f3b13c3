"""combine_rows_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 4e8fa1c6d8864863
schedule: tiles 1, 4 warps, 1 stages, unroll 1
inputs:
  order: i32 [R]
  rows: bf16 [R, D=2048]
  weights: f32 [T, K=8]
  d_y: bf16 [T, D=2048]
outputs:
  d_weights: f32 [T, K=8]
  d_rows: bf16 [R, D=2048]
"""

import triton
import triton.language as tl


@triton.jit
def sum_over_d(x):
    # The sum over D, vector8: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (256, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (256, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (256, 2)), 1)
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
def combine_rows_grad(
    order_ptr, rows_ptr, weights_ptr, d_y_ptr, d_weights_ptr, d_rows_ptr, T, weights_t_stride, d_y_t_stride,
    rows_r_stride, d_weights_t_stride, d_rows_r_stride
):
    # A program owns 1 of R (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    r = tl.program_id(0)
    order = tl.load(order_ptr + r)  # moe.py:318
    token = order // 8
    choice = order % 8
    token_ge_0 = token >= 0  # moe.py:319
    token_lt_T = token < T
    d_y_guard = token_ge_0 & token_lt_T
    choice_ge_0 = choice >= 0  # moe.py:320
    choice_lt_8 = choice < 8
    weights_guard = choice_ge_0 & choice_lt_8
    weights_guard_2 = d_y_guard & weights_guard
    weights = tl.load(weights_ptr + token.to(tl.int64) * weights_t_stride + choice, mask=weights_guard_2, other=0.0)
    d = tl.arange(0, 2048)  # moe.py:319
    d_y = tl.load(d_y_ptr + token.to(tl.int64) * d_y_t_stride + d, mask=d_y_guard, other=0.0)
    rows = tl.load(rows_ptr + r.to(tl.int64) * rows_r_stride + d)  # moe.py:321
    d_2 = d_y.to(tl.float32)  # moe.py:319
    rows_f32 = rows.to(tl.float32)  # moe.py:321
    slope_product = rows_f32 * d_2
    slope = sum_over_d(slope_product)
    tl.store(d_weights_ptr + token.to(tl.int64) * d_weights_t_stride + choice, slope)  # moe.py:323
    d_times_weights = d_2 * weights  # moe.py:325
    d_times_weights_bf16 = d_times_weights.to(tl.bfloat16)
    tl.store(d_rows_ptr + r.to(tl.int64) * d_rows_r_stride + d, d_times_weights_bf16)


def call(
    kernels, order, rows, weights, d_y, d_weights, d_rows, T, R, weights_t_stride, d_y_t_stride, rows_r_stride,
    d_weights_t_stride, d_rows_r_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = R
    if programs > 0:
        kernels.combine_rows_grad(
            (programs,), order, rows, weights, d_y, d_weights, d_rows, T, weights_t_stride, d_y_t_stride, rows_r_stride,
            d_weights_t_stride, d_rows_r_stride
        )
