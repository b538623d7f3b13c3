"""ratio_kl on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 6181c2e178c7d5e5
schedule: tiles T=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def portable_exp(x):
    # e**x, with gradual underflow.
    f0 = tl.minimum(x, 89.0)
    f1 = tl.maximum(f0, -104.0)
    f2 = tl.fma(f1, 1.442695, 12582912.0)
    f3 = f2 - 12582912.0
    f4 = tl.fma(f3, -0.6931472, f1)
    f5 = tl.fma(f3, 1.9046542e-09, f4)
    f6 = tl.fma(0.001381949, f5, 0.0083686905)
    f7 = tl.fma(f6, f5, 0.04166828)
    f8 = tl.fma(f7, f5, 0.16666521)
    f9 = tl.fma(f8, f5, 0.49999994)
    f10 = tl.fma(f9, f5, 1.0)
    f11 = tl.fma(f10, f5, 1.0)
    i12 = f2.to(tl.int32, bitcast=True)
    i13 = i12 - 1262485504
    i14 = i13 >> 1
    i15 = i14 << 23
    i16 = i15 + 1065353216
    f17 = i16.to(tl.float32, bitcast=True)
    i18 = i13 - i14
    i19 = i18 << 23
    i20 = i19 + 1065353216
    f21 = i20.to(tl.float32, bitcast=True)
    f22 = f11 * f17
    f23 = f22 * f21
    f24 = tl.where((x == x), f23, x)
    return f24


@triton.jit
def portable_k3(x):
    # e**d - 1 - d, accurate everywhere: the k3 estimate of a KL divergence; never negative.
    f0 = tl.minimum(x, 89.0)
    f1 = tl.maximum(f0, -40.0)
    f2 = tl.fma(f1, 1.442695, 12582912.0)
    i3 = x.to(tl.int32, bitcast=True)
    i4 = i3 & 2147483647
    f5 = i4.to(tl.float32, bitcast=True)
    f6 = tl.where((f5 < 0.75), 12582912.0, f2)
    f7 = f6 - 12582912.0
    f8 = tl.fma(f7, -0.6931472, f1)
    f9 = tl.fma(f7, 1.9046542e-09, f8)
    f10 = f9 * f9
    f11 = tl.fma(2.6118526e-06, f9, 2.5040988e-05)
    f12 = tl.fma(f11, f9, 0.00019858872)
    f13 = tl.fma(f12, f9, 0.0013888375)
    f14 = tl.fma(f13, f9, 0.008333275)
    f15 = tl.fma(f14, f9, 0.041666668)
    f16 = tl.fma(f15, f9, 0.16666667)
    f17 = f9 * f16
    f18 = f10 * 0.5
    f19 = tl.fma(f10, f17, f18)
    i20 = f6.to(tl.int32, bitcast=True)
    i21 = i20 << 23
    i22 = i21 + 1056964608
    f23 = i22.to(tl.float32, bitcast=True)
    f24 = f23 - 0.5
    f25 = tl.fma(f0, -0.5, f24)
    f26 = tl.fma(f23, f9, f25)
    f27 = tl.fma(f23, f19, f26)
    f28 = f27 + f27
    f29 = tl.where((f5 < 0.75), f19, f28)
    f30 = tl.where((x == x), f29, x)
    return f30


@triton.jit
def ratio_kl(logp_ptr, old_logp_ptr, ref_logp_ptr, ratio_ptr, kl_ptr, T):
    # A program owns 2048 of T (rows).
    t = tl.program_id(0) * 2048 + tl.arange(0, 2048)
    t_inside = t < T
    logp = tl.load(logp_ptr + t, mask=t_inside, other=0.0)  # loss.py:50
    old_logp = tl.load(old_logp_ptr + t, mask=t_inside, other=0.0)  # loss.py:50
    ref_logp = tl.load(ref_logp_ptr + t, mask=t_inside, other=0.0)  # loss.py:51
    difference = logp - old_logp  # loss.py:50
    exp = portable_exp(difference)  # loss.py:50
    difference_2 = ref_logp - logp  # loss.py:51
    k3 = portable_k3(difference_2)  # loss.py:23
    tl.store(ratio_ptr + t, exp, mask=t_inside)  # loss.py:54
    tl.store(kl_ptr + t, k3, mask=t_inside)  # loss.py:54


def call(kernels, logp, old_logp, ref_logp, ratio, kl, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 2047) // 2048)
    if programs > 0:
        kernels.ratio_kl((programs,), logp, old_logp, ref_logp, ratio, kl, T)
