"""entropy_bonus_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: fdc772efcd553533
schedule: tiles T=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def entropy_bonus_grad(active_ptr, count_ptr, d_loss_ptr, d_entropy_ptr, T, coef):
    # A program owns 2048 of T (rows).
    t = tl.program_id(0) * 2048 + tl.arange(0, 2048)
    t_inside = t < T
    count = tl.load(count_ptr)  # value.py:93
    d_loss = tl.load(d_loss_ptr)  # value.py:93
    active = tl.load(active_ptr + t, mask=t_inside, other=0)  # value.py:94
    larger = tl.maximum(count, 1)  # value.py:93
    as_f32 = larger.to(tl.float32)  # value.py:93
    quotient = tl.div_rn(d_loss, as_f32)  # value.py:93
    product = quotient * coef  # value.py:94
    negative = product * -1.0  # value.py:94
    chosen = tl.where(active, negative, 0.0)  # value.py:94
    tl.store(d_entropy_ptr + t, chosen, mask=t_inside)  # value.py:94


def call(kernels, active, count, d_loss, d_entropy, coef, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 2047) // 2048)
    if programs > 0:
        kernels.entropy_bonus_grad((programs,), active, count, d_loss, d_entropy, T, coef)
