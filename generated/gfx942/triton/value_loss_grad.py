"""value_loss_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 0a2f124b00ace1ff
schedule: tiles T=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def value_loss_grad(values_ptr, returns_ptr, old_values_ptr, active_ptr, count_ptr, d_loss_ptr, d_values_ptr, T, clip):
    # A program owns 2048 of T (rows).
    t = tl.program_id(0) * 2048 + tl.arange(0, 2048)
    t_inside = t < T
    count = tl.load(count_ptr)  # value.py:64
    d_loss = tl.load(d_loss_ptr)  # value.py:64
    values = tl.load(values_ptr + t, mask=t_inside, other=0.0)  # value.py:15
    returns = tl.load(returns_ptr + t, mask=t_inside, other=0.0)  # value.py:15
    old_values = tl.load(old_values_ptr + t, mask=t_inside, other=0.0)  # value.py:15
    active = tl.load(active_ptr + t, mask=t_inside, other=0)  # value.py:68
    larger = tl.maximum(count, 1)  # value.py:64
    as_f32 = larger.to(tl.float32)  # value.py:64
    quotient = tl.div_rn(d_loss, as_f32)  # value.py:64
    difference = values - returns  # value.py:15
    difference_2 = old_values - clip  # value.py:15
    total = old_values + clip  # value.py:15
    larger_2 = tl.maximum(values, difference_2)  # value.py:15
    smaller = tl.minimum(larger_2, total)  # value.py:15
    difference_3 = smaller - returns  # value.py:15
    product = difference_3 * difference_3  # value.py:20
    product_2 = difference * difference  # value.py:20
    below = product_2 < product  # value.py:20
    chosen = tl.where(below, 0.0, difference)  # value.py:67
    product_3 = quotient * chosen  # value.py:68
    chosen_2 = tl.where(active, product_3, 0.0)  # value.py:68
    tl.store(d_values_ptr + t, chosen_2, mask=t_inside)  # value.py:68


def call(kernels, values, returns, old_values, active, count, d_loss, d_values, clip, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 2047) // 2048)
    if programs > 0:
        kernels.value_loss_grad((programs,), values, returns, old_values, active, count, d_loss, d_values, T, clip)
