"""layer_norm on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 44a71b7aa4ccf550
schedule: tiles 1, 4 warps, 1 stages, unroll 1, late loads
inputs:
  x: bf16 [T, N=4096]
  weight: bf16 [N=4096]
outputs:
  y: bf16 [T, N=4096]
  mean: f32 [T]
  rstd: f32 [T]
scalars:
  eps: f32
"""

import triton
import triton.language as tl


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
def portable_rsqrt(x):
    # 1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN.
    f0 = x * 16777216.0
    f1 = tl.where((x < 1.1754944e-38), f0, x)
    i2 = f1.to(tl.int32, bitcast=True)
    i3 = i2 >> 1
    i4 = 1595932665 - i3
    f5 = i4.to(tl.float32, bitcast=True)
    f6 = f5 * -0.70395225
    f7 = f1 * f5
    f8 = tl.fma(f7, f5, -2.3892446)
    f9 = f6 * f8
    f10 = f1 * f9
    f11 = tl.fma(f10, f9, -1.0)
    f12 = f9 * f11
    f13 = tl.fma(f11, 0.375, -0.5)
    f14 = tl.fma(f12, f13, f9)
    f15 = tl.where((x < 1.1754944e-38), 4096.0, 1.0)
    f16 = f14 * f15
    f17 = tl.where((x == float("inf")), 0.0, x)
    f18 = tl.where((x < float("inf")), f16, f17)
    i19 = x.to(tl.int32, bitcast=True)
    i20 = i19 & -2147483648
    i21 = i20 | 2139095040
    f22 = i21.to(tl.float32, bitcast=True)
    f23 = tl.where((x == 0.0), f22, f18)
    f24 = tl.where((x < 0.0), float("nan"), f23)
    return f24


@triton.jit
def layer_norm(x_ptr, weight_ptr, y_ptr, mean_ptr, rstd_ptr, x_t_stride, y_t_stride, eps):
    # A program owns 1 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0)
    n = tl.arange(0, 4096)  # layer_norm.py:24
    x = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + n)
    z = x.to(tl.float32)
    sum_n = sum_over_n(z)  # layer_norm.py:25
    mean = tl.div_rn(sum_n, 4096.0)
    centred = z - mean  # layer_norm.py:26
    centred_times_centred = centred * centred  # layer_norm.py:27
    sum_n_2 = sum_over_n(centred_times_centred)
    add_over_n_over_n = tl.div_rn(sum_n_2, 4096.0)
    rstd_sum = add_over_n_over_n + eps
    rstd = portable_rsqrt(rstd_sum)
    centred_times_rstd = centred * rstd  # layer_norm.py:28
    weight = tl.load(weight_ptr + n)
    weight_f32 = weight.to(tl.float32)
    y = centred_times_rstd * weight_f32
    y_bf16 = y.to(tl.bfloat16)  # layer_norm.py:31
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n, y_bf16)
    tl.store(mean_ptr + t, mean)
    tl.store(rstd_ptr + t, rstd)


def call(kernels, x, weight, y, mean, rstd, eps, T, x_t_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.layer_norm((programs,), x, weight, y, mean, rstd, x_t_stride, y_t_stride, eps)
