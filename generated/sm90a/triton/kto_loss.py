"""kto_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 484f18ee07110354
schedule: tiles 1, 2 warps, 1 stages, unroll 1
schedule: tiles 1, 2 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_over_m_lane(x):
    # The sum over M.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 512)), 0)
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
def portable_sigmoid(x):
    # 1 / (1 + e**-x), accurate in both tails, with gradual underflow.
    i0 = x.to(tl.int32, bitcast=True)
    i1 = i0 | -2147483648
    f2 = i1.to(tl.float32, bitcast=True)
    f3 = tl.maximum(f2, -104.0)
    f4 = tl.fma(f3, 1.442695, 12582912.0)
    f5 = f4 - 12582912.0
    f6 = tl.fma(f5, -0.6931472, f3)
    f7 = tl.fma(f5, 1.9046542e-09, f6)
    f8 = tl.fma(0.001381949, f7, 0.0083686905)
    f9 = tl.fma(f8, f7, 0.04166828)
    f10 = tl.fma(f9, f7, 0.16666521)
    f11 = tl.fma(f10, f7, 0.49999994)
    f12 = tl.fma(f11, f7, 1.0)
    f13 = f12 * f7
    i14 = f4.to(tl.int32, bitcast=True)
    i15 = i14 - 1262485504
    i16 = i15 >> 1
    i17 = i16 << 23
    i18 = i17 + 1065353216
    f19 = i18.to(tl.float32, bitcast=True)
    i20 = i15 - i16
    i21 = i20 << 23
    i22 = i21 + 1065353216
    f23 = i22.to(tl.float32, bitcast=True)
    f24 = f13 + 1.0
    f25 = f24 * f19
    f26 = f25 * f23
    f27 = f26 + 1.0
    f28 = tl.div_rn(1.0, f27)
    f29 = f27 - 1.0
    f30 = f26 - f29
    f31 = tl.fma(f28, f27, -1.0)
    f32 = tl.fma(f28, f30, f31)
    f33 = f28 * f19
    f34 = tl.fma(f13, f32, f32)
    f35 = f13 - f34
    f36 = tl.fma(f33, f35, f33)
    f37 = f36 * f23
    f38 = tl.where((x < 0.0), f37, f28)
    f39 = tl.where((x == x), f38, x)
    return f39


@triton.jit
def sum_over_p_lane(x):
    # The sum over P.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 512)), 0)
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
def kto_loss_1(other_logp_ptr, other_ref_logp_ptr, mismatch_ptr, M):
    # A program owns everything (rows).
    total = M + 1023  # preference.py:227
    steps = total // 1024  # preference.py:227
    full_steps = M // 1024  # preference.py:227
    m_lane = tl.arange(0, 1024)  # preference.py:227
    s = negative_zero()  # preference.py:227
    for m_step in tl.range(0, full_steps):  # preference.py:227
        product = m_step * 1024  # preference.py:227
        m = product + m_lane  # preference.py:227
        other_logp = tl.load(other_logp_ptr + m)  # preference.py:228
        other_ref_logp = tl.load(other_ref_logp_ptr + m)  # preference.py:228
        difference = other_logp - other_ref_logp  # preference.py:228
        sum_m_lane = sum_over_m_lane(difference)  # preference.py:227
        s_2 = s + sum_m_lane  # preference.py:227
        s = s_2  # preference.py:227
    for m_step in tl.range(full_steps, steps):  # preference.py:227
        product = m_step * 1024  # preference.py:227
        m = product + m_lane  # preference.py:227
        exists = m < M  # preference.py:227
        other_logp = tl.load(other_logp_ptr + m, mask=exists, other=0.0)  # preference.py:228
        other_ref_logp = tl.load(other_ref_logp_ptr + m, mask=exists, other=0.0)  # preference.py:228
        difference = other_logp - other_ref_logp  # preference.py:228
        chosen = tl.where(exists, difference, negative_zero())  # preference.py:227
        sum_m_lane = sum_over_m_lane(chosen)  # preference.py:227
        s_2 = s + sum_m_lane  # preference.py:227
        s = s_2  # preference.py:227
    larger = tl.maximum(M, 1)  # preference.py:229
    as_f32 = larger.to(tl.float32)  # preference.py:229
    quotient = tl.div_rn(s, as_f32)  # preference.py:229
    below = quotient < 0.0  # preference.py:231
    total_2 = quotient + 0.0  # preference.py:231
    chosen = tl.where(below, 0.0, total_2)  # preference.py:231
    tl.store(mismatch_ptr, chosen)  # preference.py:213


@triton.jit
def kto_loss_2(logp_ptr, ref_logp_ptr, desirable_ptr, per_sample_ptr, loss_ptr, divergence_ptr, count_ptr, mismatch_ptr, P, beta, desirable_weight, undesirable_weight):
    # A program owns everything (rows).
    mismatch = tl.load(mismatch_ptr)  # preference.py:213
    total = P + 1023  # preference.py:215
    steps = total // 1024  # preference.py:215
    full_steps = P // 1024  # preference.py:215
    p_lane = tl.arange(0, 1024)  # preference.py:215
    s = negative_zero()  # preference.py:215
    for p_step in tl.range(0, full_steps):  # preference.py:215
        product = p_step * 1024  # preference.py:215
        p = product + p_lane  # preference.py:215
        desirable = tl.load(desirable_ptr + p)  # preference.py:216
        logp = tl.load(logp_ptr + p)  # preference.py:217
        ref_logp = tl.load(ref_logp_ptr + p)  # preference.py:217
        chosen = tl.where(desirable, 1.0, -1.0)  # preference.py:241
        chosen_2 = tl.where(desirable, desirable_weight, undesirable_weight)  # preference.py:241
        difference = logp - ref_logp  # preference.py:236
        difference_2 = difference - mismatch  # preference.py:236
        product_2 = chosen * difference_2  # preference.py:217
        product_3 = beta * product_2  # preference.py:217
        negative = product_3 * -1.0  # preference.py:217
        sigmoid = portable_sigmoid(negative)  # preference.py:217
        product_4 = chosen_2 * sigmoid  # preference.py:217
        tl.store(per_sample_ptr + p, product_4)  # preference.py:218
        sum_p_lane = sum_over_p_lane(product_4)  # preference.py:215
        s_2 = s + sum_p_lane  # preference.py:215
        s = s_2  # preference.py:215
    for p_step in tl.range(full_steps, steps):  # preference.py:215
        product = p_step * 1024  # preference.py:215
        p = product + p_lane  # preference.py:215
        exists = p < P  # preference.py:215
        desirable = tl.load(desirable_ptr + p, mask=exists, other=0)  # preference.py:216
        logp = tl.load(logp_ptr + p, mask=exists, other=0.0)  # preference.py:217
        ref_logp = tl.load(ref_logp_ptr + p, mask=exists, other=0.0)  # preference.py:217
        chosen = tl.where(desirable, 1.0, -1.0)  # preference.py:241
        chosen_2 = tl.where(desirable, desirable_weight, undesirable_weight)  # preference.py:241
        difference = logp - ref_logp  # preference.py:236
        difference_2 = difference - mismatch  # preference.py:236
        product_2 = chosen * difference_2  # preference.py:217
        product_3 = beta * product_2  # preference.py:217
        negative = product_3 * -1.0  # preference.py:217
        sigmoid = portable_sigmoid(negative)  # preference.py:217
        product_4 = chosen_2 * sigmoid  # preference.py:217
        tl.store(per_sample_ptr + p, product_4, mask=exists)  # preference.py:218
        chosen_3 = tl.where(exists, product_4, negative_zero())  # preference.py:215
        sum_p_lane = sum_over_p_lane(chosen_3)  # preference.py:215
        s_2 = s + sum_p_lane  # preference.py:215
        s = s_2  # preference.py:215
    larger = tl.maximum(P, 1)  # preference.py:220
    total_2 = s + 0.0  # preference.py:221
    as_f32 = larger.to(tl.float32)  # preference.py:221
    quotient = tl.div_rn(total_2, as_f32)  # preference.py:221
    tl.store(loss_ptr, quotient)  # preference.py:221
    tl.store(divergence_ptr, mismatch)  # preference.py:221
    tl.store(count_ptr, larger)  # preference.py:221


def call(kernels, other_logp, other_ref_logp, mismatch, logp, ref_logp, desirable, per_sample, loss, divergence, count, beta, desirable_weight, undesirable_weight, M, P):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 1
    if programs > 0:
        kernels.kto_loss_1((programs,), other_logp, other_ref_logp, mismatch, M)
    programs = 1
    if programs > 0:
        kernels.kto_loss_2((programs,), logp, ref_logp, desirable, per_sample, loss, divergence, count, mismatch, P, beta, desirable_weight, undesirable_weight)
