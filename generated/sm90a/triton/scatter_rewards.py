"""scatter_rewards on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 28b83aa84a2af38e
schedule: tiles N=8, 2 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def max_over_w_lane(x):
    # The max over W.lane: no order changes it.
    x = tl.max(x, 1)
    return tl.reshape(x, (8, 1))


@triton.jit
def min_over_w_lane(x):
    # The min over W.lane: no order changes it.
    x = tl.min(x, 1)
    return tl.reshape(x, (8, 1))


@triton.jit
def sum_over_w_lane(x):
    # The add over W.lane: no order changes it.
    x = tl.sum(x, 1)
    return tl.reshape(x, (8, 1))


@triton.jit
def scatter_rewards(rewards_ptr, bounds_ptr, active_ptr, token_rewards_ptr, N, bounds_n_stride, T, errors_ptr):
    # A program owns 8 of N (rows).
    n = tl.program_id(0) * 8 + tl.arange(0, 8)[:, None]
    n_inside = n < N
    bounds = tl.load(bounds_ptr + n.to(tl.int64) * bounds_n_stride, mask=n_inside, other=0)  # advantage.py:106
    bounds_2 = tl.load(bounds_ptr + 1 + n.to(tl.int64) * bounds_n_stride, mask=n_inside, other=0)  # advantage.py:106
    difference = N - 1  # advantage.py:105
    as_i64 = T.to(tl.int64)  # advantage.py:105
    equal = n == 0  # advantage.py:107
    chosen = tl.where(equal, 0, bounds)  # advantage.py:107
    larger = tl.maximum(chosen, 0)  # advantage.py:107
    smaller = tl.minimum(larger, as_i64)  # advantage.py:107
    equal_2 = n == difference  # advantage.py:108
    chosen_2 = tl.where(equal_2, as_i64, bounds_2)  # advantage.py:108
    smaller_2 = tl.minimum(chosen_2, as_i64)  # advantage.py:108
    larger_2 = tl.maximum(smaller, smaller_2)  # advantage.py:108
    differs = smaller != bounds  # advantage.py:109
    differs_2 = larger_2 != bounds_2  # advantage.py:109
    either = differs | differs_2  # advantage.py:109
    bad_row = tl.where(either & n_inside, n + 1, 0)  # advantage.py:110
    bad_row_2 = tl.max(tl.reshape(bad_row, (8,)), 0)  # advantage.py:110
    tl.atomic_max(errors_ptr, 1, mask=bad_row_2 > 0, sem="relaxed")  # advantage.py:110
    tl.atomic_max(errors_ptr + 1, bad_row_2, mask=bad_row_2 > 0, sem="relaxed")  # advantage.py:110
    as_i32 = smaller.to(tl.int32)  # advantage.py:199
    as_i32_2 = larger_2.to(tl.int32)  # advantage.py:199
    difference_2 = as_i32_2 - as_i32  # advantage.py:199
    total = difference_2 + 127  # advantage.py:199
    steps = total // 128  # advantage.py:199
    full_steps = difference_2 // 128  # advantage.py:199
    w_lane = tl.arange(0, 128)[None, :]  # advantage.py:199
    first_full_steps = tl.min(tl.reshape(full_steps, (8,)), 0)  # advantage.py:199
    w_state = tl.full((8, 1), float("-inf"), tl.float32)  # advantage.py:199
    index = tl.full((8, 1), 2147483647, tl.int32)  # advantage.py:199
    w_state_2 = tl.full((8, 1), 0, tl.int32)  # advantage.py:199
    for w_step in tl.range(0, first_full_steps):  # advantage.py:199
        product = w_step * 128  # advantage.py:199
        total_2 = as_i32 + product  # advantage.py:199
        w = total_2 + w_lane  # advantage.py:199
        at_most = w >= 0  # advantage.py:200
        below = w < T  # advantage.py:200
        both = at_most & below  # advantage.py:200
        active = tl.load(active_ptr + w, mask=both & n_inside, other=0)  # advantage.py:200
        difference_3 = w - as_i32  # advantage.py:201
        as_f32 = difference_3.to(tl.float32)  # advantage.py:201
        chosen_3 = tl.where(active, as_f32, float("-inf"))  # advantage.py:201
        as_i32_3 = active.to(tl.int32)  # advantage.py:202
        max_w_lane = max_over_w_lane(chosen_3)  # advantage.py:199
        equal_3 = chosen_3 == max_w_lane  # advantage.py:199
        chosen_4 = tl.where(equal_3, w, 2147483647)  # advantage.py:199
        min_w_lane = min_over_w_lane(chosen_4)  # advantage.py:199
        sum_w_lane = sum_over_w_lane(as_i32_3)  # advantage.py:199
        below_2 = w_state < max_w_lane  # advantage.py:199
        equal_4 = w_state == max_w_lane  # advantage.py:199
        below_3 = min_w_lane < index  # advantage.py:199
        both_2 = equal_4 & below_3  # advantage.py:199
        either_2 = below_2 | both_2  # advantage.py:199
        m = tl.where(either_2, max_w_lane, w_state)  # advantage.py:199
        index_2 = tl.where(either_2, min_w_lane, index)  # advantage.py:199
        s = w_state_2 + sum_w_lane  # advantage.py:199
        w_state, index, w_state_2 = m, index_2, s  # advantage.py:199
    last_steps = tl.max(tl.reshape(steps, (8,)), 0)  # advantage.py:199
    for w_step in tl.range(first_full_steps, last_steps):  # advantage.py:199
        product = w_step * 128  # advantage.py:199
        total_2 = as_i32 + product  # advantage.py:199
        w = total_2 + w_lane  # advantage.py:199
        exists = w < as_i32_2  # advantage.py:199
        at_most = w >= 0  # advantage.py:200
        below = w < T  # advantage.py:200
        both = at_most & below  # advantage.py:200
        both_2 = exists & both  # advantage.py:200
        active = tl.load(active_ptr + w, mask=both_2 & n_inside, other=0)  # advantage.py:200
        difference_3 = w - as_i32  # advantage.py:201
        as_f32 = difference_3.to(tl.float32)  # advantage.py:201
        chosen_3 = tl.where(active, as_f32, float("-inf"))  # advantage.py:201
        as_i32_3 = active.to(tl.int32)  # advantage.py:202
        chosen_4 = tl.where(exists, chosen_3, float("-inf"))  # advantage.py:199
        max_w_lane = max_over_w_lane(chosen_4)  # advantage.py:199
        equal_3 = chosen_4 == max_w_lane  # advantage.py:199
        chosen_5 = tl.where(equal_3, w, 2147483647)  # advantage.py:199
        chosen_6 = tl.where(exists, chosen_5, 2147483647)  # advantage.py:199
        min_w_lane = min_over_w_lane(chosen_6)  # advantage.py:199
        chosen_7 = tl.where(exists, as_i32_3, 0)  # advantage.py:199
        sum_w_lane = sum_over_w_lane(chosen_7)  # advantage.py:199
        below_2 = w_state < max_w_lane  # advantage.py:199
        equal_4 = w_state == max_w_lane  # advantage.py:199
        below_3 = min_w_lane < index  # advantage.py:199
        both_3 = equal_4 & below_3  # advantage.py:199
        either_2 = below_2 | both_3  # advantage.py:199
        m = tl.where(either_2, max_w_lane, w_state)  # advantage.py:199
        index_2 = tl.where(either_2, min_w_lane, index)  # advantage.py:199
        s = w_state_2 + sum_w_lane  # advantage.py:199
        w_state, index, w_state_2 = m, index_2, s  # advantage.py:199
    for w_step in tl.range(0, first_full_steps):  # advantage.py:213
        product = w_step * 128  # advantage.py:206
        total_2 = as_i32 + product  # advantage.py:206
        w = total_2 + w_lane  # advantage.py:206
        at_most = w >= 0  # advantage.py:207
        below = w < T  # advantage.py:207
        both = at_most & below  # advantage.py:207
        active = tl.load(active_ptr + w, mask=both & n_inside, other=0)  # advantage.py:207
        rewards = tl.load(rewards_ptr + n, mask=n_inside, other=0.0)  # advantage.py:212
        equal_3 = w == index  # advantage.py:209
        both_2 = active & equal_3  # advantage.py:209
        chosen_3 = tl.where(both_2, rewards, 0.0)  # advantage.py:212
        chosen_4 = tl.where(either, float("nan"), chosen_3)  # advantage.py:212
        tl.store(token_rewards_ptr + w, chosen_4, mask=n_inside)  # advantage.py:213
    for w_step in tl.range(first_full_steps, last_steps):  # advantage.py:213
        product = w_step * 128  # advantage.py:206
        total_2 = as_i32 + product  # advantage.py:206
        w = total_2 + w_lane  # advantage.py:206
        exists = w < as_i32_2  # advantage.py:206
        at_most = w >= 0  # advantage.py:207
        below = w < T  # advantage.py:207
        both = at_most & below  # advantage.py:207
        both_2 = exists & both  # advantage.py:207
        active = tl.load(active_ptr + w, mask=both_2 & n_inside, other=0)  # advantage.py:207
        rewards = tl.load(rewards_ptr + n, mask=n_inside, other=0.0)  # advantage.py:212
        equal_3 = w == index  # advantage.py:209
        both_3 = active & equal_3  # advantage.py:209
        chosen_3 = tl.where(both_3, rewards, 0.0)  # advantage.py:212
        chosen_4 = tl.where(either, float("nan"), chosen_3)  # advantage.py:212
        tl.store(token_rewards_ptr + w, chosen_4, mask=exists & n_inside)  # advantage.py:213


def call(kernels, rewards, bounds, active, token_rewards, N, T, bounds_n_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((N + 7) // 8)
    if programs > 0:
        kernels.scatter_rewards((programs,), rewards, bounds, active, token_rewards, N, bounds_n_stride, T, errors)
