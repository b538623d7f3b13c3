"""logp on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c3ffa29cee66a130
schedule: tiles 1, 2 warps, 1 stages, unroll 1 placed V.lane[5:3] V.piece[2:0] V.lane[7:6] V.lane[2:0]
"""

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def max_over_v_lane(x):
    # The max over V.lane: no order changes it.
    x = tl.max(x, 3)
    x = tl.max(x, 0)
    x = tl.max(x, 1)
    return tl.reshape(x, (1, 8, 1, 1))


@triton.jit
def sum_over_v_lane(x):
    # The sum over V.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 2, 8, 8, 8)), 0)
    x = tl.sum(tl.reshape(x, (2, 8, 8, 8)), 0)
    x = tl.sum(tl.reshape(x, (8, 2, 4, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (8, 2)), 1)
    return tl.reshape(x, (1, 8, 1, 1))


@triton.jit
def merge_softmax_sum(max_a, sum_a, centred_a, max_b, sum_b, centred_b):
    # The state of two disjoint sets: centred softmax_sum().
    m = tl.maximum(max_a, max_b)
    equal = m == float("-inf")
    chosen = tl.where(equal, 0.0, m)
    difference = max_a - chosen
    product = difference * 1.442695
    exp2 = tl.exp2(product)
    larger = tl.maximum(difference, -3.4028234663852886e+38)
    equal_2 = m == float("-inf")
    chosen_2 = tl.where(equal_2, 0.0, m)
    difference_2 = max_b - chosen_2
    product_2 = difference_2 * 1.442695
    exp2_2 = tl.exp2(product_2)
    larger_2 = tl.maximum(difference_2, -3.4028234663852886e+38)
    product_3 = sum_a * exp2
    product_4 = sum_b * exp2_2
    total = product_3 + product_4
    product_5 = centred_a * exp2
    product_6 = centred_b * exp2_2
    fused = tl.fma(product_3, larger, product_5)
    fused_2 = tl.fma(product_4, larger_2, product_6)
    total_2 = fused + fused_2
    return m, total, total_2


@triton.jit
def softmax_sum_over_v_piece(max, sum, centred):
    # The states merged over V.piece, pairwise: two terms at a time, so that no layout chooses.
    max, sum, centred = tl.reduce(
        (tl.reshape(max, (4, 2)), tl.reshape(sum, (4, 2)), tl.reshape(centred, (4, 2))), 1, merge_softmax_sum
    )
    max, sum, centred = tl.reduce(
        (tl.reshape(max, (2, 2)), tl.reshape(sum, (2, 2)), tl.reshape(centred, (2, 2))), 1, merge_softmax_sum
    )
    max, sum, centred = tl.reduce(
        (tl.reshape(max, (2,)), tl.reshape(sum, (2,)), tl.reshape(centred, (2,))), 0, merge_softmax_sum
    )
    return max, sum, centred


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
def logp(
    logits_ptr, ids_ptr, logp_ptr, lse_ptr, entropy_ptr, logits_t_stride, errors_ptr, inv_temperature, ignore_index
):
    # A program owns 1 of T (rows).
    t = tl.program_id(0)
    ids = tl.load(ids_ptr + t)  # logp.py:134
    at_most = ids >= 0  # logp.py:146
    below = ids < 128256
    both = at_most & below
    as_bf16 = tl.full((), float("nan"), tl.float32).to(tl.bfloat16)
    logits = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + ids, mask=both, other=as_bf16)
    differs = ids != ignore_index  # logp.py:200
    v_piece = tl.arange(0, 8)[None, :, None, None]  # logp.py:138
    product = v_piece * 16032
    total = product + 16032
    v_lane = (
        tl.arange(0, 4)[:, None, None, None] * 64 + tl.arange(0, 8)[None, None, :, None] * 8
        + tl.arange(0, 8)[None, None, None, :]
    )
    steps = tl.where(differs, tl.full((), 63, tl.int32), 0)
    full_steps = tl.where(differs, tl.full((), 62, tl.int32), 0)
    m = tl.full((1, 8, 1, 1), float("-inf"), tl.float32)
    s = tl.full((1, 8, 1, 1), 0.0, tl.float32)
    centred = tl.full((1, 8, 1, 1), negative_zero(), tl.float32)
    for v_step in tl.range(0, full_steps):
        product_2 = v_step * 256
        total_2 = product + product_2
        v = total_2 + v_lane
        logits_2 = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v)  # logp.py:139
        as_f32 = logits_2.to(tl.float32)  # logp.py:48
        product_3 = as_f32 * inv_temperature  # logp.py:57
        m_chunk = max_over_v_lane(product_3)  # logp.py:138
        equal = m_chunk == float("-inf")
        chosen = tl.where(equal, 0.0, m_chunk)
        difference = product_3 - chosen
        product_4 = difference * 1.442695
        e = tl.exp2(product_4)
        larger = tl.maximum(difference, -3.4028234663852886e+38)
        product_5 = e * larger
        s_chunk = sum_over_v_lane(e)
        centred_chunk = sum_over_v_lane(product_5)
        m_2 = tl.maximum(m, m_chunk)
        equal_2 = m_2 == float("-inf")
        chosen_2 = tl.where(equal_2, 0.0, m_2)
        difference_2 = m - chosen_2
        product_6 = difference_2 * 1.442695
        exp2 = tl.exp2(product_6)
        larger_2 = tl.maximum(difference_2, -3.4028234663852886e+38)
        difference_3 = m_chunk - chosen_2
        product_7 = difference_3 * 1.442695
        exp2_2 = tl.exp2(product_7)
        larger_3 = tl.maximum(difference_3, -3.4028234663852886e+38)
        product_8 = s * exp2
        product_9 = s_chunk * exp2_2
        total_3 = product_8 + product_9
        product_10 = centred * exp2
        product_11 = centred_chunk * exp2_2
        fused = tl.fma(product_8, larger_2, product_10)
        fused_2 = tl.fma(product_9, larger_3, product_11)
        total_4 = fused + fused_2
        m, s, centred = m_2, total_3, total_4
    for v_step in tl.range(full_steps, steps):
        product_2 = v_step * 256
        total_2 = product + product_2
        v = total_2 + v_lane
        exists = v < total
        exists_2 = exists & differs
        logits_2 = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v, mask=exists_2, other=0.0)  # logp.py:139
        as_f32 = logits_2.to(tl.float32)  # logp.py:48
        product_3 = as_f32 * inv_temperature  # logp.py:57
        chosen = tl.where(exists_2, product_3, float("-inf"))  # logp.py:138
        m_chunk = max_over_v_lane(chosen)
        equal = m_chunk == float("-inf")
        chosen_2 = tl.where(equal, 0.0, m_chunk)
        difference = chosen - chosen_2
        product_4 = difference * 1.442695
        e = tl.exp2(product_4)
        larger = tl.maximum(difference, -3.4028234663852886e+38)
        product_5 = e * larger
        s_chunk = sum_over_v_lane(e)
        centred_chunk = sum_over_v_lane(product_5)
        m_2 = tl.maximum(m, m_chunk)
        equal_2 = m_2 == float("-inf")
        chosen_3 = tl.where(equal_2, 0.0, m_2)
        difference_2 = m - chosen_3
        product_6 = difference_2 * 1.442695
        exp2 = tl.exp2(product_6)
        larger_2 = tl.maximum(difference_2, -3.4028234663852886e+38)
        difference_3 = m_chunk - chosen_3
        product_7 = difference_3 * 1.442695
        exp2_2 = tl.exp2(product_7)
        larger_3 = tl.maximum(difference_3, -3.4028234663852886e+38)
        product_8 = s * exp2
        product_9 = s_chunk * exp2_2
        total_3 = product_8 + product_9
        product_10 = centred * exp2
        product_11 = centred_chunk * exp2_2
        fused = tl.fma(product_8, larger_2, product_10)
        fused_2 = tl.fma(product_9, larger_3, product_11)
        total_4 = fused + fused_2
        m, s, centred = m_2, total_3, total_4
    m_2, s_2, centred_2 = softmax_sum_over_v_piece(m, s, centred)
    as_f32 = logits.to(tl.float32)  # logp.py:48
    product_2 = as_f32 * inv_temperature  # logp.py:57
    log = portable_log(s_2)  # logp.py:149
    total_2 = m_2 + log
    difference = product_2 - total_2  # logp.py:150
    is_nan = difference != difference  # logp.py:151
    both_2 = differs & is_nan
    bad_row = tl.where(both_2, t + 1, 0)
    tl.atomic_max(errors_ptr, 1, mask=bad_row > 0, sem="relaxed")
    tl.atomic_max(errors_ptr + 1, bad_row, mask=bad_row > 0, sem="relaxed")
    chosen = tl.where(differs, difference, 0.0)  # logp.py:153
    chosen_2 = tl.where(differs, total_2, 0.0)  # logp.py:154
    quotient = tl.div_rn(centred_2, s_2)  # logp.py:155
    difference_2 = log - quotient
    chosen_3 = tl.where(differs, difference_2, 0.0)
    tl.store(logp_ptr + t, chosen)  # logp.py:152
    tl.store(lse_ptr + t, chosen_2)
    tl.store(entropy_ptr + t, chosen_3)


def call(kernels, logits, ids, logp, lse, entropy, inv_temperature, ignore_index, T, logits_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.logp(
            (programs,), logits, ids, logp, lse, entropy, logits_t_stride, errors, inv_temperature, ignore_index
        )
