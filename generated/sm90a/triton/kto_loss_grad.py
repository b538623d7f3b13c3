"""kto_loss_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 1d4b93f6750e0be7
schedule: tiles P=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


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
def kto_loss_grad(logp_ptr, ref_logp_ptr, desirable_ptr, divergence_ptr, count_ptr, d_loss_ptr, d_logp_ptr, P, beta, desirable_weight, undesirable_weight):
    # A program owns 2048 of P (rows).
    p = tl.program_id(0) * 2048 + tl.arange(0, 2048)
    p_inside = p < P
    divergence = tl.load(divergence_ptr)  # preference.py:236
    count = tl.load(count_ptr)  # preference.py:249
    d_loss = tl.load(d_loss_ptr)  # preference.py:249
    desirable = tl.load(desirable_ptr + p, mask=p_inside, other=0)  # preference.py:241
    logp = tl.load(logp_ptr + p, mask=p_inside, other=0.0)  # preference.py:236
    ref_logp = tl.load(ref_logp_ptr + p, mask=p_inside, other=0.0)  # preference.py:236
    chosen = tl.where(desirable, 1.0, -1.0)  # preference.py:241
    chosen_2 = tl.where(desirable, desirable_weight, undesirable_weight)  # preference.py:241
    difference = logp - ref_logp  # preference.py:236
    difference_2 = difference - divergence  # preference.py:236
    product = beta * difference_2  # preference.py:248
    as_f32 = count.to(tl.float32)  # preference.py:249
    quotient = tl.div_rn(d_loss, as_f32)  # preference.py:249
    product_2 = chosen_2 * beta  # preference.py:250
    product_3 = product_2 * chosen  # preference.py:250
    sigmoid = portable_sigmoid(product)  # preference.py:25
    negative = product * -1.0  # preference.py:25
    sigmoid_2 = portable_sigmoid(negative)  # preference.py:25
    product_4 = sigmoid * sigmoid_2  # preference.py:25
    product_5 = product_3 * product_4  # preference.py:250
    product_6 = quotient * product_5  # preference.py:250
    negative_2 = product_6 * -1.0  # preference.py:250
    tl.store(d_logp_ptr + p, negative_2, mask=p_inside)  # preference.py:250


def call(kernels, logp, ref_logp, desirable, divergence, count, d_loss, d_logp, beta, desirable_weight, undesirable_weight, P):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((P + 2047) // 2048)
    if programs > 0:
        kernels.kto_loss_grad((programs,), logp, ref_logp, desirable, divergence, count, d_loss, d_logp, P, beta, desirable_weight, undesirable_weight)
