"""gae on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 7687ee342bde8999
schedule: tiles 1, 1 warps, 1 stages, unroll 1
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


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # An element, or what stands for it.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


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


@cute.kernel
def gae_rows(values: cute.Tensor, rewards: cute.Tensor, active: cute.Tensor, bounds: cute.Tensor, bootstrap: cute.Tensor, advantages: cute.Tensor, returns: cute.Tensor, T: Int32, B: Int32, errors: cute.Pointer, gamma: Float32, decay: Float32):
    # A block owns 1 of B (rows).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    b = block
    writes = thread == 0
    bounds_2 = bounds[(b, 0)]  # advantage.py:106
    bounds_3 = bounds[(b, 1)]  # advantage.py:106
    bootstrap_2 = bootstrap[b]  # advantage.py:166
    difference = B - 1  # advantage.py:105
    as_i64 = Int32(T).to(Int64)  # advantage.py:105
    equal = b == 0  # advantage.py:107
    chosen = select(equal, Int64(0), bounds_2)  # advantage.py:107
    larger = cutlass.max(chosen, 0)  # advantage.py:107
    smaller = cutlass.min(larger, as_i64)  # advantage.py:107
    equal_2 = b == difference  # advantage.py:108
    chosen_2 = select(equal_2, as_i64, bounds_3)  # advantage.py:108
    smaller_2 = cutlass.min(chosen_2, as_i64)  # advantage.py:108
    larger_2 = cutlass.max(smaller, smaller_2)  # advantage.py:108
    differs = smaller != bounds_2  # advantage.py:109
    differs_2 = larger_2 != bounds_3  # advantage.py:109
    either = differs | differs_2  # advantage.py:109
    report_where(either & writes, errors, 1, b + 1)  # advantage.py:110
    as_i32 = Int64(smaller).to(Int32)  # advantage.py:168
    as_i32_2 = Int64(larger_2).to(Int32)  # advantage.py:168
    difference_2 = as_i32_2 - as_i32  # advantage.py:168
    difference_3 = as_i32_2 - 1  # advantage.py:168
    r_state = bootstrap_2  # advantage.py:176
    r_state_2 = Float32(0.0)  # advantage.py:176
    for r_step in cutlass.range(0, difference_2, unroll=1):  # advantage.py:176
        r = difference_3 - r_step  # advantage.py:168
        at_most = 0 <= r  # advantage.py:169
        below = r < T  # advantage.py:169
        both = at_most & below  # advantage.py:169
        active_2 = load_where(both, active, r, Uint8(0)) != 0  # advantage.py:169
        values_2 = load_where(both, values, r, Float32(0))  # advantage.py:169
        rewards_2 = load_where(both, rewards, r, Float32(0))  # advantage.py:170
        product = mul(gamma, r_state)  # advantage.py:170
        total = rewards_2 + product  # advantage.py:170
        difference_4 = total - values_2  # advantage.py:170
        product_2 = mul(decay, r_state_2)  # advantage.py:171
        total_2 = difference_4 + product_2  # advantage.py:171
        chosen_3 = select(active_2, values_2, r_state)  # advantage.py:172
        chosen_4 = select(active_2, total_2, r_state_2)  # advantage.py:173
        total_3 = total_2 + values_2  # advantage.py:174
        chosen_5 = select(either, Float32(float("nan")), total_2)  # advantage.py:175
        chosen_6 = select(active_2, chosen_5, Float32(0.0))  # advantage.py:175
        store_where(writes, advantages, r, chosen_6)  # advantage.py:176
        chosen_7 = select(either, Float32(float("nan")), total_3)  # advantage.py:175
        chosen_8 = select(active_2, chosen_7, Float32(0.0))  # advantage.py:175
        store_where(writes, returns, r, chosen_8)  # advantage.py:176
        r_state, r_state_2 = chosen_3, chosen_4  # advantage.py:176


@cute.jit
def launch_gae(values_ptr: cute.Pointer, rewards_ptr: cute.Pointer, active_ptr: cute.Pointer, bounds_ptr: cute.Pointer, bootstrap_ptr: cute.Pointer, advantages_ptr: cute.Pointer, returns_ptr: cute.Pointer, T: Int32, B: Int32, errors_ptr: cute.Pointer, bounds_b_stride: Int64, gamma: Float32, decay: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    values = cute.make_tensor(values_ptr, cute.make_layout((T,), stride=(1,)))
    rewards = cute.make_tensor(rewards_ptr, cute.make_layout((T,), stride=(1,)))
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    bounds = cute.make_tensor(bounds_ptr, cute.make_layout((B, 2), stride=(bounds_b_stride, 1)))
    bootstrap = cute.make_tensor(bootstrap_ptr, cute.make_layout((B,), stride=(1,)))
    advantages = cute.make_tensor(advantages_ptr, cute.make_layout((T,), stride=(1,)))
    returns = cute.make_tensor(returns_ptr, cute.make_layout((T,), stride=(1,)))
    gae_rows(values, rewards, active, bounds, bootstrap, advantages, returns, T, B, errors_ptr, gamma, decay).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), stream=stream,
    )


def call(kernels, values, rewards, active, bounds, bootstrap, advantages, returns, gamma, decay, T, B, bounds_b_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.gae((programs,), values, rewards, active, bounds, bootstrap, advantages, returns, T, B, errors, bounds_b_stride, gamma, decay)
