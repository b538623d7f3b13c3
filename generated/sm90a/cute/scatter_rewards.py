"""scatter_rewards on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 28b83aa84a2af38e
schedule: tiles 1, 1 warps, 3 stages, unroll 1 placed W.lane[6:2] W.lane[1:0]
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Boolean, Float16, Float32, Int16, Int32, Int64, Uint8, Uint32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

NEAREST = cute.math.RoundingMode.NEAREST_EVEN
ROW_MAJOR, COL_MAJOR = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR


def add(a, b):
    # A term of a sum.
    return a + b


def exchanged(x, lanes, combine):
    # Combine each element with that of the thread so many lanes away.
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def fmax(a, b):
    # NaN loses.
    return cute.arch.fmax(a, b)


def folded(x, apart, combine):
    # Combine the elements of a thread that lie so far apart.
    return [combine(x[i], x[i + apart]) for i in range(len(x)) if not i & apart]


def least(a, b):
    # Of integers.
    return cutlass.min(a, b)


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # An element, or what stands for it.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def max_over_w_lane(x):
    # The max over W.lane, in any order.
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = exchanged(x, 1, fmax)
    x = exchanged(x, 2, fmax)
    x = exchanged(x, 4, fmax)
    x = exchanged(x, 8, fmax)
    x = exchanged(x, 16, fmax)
    return x[0]


def min_over_w_lane(x):
    # The min over W.lane, in any order.
    x = folded(x, 1, least)
    x = folded(x, 1, least)
    x = exchanged(x, 1, least)
    x = exchanged(x, 2, least)
    x = exchanged(x, 4, least)
    x = exchanged(x, 8, least)
    x = exchanged(x, 16, least)
    return x[0]


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Write what was found, and one more than its row, into the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


def sum_over_w_lane(x):
    # The sum over W.lane, in any order.
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    return x[0]


@cute.kernel
def scatter_rewards_rows(rewards: cute.Tensor, bounds: cute.Tensor, active: cute.Tensor, token_rewards: cute.Tensor, T: Int32, N: Int32, errors: cute.Pointer):
    # A block owns 1 of N (rows). W.lane: 128 indices, 4 to each of 32 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    n = block
    writes = thread == 0
    bounds_2 = bounds[(n, 0)]  # advantage.py:106
    bounds_3 = bounds[(n, 1)]  # advantage.py:106
    difference = N - 1  # advantage.py:105
    as_i64 = Int32(T).to(Int64)  # advantage.py:105
    equal = n == 0  # advantage.py:107
    chosen = select(equal, Int64(0), bounds_2)  # advantage.py:107
    larger = cutlass.max(chosen, 0)  # advantage.py:107
    smaller = cutlass.min(larger, as_i64)  # advantage.py:107
    equal_2 = n == difference  # advantage.py:108
    chosen_2 = select(equal_2, as_i64, bounds_3)  # advantage.py:108
    smaller_2 = cutlass.min(chosen_2, as_i64)  # advantage.py:108
    larger_2 = cutlass.max(smaller, smaller_2)  # advantage.py:108
    differs = smaller != bounds_2  # advantage.py:109
    differs_2 = larger_2 != bounds_3  # advantage.py:109
    either = differs | differs_2  # advantage.py:109
    report_where(either & writes, errors, 1, n + 1)  # advantage.py:110
    as_i32 = Int64(smaller).to(Int32)  # advantage.py:199
    as_i32_2 = Int64(larger_2).to(Int32)  # advantage.py:199
    difference_2 = as_i32_2 - as_i32  # advantage.py:199
    total = difference_2 + 127  # advantage.py:199
    steps = total // 128  # advantage.py:199
    full_steps = difference_2 // 128  # advantage.py:199
    w_lane = [thread * 4 + c for c in range(4)]  # advantage.py:199
    w_state = Float32(float("-inf"))  # advantage.py:199
    index = Int32(2147483647)  # advantage.py:199
    w_state_2 = Int32(0)  # advantage.py:199
    next_w = Int32(0)  # advantage.py:199
    comes = next_w < full_steps  # advantage.py:199
    product = next_w * 128  # advantage.py:199
    total_2 = as_i32 + product  # advantage.py:199
    w = [total_2 + w_lane[c] for c in range(4)]  # advantage.py:199
    at_most = [0 <= w[c] for c in range(4)]  # advantage.py:200
    below = [w[c] < T for c in range(4)]  # advantage.py:200
    both = [at_most[c] & below[c] for c in range(4)]  # advantage.py:200
    active_2 = [load_where(comes & both[c], active, w[c], Uint8(0)) != 0 for c in range(4)]  # advantage.py:200
    active_ahead = tuple(active_2)  # advantage.py:200
    next_w_2 = Int32(1)  # advantage.py:200
    comes_2 = next_w_2 < full_steps  # advantage.py:200
    product_2 = next_w_2 * 128  # advantage.py:199
    total_3 = as_i32 + product_2  # advantage.py:199
    w_2 = [total_3 + w_lane[c] for c in range(4)]  # advantage.py:199
    at_most_2 = [0 <= w_2[c] for c in range(4)]  # advantage.py:200
    below_2 = [w_2[c] < T for c in range(4)]  # advantage.py:200
    both_2 = [at_most_2[c] & below_2[c] for c in range(4)]  # advantage.py:200
    active_3 = [load_where(comes_2 & both_2[c], active, w_2[c], Uint8(0)) != 0 for c in range(4)]  # advantage.py:200
    active_ahead_2 = tuple(active_3)  # advantage.py:200
    for w_step in cutlass.range(0, full_steps, unroll=1):  # advantage.py:199
        next_w_3 = w_step + 2  # advantage.py:199
        comes_3 = next_w_3 < full_steps  # advantage.py:199
        product_3 = next_w_3 * 128  # advantage.py:199
        total_4 = as_i32 + product_3  # advantage.py:199
        w_3 = [total_4 + w_lane[c] for c in range(4)]  # advantage.py:199
        at_most_3 = [0 <= w_3[c] for c in range(4)]  # advantage.py:200
        below_3 = [w_3[c] < T for c in range(4)]  # advantage.py:200
        both_3 = [at_most_3[c] & below_3[c] for c in range(4)]  # advantage.py:200
        active_4 = [load_where(comes_3 & both_3[c], active, w_3[c], Uint8(0)) != 0 for c in range(4)]  # advantage.py:200
        product_4 = w_step * 128  # advantage.py:199
        total_5 = as_i32 + product_4  # advantage.py:199
        w_4 = [total_5 + w_lane[c] for c in range(4)]  # advantage.py:199
        difference_3 = [w_4[c] - as_i32 for c in range(4)]  # advantage.py:201
        as_f32 = [Int32(difference_3[c]).to(Float32) for c in range(4)]  # advantage.py:201
        chosen_3 = [select(active_ahead[c], as_f32[c], Float32(float("-inf"))) for c in range(4)]  # advantage.py:201
        as_i32_3 = [Boolean(active_ahead[c]).to(Int32) for c in range(4)]  # advantage.py:202
        max_w_lane = max_over_w_lane(chosen_3)  # advantage.py:199
        equal_3 = [chosen_3[c] == max_w_lane for c in range(4)]  # advantage.py:199
        chosen_4 = [select(equal_3[c], w_4[c], Int32(2147483647)) for c in range(4)]  # advantage.py:199
        min_w_lane = min_over_w_lane(chosen_4)  # advantage.py:199
        sum_w_lane = sum_over_w_lane(as_i32_3)  # advantage.py:199
        below_4 = w_state < max_w_lane  # advantage.py:199
        equal_4 = w_state == max_w_lane  # advantage.py:199
        below_5 = min_w_lane < index  # advantage.py:199
        both_4 = equal_4 & below_5  # advantage.py:199
        either_2 = below_4 | both_4  # advantage.py:199
        m = select(either_2, max_w_lane, w_state)  # advantage.py:199
        index_2 = select(either_2, min_w_lane, index)  # advantage.py:199
        s = w_state_2 + sum_w_lane  # advantage.py:199
        w_state, index, w_state_2, active_ahead, active_ahead_2 = m, index_2, s, active_ahead_2, tuple(active_4)  # advantage.py:199
    w_state_3 = w_state  # advantage.py:199
    index_2 = index  # advantage.py:199
    w_state_4 = w_state_2  # advantage.py:199
    for w_step_2 in cutlass.range(full_steps, steps, unroll=1):  # advantage.py:199
        product_3 = w_step_2 * 128  # advantage.py:199
        total_4 = as_i32 + product_3  # advantage.py:199
        w_3 = [total_4 + w_lane[c] for c in range(4)]  # advantage.py:199
        exists = [w_3[c] < as_i32_2 for c in range(4)]  # advantage.py:199
        at_most_3 = [0 <= w_3[c] for c in range(4)]  # advantage.py:200
        below_3 = [w_3[c] < T for c in range(4)]  # advantage.py:200
        both_3 = [at_most_3[c] & below_3[c] for c in range(4)]  # advantage.py:200
        both_4 = [exists[c] & both_3[c] for c in range(4)]  # advantage.py:200
        active_4 = [load_where(both_4[c], active, w_3[c], Uint8(0)) != 0 for c in range(4)]  # advantage.py:200
        difference_3 = [w_3[c] - as_i32 for c in range(4)]  # advantage.py:201
        as_f32 = [Int32(difference_3[c]).to(Float32) for c in range(4)]  # advantage.py:201
        chosen_3 = [select(active_4[c], as_f32[c], Float32(float("-inf"))) for c in range(4)]  # advantage.py:201
        as_i32_3 = [Boolean(active_4[c]).to(Int32) for c in range(4)]  # advantage.py:202
        chosen_4 = [select(exists[c], chosen_3[c], Float32(float("-inf"))) for c in range(4)]  # advantage.py:199
        max_w_lane = max_over_w_lane(chosen_4)  # advantage.py:199
        equal_3 = [chosen_4[c] == max_w_lane for c in range(4)]  # advantage.py:199
        chosen_5 = [select(equal_3[c], w_3[c], Int32(2147483647)) for c in range(4)]  # advantage.py:199
        chosen_6 = [select(exists[c], chosen_5[c], Int32(2147483647)) for c in range(4)]  # advantage.py:199
        min_w_lane = min_over_w_lane(chosen_6)  # advantage.py:199
        chosen_7 = [select(exists[c], as_i32_3[c], Int32(0)) for c in range(4)]  # advantage.py:199
        sum_w_lane = sum_over_w_lane(chosen_7)  # advantage.py:199
        below_4 = w_state_3 < max_w_lane  # advantage.py:199
        equal_4 = w_state_3 == max_w_lane  # advantage.py:199
        below_5 = min_w_lane < index_2  # advantage.py:199
        both_5 = equal_4 & below_5  # advantage.py:199
        either_2 = below_4 | both_5  # advantage.py:199
        m = select(either_2, max_w_lane, w_state_3)  # advantage.py:199
        index_3 = select(either_2, min_w_lane, index_2)  # advantage.py:199
        s = w_state_4 + sum_w_lane  # advantage.py:199
        w_state_3, index_2, w_state_4 = m, index_3, s  # advantage.py:199
    next_w_3 = Int32(0)  # advantage.py:213
    comes_3 = next_w_3 < full_steps  # advantage.py:213
    rewards_2 = load_where(comes_3, rewards, n, Float32(0))  # advantage.py:212
    product_3 = next_w_3 * 128  # advantage.py:206
    total_4 = as_i32 + product_3  # advantage.py:206
    w_3 = [total_4 + w_lane[c] for c in range(4)]  # advantage.py:206
    at_most_3 = [0 <= w_3[c] for c in range(4)]  # advantage.py:207
    below_3 = [w_3[c] < T for c in range(4)]  # advantage.py:207
    both_3 = [at_most_3[c] & below_3[c] for c in range(4)]  # advantage.py:207
    active_4 = [load_where(comes_3 & both_3[c], active, w_3[c], Uint8(0)) != 0 for c in range(4)]  # advantage.py:207
    active_ahead_3 = tuple(active_4)  # advantage.py:207
    next_w_4 = Int32(1)  # advantage.py:207
    comes_4 = next_w_4 < full_steps  # advantage.py:207
    rewards_3 = load_where(comes_4, rewards, n, Float32(0))  # advantage.py:212
    product_4 = next_w_4 * 128  # advantage.py:206
    total_5 = as_i32 + product_4  # advantage.py:206
    w_4 = [total_5 + w_lane[c] for c in range(4)]  # advantage.py:206
    at_most_4 = [0 <= w_4[c] for c in range(4)]  # advantage.py:207
    below_4 = [w_4[c] < T for c in range(4)]  # advantage.py:207
    both_4 = [at_most_4[c] & below_4[c] for c in range(4)]  # advantage.py:207
    active_5 = [load_where(comes_4 & both_4[c], active, w_4[c], Uint8(0)) != 0 for c in range(4)]  # advantage.py:207
    active_ahead_4 = tuple(active_5)  # advantage.py:207
    for w_step_3 in cutlass.range(0, full_steps, unroll=1):  # advantage.py:213
        next_w_5 = w_step_3 + 2  # advantage.py:213
        comes_5 = next_w_5 < full_steps  # advantage.py:213
        rewards_4 = load_where(comes_5, rewards, n, Float32(0))  # advantage.py:212
        product_5 = next_w_5 * 128  # advantage.py:206
        total_6 = as_i32 + product_5  # advantage.py:206
        w_5 = [total_6 + w_lane[c] for c in range(4)]  # advantage.py:206
        at_most_5 = [0 <= w_5[c] for c in range(4)]  # advantage.py:207
        below_5 = [w_5[c] < T for c in range(4)]  # advantage.py:207
        both_5 = [at_most_5[c] & below_5[c] for c in range(4)]  # advantage.py:207
        active_6 = [load_where(comes_5 & both_5[c], active, w_5[c], Uint8(0)) != 0 for c in range(4)]  # advantage.py:207
        product_6 = w_step_3 * 128  # advantage.py:206
        total_7 = as_i32 + product_6  # advantage.py:206
        w_6 = [total_7 + w_lane[c] for c in range(4)]  # advantage.py:206
        equal_3 = [w_6[c] == index_2 for c in range(4)]  # advantage.py:209
        both_6 = [active_ahead_3[c] & equal_3[c] for c in range(4)]  # advantage.py:209
        chosen_3 = [select(both_6[c], rewards_2, Float32(0.0)) for c in range(4)]  # advantage.py:212
        chosen_4 = [select(either, Float32(float("nan")), chosen_3[c]) for c in range(4)]  # advantage.py:212
        for c in cutlass.range_constexpr(4):  # advantage.py:213
            token_rewards[w_6[c]] = chosen_4[c]  # advantage.py:213
        rewards_2, rewards_3, active_ahead_3, active_ahead_4 = rewards_3, rewards_4, active_ahead_4, tuple(active_6)  # advantage.py:213
    for w_step_4 in cutlass.range(full_steps, steps, unroll=1):  # advantage.py:213
        rewards_4 = rewards[n]  # advantage.py:212
        product_5 = w_step_4 * 128  # advantage.py:206
        total_6 = as_i32 + product_5  # advantage.py:206
        w_5 = [total_6 + w_lane[c] for c in range(4)]  # advantage.py:206
        exists = [w_5[c] < as_i32_2 for c in range(4)]  # advantage.py:206
        at_most_5 = [0 <= w_5[c] for c in range(4)]  # advantage.py:207
        below_5 = [w_5[c] < T for c in range(4)]  # advantage.py:207
        both_5 = [at_most_5[c] & below_5[c] for c in range(4)]  # advantage.py:207
        both_6 = [exists[c] & both_5[c] for c in range(4)]  # advantage.py:207
        active_6 = [load_where(both_6[c], active, w_5[c], Uint8(0)) != 0 for c in range(4)]  # advantage.py:207
        equal_3 = [w_5[c] == index_2 for c in range(4)]  # advantage.py:209
        both_7 = [active_6[c] & equal_3[c] for c in range(4)]  # advantage.py:209
        chosen_3 = [select(both_7[c], rewards_4, Float32(0.0)) for c in range(4)]  # advantage.py:212
        chosen_4 = [select(either, Float32(float("nan")), chosen_3[c]) for c in range(4)]  # advantage.py:212
        for c in cutlass.range_constexpr(4):  # advantage.py:213
            store_where(exists[c], token_rewards, w_5[c], chosen_4[c])  # advantage.py:213


@cute.jit
def launch_scatter_rewards(rewards_ptr: cute.Pointer, bounds_ptr: cute.Pointer, active_ptr: cute.Pointer, token_rewards_ptr: cute.Pointer, T: Int32, N: Int32, errors_ptr: cute.Pointer, bounds_n_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    rewards = cute.make_tensor(rewards_ptr, cute.make_layout((N,), stride=(1,)))
    bounds = cute.make_tensor(bounds_ptr, cute.make_layout((N, 2), stride=(bounds_n_stride, 1)))
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    token_rewards = cute.make_tensor(token_rewards_ptr, cute.make_layout((T,), stride=(1,)))
    scatter_rewards_rows(rewards, bounds, active, token_rewards, T, N, errors_ptr).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), stream=stream,
    )


def call(kernels, rewards, bounds, active, token_rewards, T, N, bounds_n_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = N
    if programs > 0:
        kernels.scatter_rewards((programs,), rewards, bounds, active, token_rewards, T, N, errors, bounds_n_stride)
