"""fp8_rows on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 3da72a03f5cd65b8
schedule: tiles 1, 8 warps, 1 stages, unroll 1
inputs:
  x: bf16 [T, N=4096]
outputs:
  q: e4m3 [T, N=4096]
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
def fp8_rows(x_ptr, q_ptr, scale_ptr, x_t_stride, q_t_stride):
    # A program owns 1 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0)
    n = tl.arange(0, 4096)  # fp8_rows.py:23
    x = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + n)
    x_f32 = x.to(tl.float32)
    m_abs = tl.abs(x_f32)
    m = max_over_n(m_abs)
    y = tl.div_rn(m, 448.0)  # fp8_rows.py:24
    y_2 = tl.div_rn(448.0, m)
    scale_at_most = m >= 1.5046328e-36
    scale = tl.where(scale_at_most, y, 0.0)
    inverse = tl.where(scale_at_most, y_2, 0.0)
    q_product = x_f32 * inverse  # fp8_rows.py:25
    q_product_e4m3 = q_product.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    tl.store(q_ptr + t.to(tl.int64) * q_t_stride + n, q_product_e4m3)
    tl.store(scale_ptr + t, scale)


def call(kernels, x, q, scale, T, x_t_stride, q_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.fp8_rows((programs,), x, q, scale, x_t_stride, q_t_stride)
