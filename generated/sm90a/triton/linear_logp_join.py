"""linear_logp_join on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 58ccf6419e6acdae
schedule: tiles T=128, 2 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def merge_softmax_sum(max_a, sum_a, max_b, sum_b):
    # The state of two disjoint sets: softmax_sum().
    m = tl.maximum(max_a, max_b)
    equal = m == float("-inf")
    chosen = tl.where(equal, 0.0, m)
    difference = max_a - chosen
    product = difference * 1.442695
    exp2 = tl.exp2(product)
    equal_2 = m == float("-inf")
    chosen_2 = tl.where(equal_2, 0.0, m)
    difference_2 = max_b - chosen_2
    product_2 = difference_2 * 1.442695
    exp2_2 = tl.exp2(product_2)
    product_3 = sum_a * exp2
    product_4 = sum_b * exp2_2
    total = product_3 + product_4
    return m, total


@triton.jit
def softmax_sum_over_r(max, sum):
    # The states merged over R, pairwise: two terms at a time, so that no layout chooses.
    max, sum = tl.reduce((tl.reshape(max, (128, 4, 2)), tl.reshape(sum, (128, 4, 2))), 2, merge_softmax_sum)
    max, sum = tl.reduce((tl.reshape(max, (128, 2, 2)), tl.reshape(sum, (128, 2, 2))), 2, merge_softmax_sum)
    max, sum = tl.reduce((tl.reshape(max, (128, 2)), tl.reshape(sum, (128, 2))), 1, merge_softmax_sum)
    return tl.reshape(max, (128, 1)), tl.reshape(sum, (128, 1))


@triton.jit
def sum_over_r(x):
    # The sum over R, pairwise: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (128, 4, 2)), 2)
    x = tl.sum(tl.reshape(x, (128, 2, 2)), 2)
    x = tl.sum(tl.reshape(x, (128, 2)), 1)
    return tl.reshape(x, (128, 1))


@triton.jit
def portable_log(x):
    # Natural logarithm; log(+-0) = -inf, log(x < 0) = NaN.
    f0 = x * 8388608.0
    f1 = tl.where((x < 1.1754944e-38), f0, x)
    i2 = f1.to(tl.int32, bitcast=True)
    i3 = i2 - 1061158912
    i4 = i3 >> 23
    i5 = i4 << 23
    i6 = i2 - i5
    f7 = i6.to(tl.float32, bitcast=True)
    f8 = f7 - 1.0
    f9 = i4.to(tl.float32)
    f10 = tl.where((x < 1.1754944e-38), -23.0, 0.0)
    f11 = f9 + f10
    f12 = tl.fma(-0.045135185, f8, 0.10471279)
    f13 = tl.fma(f12, f8, -0.13164203)
    f14 = tl.fma(f13, f8, 0.14478002)
    f15 = tl.fma(f14, f8, -0.16646925)
    f16 = tl.fma(f15, f8, 0.19990832)
    f17 = tl.fma(f16, f8, -0.25000107)
    f18 = tl.fma(f17, f8, 0.3333345)
    f19 = tl.fma(f18, f8, -0.5)
    f20 = f8 * f8
    f21 = tl.fma(f19, f20, f8)
    f22 = tl.fma(f11, 0.6931472, f21)
    f23 = tl.where((x < float("inf")), f22, x)
    f24 = tl.where((x == 0.0), float("-inf"), f23)
    f25 = tl.where((x < 0.0), float("nan"), f24)
    return f25


@triton.jit
def linear_logp_join(ids_ptr, m_ptr, s_ptr, hits_ptr, logp_ptr, lse_ptr, T, m_r_stride, s_r_stride, hits_r_stride, errors_ptr, ignore_index, vocabulary):
    # A program owns 128 of T (rows).
    t = tl.program_id(0) * 128 + tl.arange(0, 128)[:, None]
    t_inside = t < T
    ids = tl.load(ids_ptr + t, mask=t_inside, other=0)  # linear_logp.py:224
    r = tl.arange(0, 8)[None, :]  # linear_logp.py:226
    m = tl.load(m_ptr + r.to(tl.int64) * m_r_stride + t, mask=t_inside, other=0.0)  # linear_logp.py:226
    s = tl.load(s_ptr + r.to(tl.int64) * s_r_stride + t, mask=t_inside, other=0.0)  # linear_logp.py:226
    hits = tl.load(hits_ptr + r.to(tl.int64) * hits_r_stride + t, mask=t_inside, other=0.0)  # linear_logp.py:228
    differs = ids != ignore_index  # logp.py:197
    m_2, s_2 = softmax_sum_over_r(m, s)  # linear_logp.py:226
    sum_r = sum_over_r(hits)  # linear_logp.py:228
    at_most = ids >= 0  # linear_logp.py:229
    below = ids < vocabulary  # linear_logp.py:229
    both = at_most & below  # linear_logp.py:229
    log = portable_log(s_2)  # linear_logp.py:86
    total = m_2 + log  # linear_logp.py:86
    chosen = tl.where(both, sum_r, float("nan"))  # linear_logp.py:87
    difference = chosen - total  # linear_logp.py:87
    is_nan = difference != difference  # linear_logp.py:88
    both_2 = differs & is_nan  # linear_logp.py:88
    bad_row = tl.where(both_2 & t_inside, t + 1, 0)  # linear_logp.py:88
    bad_row_2 = tl.max(tl.reshape(bad_row, (128,)), 0)  # linear_logp.py:88
    tl.atomic_max(errors_ptr, 1, mask=bad_row_2 > 0, sem="relaxed")  # linear_logp.py:88
    tl.atomic_max(errors_ptr + 1, bad_row_2, mask=bad_row_2 > 0, sem="relaxed")  # linear_logp.py:88
    chosen_2 = tl.where(differs, difference, 0.0)  # linear_logp.py:90
    chosen_3 = tl.where(differs, total, 0.0)  # linear_logp.py:91
    tl.store(logp_ptr + t, chosen_2, mask=t_inside)  # linear_logp.py:89
    tl.store(lse_ptr + t, chosen_3, mask=t_inside)  # linear_logp.py:89


def call(kernels, ids, m, s, hits, logp, lse, ignore_index, vocabulary, T, m_r_stride, s_r_stride, hits_r_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 127) // 128)
    if programs > 0:
        kernels.linear_logp_join((programs,), ids, m, s, hits, logp, lse, T, m_r_stride, s_r_stride, hits_r_stride, errors, ignore_index, vocabulary)
