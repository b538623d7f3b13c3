"""preference_loss_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 6964ac7caf1f1f4f
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
def preference_loss_grad(chosen_ptr, rejected_ptr, ref_chosen_ptr, ref_rejected_ptr, count_ptr, d_loss_ptr, d_chosen_ptr, d_rejected_ptr, P, beta):
    # A program owns 2048 of P (rows).
    p = tl.program_id(0) * 2048 + tl.arange(0, 2048)
    p_inside = p < P
    count = tl.load(count_ptr)  # preference.py:181
    d_loss = tl.load(d_loss_ptr)  # preference.py:181
    chosen = tl.load(chosen_ptr + p, mask=p_inside, other=0.0)  # preference.py:128
    ref_chosen = tl.load(ref_chosen_ptr + p, mask=p_inside, other=0.0)  # preference.py:128
    rejected = tl.load(rejected_ptr + p, mask=p_inside, other=0.0)  # preference.py:128
    ref_rejected = tl.load(ref_rejected_ptr + p, mask=p_inside, other=0.0)  # preference.py:128
    difference = chosen - ref_chosen  # preference.py:128
    difference_2 = rejected - ref_rejected  # preference.py:128
    difference_3 = difference - difference_2  # preference.py:54
    product = beta * difference_3  # preference.py:54
    negative = product * -1.0  # preference.py:63
    sigmoid = portable_sigmoid(negative)  # preference.py:64
    negative_2 = sigmoid * -1.0  # preference.py:67
    product_2 = beta * negative_2  # preference.py:58
    negative_3 = product_2 * -1.0  # preference.py:58
    as_f32 = count.to(tl.float32)  # preference.py:181
    quotient = tl.div_rn(d_loss, as_f32)  # preference.py:181
    product_3 = quotient * product_2  # preference.py:188
    product_4 = quotient * negative_3  # preference.py:188
    tl.store(d_chosen_ptr + p, product_3, mask=p_inside)  # preference.py:186
    tl.store(d_rejected_ptr + p, product_4, mask=p_inside)  # preference.py:186


def call(kernels, chosen, rejected, ref_chosen, ref_rejected, count, d_loss, d_chosen, d_rejected, beta, P):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((P + 2047) // 2048)
    if programs > 0:
        kernels.preference_loss_grad((programs,), chosen, rejected, ref_chosen, ref_rejected, count, d_loss, d_chosen, d_rejected, P, beta)
