"""fp8_rows on sm_90a, written by rlk 0.1.0: do not edit.

numerics: aa41438425f34f50
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
def portable_to_e4m3(x):
    # The byte of the nearest e4m3, ties to even; beyond 448 and at infinity +-448, of every NaN 0x7f.
    i0 = x.to(tl.int32, bitcast=True)
    i1 = i0 & 2147483647
    f2 = i1.to(tl.float32, bitcast=True)
    f3 = tl.minimum(f2, 448.0)
    i4 = f3.to(tl.int32, bitcast=True)
    i5 = i4 & 2139095040
    f6 = i5.to(tl.float32, bitcast=True)
    f7 = tl.maximum(f6, 0.015625)
    f8 = f7 * 1572864.0
    f9 = f3 + f8
    f10 = f9 - f8
    f11 = f10 * 7.523164e-37
    f12 = tl.where((x == x), f11, 3.6111186e-34)
    i13 = f12.to(tl.int32, bitcast=True)
    i14 = i13 >> 20
    f15 = tl.where((x == x), x, 0.0)
    i16 = f15.to(tl.int32, bitcast=True)
    i17 = i16 >> 24
    i18 = i17 & 128
    i19 = i14 | i18
    return i19


@triton.jit
def fp8_rows(x_ptr, q_ptr, scale_ptr, x_t_stride, q_t_stride):
    # A program owns 1 of T (rows).
    t = tl.program_id(0)
    n = tl.arange(0, 4096)  # fp8_rows.py:22
    x = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + n)
    xf = x.to(tl.float32)
    abs_xf = tl.abs(xf)  # fp8_rows.py:23
    max_n = max_over_n(abs_xf)
    scale = tl.div_rn(max_n, 448.0)
    scale_gt_0 = scale > 0.0  # fp8_rows.py:24
    scale_masked = tl.where(scale_gt_0, scale, 1.0)
    q_quotient = tl.div_rn(xf, scale_masked)
    q_quotient_e4m3 = portable_to_e4m3(q_quotient).to(tl.uint8)
    tl.store(q_ptr + t.to(tl.int64) * q_t_stride + n, q_quotient_e4m3)
    tl.store(scale_ptr + t, scale)


def call(kernels, x, q, scale, T, x_t_stride, q_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.fp8_rows((programs,), x, q, scale, x_t_stride, q_t_stride)
