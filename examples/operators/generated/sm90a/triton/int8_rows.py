"""int8_rows on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 72aa07f87abd3154
schedule: tiles 1, 8 warps, 1 stages, unroll 1
inputs:
  x: bf16 [T, N=4096]
outputs:
  q: i8 [T, N=4096]
  scale: f32 [T]
"""

import triton
import triton.language as tl


@triton.jit
def max_over_n(x):
    # The max over N: no order changes it.
    x = tl.max(x, 0)
    return x


@triton.jit
def int8_rows(x_ptr, q_ptr, scale_ptr, x_t_stride, q_t_stride):
    # A program owns 1 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0)
    n = tl.arange(0, 4096)  # int8_rows.py:23
    x = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + n)
    x_f32 = x.to(tl.float32)
    m_abs = tl.abs(x_f32)
    m = max_over_n(m_abs)
    y = tl.div_rn(m, 127.0)  # int8_rows.py:24
    y_2 = tl.div_rn(127.0, m)
    scale_at_most = m >= 7.523164e-37
    scale = tl.where(scale_at_most, y, 0.0)
    inverse = tl.where(scale_at_most, y_2, 0.0)
    q_product = x_f32 * inverse  # int8_rows.py:25
    q_larger = tl.maximum(q_product, -128.0)
    q_smaller = tl.minimum(q_larger, 127.0)
    q_is_nan = q_product != q_product
    q_smaller_or_0 = tl.where(q_is_nan, 0.0, q_smaller)
    q_sum = q_smaller_or_0 + 12582912.0
    q_sum_bits = q_sum.to(tl.int32, bitcast=True)
    q_difference = q_sum_bits - 1262485504
    q_difference_i8 = q_difference.to(tl.int8)
    tl.store(q_ptr + t.to(tl.int64) * q_t_stride + n, q_difference_i8)
    tl.store(scale_ptr + t, scale)


def call(kernels, x, q, scale, T, x_t_stride, q_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.int8_rows((programs,), x, q, scale, x_t_stride, q_t_stride)
