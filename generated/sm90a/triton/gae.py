"""gae on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 7687ee342bde8999
schedule: tiles 1, 4 warps, 3 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def gae(values_ptr, rewards_ptr, active_ptr, bounds_ptr, bootstrap_ptr, advantages_ptr, returns_ptr, bounds_b_stride, T, B, errors_ptr, gamma, decay):
    # A program owns 1 of B (rows).
    b = tl.program_id(0)
    bounds = tl.load(bounds_ptr + b.to(tl.int64) * bounds_b_stride)  # advantage.py:106
    bounds_2 = tl.load(bounds_ptr + b.to(tl.int64) * bounds_b_stride + 1)  # advantage.py:106
    bootstrap = tl.load(bootstrap_ptr + b)  # advantage.py:166
    difference = B - 1  # advantage.py:105
    as_i64 = T.to(tl.int64)  # advantage.py:105
    equal = b == 0  # advantage.py:107
    chosen = tl.where(equal, 0, bounds)  # advantage.py:107
    larger = tl.maximum(chosen, 0)  # advantage.py:107
    smaller = tl.minimum(larger, as_i64)  # advantage.py:107
    equal_2 = b == difference  # advantage.py:108
    chosen_2 = tl.where(equal_2, as_i64, bounds_2)  # advantage.py:108
    smaller_2 = tl.minimum(chosen_2, as_i64)  # advantage.py:108
    larger_2 = tl.maximum(smaller, smaller_2)  # advantage.py:108
    differs = smaller != bounds  # advantage.py:109
    differs_2 = larger_2 != bounds_2  # advantage.py:109
    either = differs | differs_2  # advantage.py:109
    bad_row = tl.where(either, b + 1, 0)  # advantage.py:110
    tl.atomic_max(errors_ptr, 1, mask=bad_row > 0, sem="relaxed")  # advantage.py:110
    tl.atomic_max(errors_ptr + 1, bad_row, mask=bad_row > 0, sem="relaxed")  # advantage.py:110
    as_i32 = smaller.to(tl.int32)  # advantage.py:168
    as_i32_2 = larger_2.to(tl.int32)  # advantage.py:168
    difference_2 = as_i32_2 - as_i32  # advantage.py:168
    difference_3 = as_i32_2 - 1  # advantage.py:168
    r_state = bootstrap  # advantage.py:176
    r_state_2 = 0.0  # advantage.py:176
    for r_step in tl.range(0, difference_2, num_stages=3):  # advantage.py:176
        r = difference_3 - r_step  # advantage.py:168
        at_most = r >= 0  # advantage.py:169
        below = r < T  # advantage.py:169
        both = at_most & below  # advantage.py:169
        active = tl.load(active_ptr + r, mask=both, other=0)  # advantage.py:169
        values = tl.load(values_ptr + r, mask=both, other=0.0)  # advantage.py:169
        rewards = tl.load(rewards_ptr + r, mask=both, other=0.0)  # advantage.py:170
        product = gamma * r_state  # advantage.py:170
        total = rewards + product  # advantage.py:170
        difference_4 = total - values  # advantage.py:170
        product_2 = decay * r_state_2  # advantage.py:171
        total_2 = difference_4 + product_2  # advantage.py:171
        chosen_3 = tl.where(active, values, r_state)  # advantage.py:172
        chosen_4 = tl.where(active, total_2, r_state_2)  # advantage.py:173
        total_3 = total_2 + values  # advantage.py:174
        chosen_5 = tl.where(either, float("nan"), total_2)  # advantage.py:175
        chosen_6 = tl.where(active, chosen_5, 0.0)  # advantage.py:175
        tl.store(advantages_ptr + r, chosen_6)  # advantage.py:176
        chosen_7 = tl.where(either, float("nan"), total_3)  # advantage.py:175
        chosen_8 = tl.where(active, chosen_7, 0.0)  # advantage.py:175
        tl.store(returns_ptr + r, chosen_8)  # advantage.py:176
        r_state, r_state_2 = chosen_3, chosen_4  # advantage.py:176


def call(kernels, values, rewards, active, bounds, bootstrap, advantages, returns, gamma, decay, T, B, bounds_b_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.gae((programs,), values, rewards, active, bounds, bootstrap, advantages, returns, bounds_b_stride, T, B, errors, gamma, decay)
