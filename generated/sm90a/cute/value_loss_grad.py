"""value_loss_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 0a2f124b00ace1ff
schedule: tiles T=128, 4 warps, 1 stages, unroll 1 placed T[6:0]
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


def div(a, b):
    # Correctly rounded.
    return a / b


def fmax(a, b):
    # NaN loses.
    return cute.arch.fmax(a, b)


def fmin(a, b):
    # NaN loses.
    return cute.arch.fmin(a, b)


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


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


@cute.kernel
def value_loss_grad_rows(values: cute.Tensor, returns: cute.Tensor, old_values: cute.Tensor, active: cute.Tensor, count: cute.Tensor, d_loss: cute.Tensor, d_values: cute.Tensor, T: Int32, clip: Float32):
    # A block owns 128 of T (rows). T: 128 indices, 1 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    t = block * 128 + thread
    t_inside = t < T
    count_2 = count[0]  # value.py:64
    d_loss_2 = d_loss[0]  # value.py:64
    values_2 = load_where(t_inside, values, t, Float32(0))  # value.py:15
    returns_2 = load_where(t_inside, returns, t, Float32(0))  # value.py:15
    old_values_2 = load_where(t_inside, old_values, t, Float32(0))  # value.py:15
    active_2 = load_where(t_inside, active, t, Uint8(0)) != 0  # value.py:68
    larger = cutlass.max(count_2, 1)  # value.py:64
    as_f32 = Int32(larger).to(Float32)  # value.py:64
    quotient = div(d_loss_2, as_f32)  # value.py:64
    difference = values_2 - returns_2  # value.py:15
    difference_2 = old_values_2 - clip  # value.py:15
    total = old_values_2 + clip  # value.py:15
    larger_2 = fmax(values_2, difference_2)  # value.py:15
    smaller = fmin(larger_2, total)  # value.py:15
    difference_3 = smaller - returns_2  # value.py:15
    product = mul(difference_3, difference_3)  # value.py:20
    product_2 = mul(difference, difference)  # value.py:20
    below = product_2 < product  # value.py:20
    chosen = select(below, Float32(0.0), difference)  # value.py:67
    product_3 = mul(quotient, chosen)  # value.py:68
    chosen_2 = select(active_2, product_3, Float32(0.0))  # value.py:68
    store_where(t_inside, d_values, t, chosen_2)  # value.py:68


@cute.jit
def launch_value_loss_grad(values_ptr: cute.Pointer, returns_ptr: cute.Pointer, old_values_ptr: cute.Pointer, active_ptr: cute.Pointer, count_ptr: cute.Pointer, d_loss_ptr: cute.Pointer, d_values_ptr: cute.Pointer, T: Int32, clip: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    values = cute.make_tensor(values_ptr, cute.make_layout((T,), stride=(1,)))
    returns = cute.make_tensor(returns_ptr, cute.make_layout((T,), stride=(1,)))
    old_values = cute.make_tensor(old_values_ptr, cute.make_layout((T,), stride=(1,)))
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    count = cute.make_tensor(count_ptr, cute.make_layout((1,), stride=(1,)))
    d_loss = cute.make_tensor(d_loss_ptr, cute.make_layout((1,), stride=(1,)))
    d_values = cute.make_tensor(d_values_ptr, cute.make_layout((T,), stride=(1,)))
    value_loss_grad_rows(values, returns, old_values, active, count, d_loss, d_values, T, clip).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, values, returns, old_values, active, count, d_loss, d_values, clip, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 127) // 128)
    if programs > 0:
        kernels.value_loss_grad((programs,), values, returns, old_values, active, count, d_loss, d_values, T, clip)
