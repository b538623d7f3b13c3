"""fp8_rows on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 11c488227dfb727c
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
    t = tl.program_id(0)
    n = tl.arange(0, 4096)  # fp8_rows.py:24
    x = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + n)
    xf = x.to(tl.float32)
    abs_xf = tl.abs(xf)  # fp8_rows.py:25
    m = max_over_n(abs_xf)
    counts = m >= 1.5046328e-36  # fp8_rows.py:26
    m_over_448 = tl.div_rn(m, 448.0)  # fp8_rows.py:27
    scale = tl.where(counts, m_over_448, 0.0)
    _448_over_m = tl.div_rn(448.0, m)
    inverse = tl.where(counts, _448_over_m, 0.0)
    xf_times_inverse = xf * inverse  # fp8_rows.py:28
    xf_times_inverse_e4m3 = xf_times_inverse.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    tl.store(q_ptr + t.to(tl.int64) * q_t_stride + n, xf_times_inverse_e4m3)
    tl.store(scale_ptr + t, scale)


def call(kernels, x, q, scale, T, x_t_stride, q_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.fp8_rows((programs,), x, q, scale, x_t_stride, q_t_stride)
